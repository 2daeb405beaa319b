"""`receiver`: the webhook service."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path

import click
from aiohttp import web

from pushkit.a2a import WireVersion
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.command import run_command
from pushkit.errors import ConfigError, PushkitError
from pushkit.net.jwks_client import VerificationKeys
from pushkit.version import __version__
from receiver.inbox_commands import inbox
from receiver.settings import ReceiverSettings, load_settings

__all__ = ["cli", "main"]

_MAX_EXPIRES_IN = 10 * 365 * 86400

_config = click.option(
    "--config",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("receiver.toml"),
    envvar="RECEIVER_CONFIG",
    show_default=True,
    show_envvar=True,
    help="The configuration file.",
)


@click.group(
    epilog="\b\nExample:\n  receiver check --config receiver.toml\n"
    "  receiver serve --config receiver.toml"
)
@click.version_option(__version__, prog_name="receiver")
def cli() -> None:
    """Receive signed A2A push notifications, and call back once for each."""


@cli.command(epilog="\b\nExample:\n  receiver serve --config receiver.toml --verbose")
@_config
@click.option("--verbose", is_flag=True, help="Log accepted notifications too, not only refusals.")
def serve(path: Path, *, verbose: bool) -> None:
    """Serve the webhook and run the callbacks."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # Its tracebacks are of requests that are no HTTP, with the stranger's text in them.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    settings = load_settings(path)
    receiver = settings.build(path.parent.resolve())
    host, port = settings.host_and_port
    for sender in receiver.senders.values():
        url = f"{receiver.url}{sender.path}"
        click.echo(f"receiving from {sender.name} at {url} (listening on {settings.listen})")
    try:
        web.run_app(
            receiver.app(),
            host=host,
            port=port,
            access_log=None,
            print=None,
            auto_decompress=False,  # what is compressed is refused, not unpacked
        )
    except OSError as exc:
        reason = os.strerror(exc.errno) if exc.errno else str(exc)
        raise ConfigError(f"listen: cannot listen on {settings.listen}: {reason}") from exc


@cli.command(epilog="\b\nExample:\n  receiver check --config receiver.toml")
@_config
def check(path: Path) -> None:
    """Print the effective configuration, secrets masked, and try every sender's JWK Set.

    Exit status 1 if a sender's keys cannot be had.
    """
    settings = load_settings(path)
    receiver = settings.build(path.parent.resolve())
    click.echo(json.dumps(_masked(settings), indent=2))
    problems = asyncio.run(_try_keys(receiver.trust.keys_by_sender(), receiver.close))
    if problems:
        sys.exit(1)


@cli.command(epilog="\b\nExample:\n  receiver expect --sender agent --expires-in 86400")
@_config
@click.option("--sender", help="Which trusted sender; may be left out if there is only one.")
@click.option("--task-id", help="The task, if it is known already.")
@click.option("--version", default="1.0", show_default=True, help="The A2A version of the agent.")
@click.option(
    "--expires-in",
    type=click.IntRange(1, _MAX_EXPIRES_IN),
    help="Seconds that the token is good for.",
)
def expect(
    path: Path, sender: str | None, task_id: str | None, version: str, expires_in: int | None
) -> None:
    """Mint a token, and print the push config to hand to the agent."""
    settings = load_settings(path)
    receiver = settings.build(path.parent.resolve())

    async def register() -> JsonObject:
        try:
            expectation = await receiver.expect(
                sender,
                task_id=task_id,
                version=WireVersion.parse(version),
                expires_in=timedelta(seconds=expires_in) if expires_in else None,
            )
        finally:
            await receiver.close()
        return expectation.as_json()

    click.echo(json.dumps(asyncio.run(register())))


async def _try_keys(
    keys_by_sender: Mapping[str, VerificationKeys], close: Callable[[], Awaitable[None]]
) -> int:
    """Fetch every sender's keys once and say what was found; return how many failed."""
    failed = 0
    for name, source in keys_by_sender.items():
        try:
            keys = await source.keys()
        except PushkitError as exc:
            failed += 1
            click.echo(f"{name}: error: {exc}", err=True)
            continue
        click.echo(f"{name}: {len(keys)} keys")
        for key in keys.values():
            click.echo(f"  {key.algorithm.value:6} {key.kid}")
    await close()
    return failed


def _masked(settings: ReceiverSettings) -> JsonObject:
    """Return the effective configuration without its secrets."""
    document: JsonObject = settings.model_dump(mode="json")
    for location in ("database", "replay"):
        document[location] = _without_password(document[location])
    for sender in document["senders"] if isinstance(document["senders"], list) else []:
        if isinstance(sender, dict):
            for secret in ("tokens", "credentials"):
                values = sender[secret]
                sender[secret] = ["***"] * len(values) if isinstance(values, list) else []
    return document


def _without_password(location: JsonValue) -> JsonValue:
    """Return a DSN or URL with its password masked, before the host and in the query."""
    if not isinstance(location, str) or "://" not in location:
        return location
    masked = re.sub(r"^(\w+://[^:@/?#]*):.*@", r"\1:***@", location)
    return re.sub(r"([?&]\w*password)=[^&]*", r"\1=***", masked, flags=re.IGNORECASE)


cli.add_command(inbox)


def main() -> None:
    """Run the command line."""
    run_command(cli)


if __name__ == "__main__":
    main()
