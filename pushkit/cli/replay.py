"""`pushkit replay`: posts captured requests again, byte for byte."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

import click

from pushkit.captured import fields_to_send, read_request
from pushkit.errors import ConfigError, MalformedRequestError, PushkitError
from pushkit.files import read_file
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from pushkit.terminal.options import FILE, egress_options, seconds_option
from pushkit.terminal.output import example, harmless
from pushkit.webhook import WebhookRequest

_SHOWN_BYTES = 500


@click.command(
    epilog=example(
        "pushkit replay captures/*.http http://127.0.0.1:9000/a2a/push",
        "pushkit replay captures/20260101T120000Z-0001-accepted.http http://127.0.0.1:3000/hook",
    )
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.argument("url")
@seconds_option("--timeout", within=(1, 600), default=15, help="Seconds for each request.")
@egress_options(ConnectionOptions)
def replay(
    *, files: tuple[Path, ...], url: str, timeout: timedelta, connections: ConnectionOptions
) -> None:
    """Post captured requests to URL, in the order given.

    Each FILE is one that `listen --save` wrote. Bodies and headers are sent unchanged, including
    signatures and times: a receiver with another time or audience refuses them, and one that has
    received them before does nothing. The exit status is 0 if all were answered 2xx, else 1.
    """
    requests = [(file, _read(file)) for file in files]
    client = Transport(DestinationPolicy.naming(url), connections)
    if not asyncio.run(_post_all(requests, url, timeout, client)):
        sys.exit(1)


def _read(file: Path) -> WebhookRequest:
    try:
        return read_request(read_file(file))
    except OSError as exc:
        raise ConfigError(f"{file}: {exc.strerror}") from exc
    except MalformedRequestError as exc:
        raise MalformedRequestError(f"{file}: {exc}") from exc


async def _post_all(
    requests: list[tuple[Path, WebhookRequest]], url: str, within: timedelta, client: Transport
) -> bool:
    accepted = True
    async with closing(client):
        destination = client.policy.check(url)
        for file, request in requests:
            try:
                answer = await client.post(
                    destination, fields_to_send(request), request.body, timeout=within
                )
            except PushkitError as exc:
                click.echo(f"{file.name}: {exc.code}: {exc}", err=True)
                accepted = False
                continue
            click.echo(f"{file.name}: {len(request.body)} bytes, answered {answer.status}")
            if not 200 <= answer.status < 300:
                accepted = False
                click.echo(f"  {harmless(answer.body[:_SHOWN_BYTES])}")
    return accepted
