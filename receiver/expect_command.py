"""`receiver expect`: mints a token, and prints the push config for the agent."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import click

from pushkit.a2a import WireVersion
from pushkit.bounded_json import JsonObject
from pushkit.errors import ConfigError
from pushkit.storage.migrations import Access
from pushkit.terminal.options import read_by, read_stream, refuse_given
from pushkit.terminal.output import example
from receiver.admin import open_inbox
from receiver.expectation import OVERLAP
from receiver.options import config_option
from receiver.senders import choose_sender
from receiver.settings import load_settings

_MAX_EXPIRES_IN = 10 * 365 * 86400


@click.command(epilog=example("receiver expect --sender agent --expires-in 86400"))
@config_option
@click.option("--sender", help="Which trusted sender; may be left out if there is only one.")
@click.option("--task-id", help="The task, if it is already known.")
@click.option("--version", default="1.0", help="The A2A version of the agent.")
@click.option(
    "--expires-in",
    type=click.IntRange(1, _MAX_EXPIRES_IN),
    help="Seconds for which the token is valid; by default those of `[retention]`: 90 days.",
)
@click.option(
    "--authentication", help="Also mint credentials of this scheme: Bearer, Basic or ApiKey."
)
@click.option(
    "--replaces",
    type=click.File("rb"),
    callback=read_by(read_stream),
    help="A file with the token that the new one replaces; - for standard input.",
)
@click.option(
    "--overlap",
    type=click.IntRange(0, _MAX_EXPIRES_IN),
    default=OVERLAP // timedelta(seconds=1),
    help="Seconds for which the replaced token stays valid.",
)
def expect(
    config: Path,
    *,
    sender: str | None,
    task_id: str | None,
    version: str,
    expires_in: int | None,
    authentication: str | None,
    replaces: bytes | None,
    overlap: int,
) -> None:
    """Mint a token, and print the push config to hand to the agent."""
    if replaces is None:
        refuse_given("overlap", only_for="--replaces")
    settings = load_settings(config)
    replaced = None if replaces is None else _read_token(replaces)
    receiver = settings.build()
    trusted = choose_sender(sender, receiver.senders.values(), setting="--sender")

    async def register() -> JsonObject:
        try:
            # An inbox is created, but not upgraded.
            schema = await open_inbox(settings.inbox_location).schema()
            await receiver.open(Access.WRITE if schema.found else Access.UPGRADE)
            expectation = await receiver.expect(
                trusted.name,
                task_id=task_id,
                version=WireVersion.parse(version),
                expires_in=timedelta(seconds=expires_in) if expires_in else None,
                authentication=authentication,
                replaces=replaced,
                overlap=timedelta(seconds=overlap),
            )
        finally:
            await receiver.close()
        return expectation.as_json()

    click.echo(json.dumps(asyncio.run(register())))


def _read_token(content: bytes) -> str:
    try:
        return content.decode("utf-8").strip()
    except UnicodeDecodeError as exc:
        raise ConfigError(
            "replaces: expected a file with a token, found one that is no text"
        ) from exc
