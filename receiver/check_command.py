"""`receiver check`: tries the configuration and its resources, or the public URL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import ConfigError, PushkitError
from pushkit.net.transport import ConnectionOptions, closing
from pushkit.signing.scheme import Scheme
from pushkit.storage.location import masked
from pushkit.terminal.command import painted
from pushkit.terminal.options import FILE, refuse_given
from pushkit.terminal.output import example, in_a_line, numbered
from pushkit.url import Url, masked_url
from receiver.admin import open_inbox
from receiver.forwards import STREAM_SCHEMES
from receiver.options import config_option, load_signing_key
from receiver.public_url import Probe, check_public_url
from receiver.receiver import Receiver
from receiver.replay.memory import redis_replay
from receiver.senders import choose_sender
from receiver.serving.service import dashboard_access
from receiver.serving.tls import TlsFiles
from receiver.settings import ReceiverSettings, load_settings


@click.command(
    epilog=example(
        "receiver check --config receiver.toml",
        "receiver check --url https://client.example.com --keys keys.json",
    )
)
@config_option
@click.option(
    "--url",
    is_flag=False,
    flag_value="",
    help="Post through this public URL, and report the faulty link; without a value, through the"
    " configuration's.",
)
@click.option("--sender", help="For --url: which sender; may be left out if there is only one.")
@click.option(
    "--keys",
    "keys_path",
    type=FILE,
    help="For --url: the agent's key file (`pushkit keys`), to sign as it does.",
)
@click.option("--token", help="For --url: a token that the agent was given.")
def check(
    config: Path, *, url: str | None, sender: str | None, keys_path: Path | None, token: str | None
) -> None:
    """Print the effective configuration, and try its resources.

    Secrets are masked. The resources are every sender's keys, the database (nothing is created
    there), the Redis of `replay`, the TLS files and the dashboard's token. The exit status is 1 if
    one of them is not available.

    With --url instead: post through the public URL to the running service, and report which link is
    at fault: scheme, DNS, TLS, proxy, path, key, clock, audience or token. The receiver refuses the
    request in the end, and stores nothing.
    """
    if url is not None:
        _check_url(load_settings(config), url, sender=sender, keys_path=keys_path, token=token)
        return
    refuse_given("sender", "keys_path", "token", only_for="--url")
    settings = load_settings(config)
    receiver = settings.build()
    click.echo(json.dumps(_masked(settings), indent=2))
    for trusted in receiver.senders.values():
        if not trusted.profile.signed:
            click.echo(f"{trusted.name}: {trusted.profile.value}: only its secret is verified")
        elif not trusted.has_keys:
            click.echo(f"{trusted.name}: {Scheme.STANDARD_WEBHOOKS.value}: no audience is verified")
    failed: list[str] = []
    with _tried("tls", failed):
        if TlsFiles.of(settings) is not None:
            click.echo("tls: ok")
    with _tried("dashboard", failed):
        if (access := dashboard_access(settings)) is not None:
            click.echo(f"dashboard: ok, {'with' if access.token else 'without'} a token")
    asyncio.run(_try_keys(receiver, failed))
    with _tried("database", failed):
        schema = asyncio.run(open_inbox(settings.inbox_location).schema())
        schema.check_not_newer()
        outlook = "" if schema.is_current else f"; {schema.outlook}, when `receiver serve` starts"
        click.echo(f"database: ok{outlook}")
    if settings.replay is not None:
        with _tried("replay", failed):
            asyncio.run(_try_redis(settings.replay, settings.url))
            click.echo("replay: ok")
    if failed:
        sys.exit(1)


def _check_url(
    settings: ReceiverSettings,
    url: str,
    *,
    sender: str | None,
    keys_path: Path | None,
    token: str | None,
) -> None:
    trusted = choose_sender(sender, settings.trusted_senders(), setting="--sender")
    own = f"{settings.url.rstrip('/')}{trusted.path}"
    if url and Url.parse(url).target == "/":
        url = f"{url.rstrip('/')}{trusted.path}"
    if keys_path is not None and set(trusted.schemes) != {Scheme.JWT}:
        raise ConfigError(
            f"--keys: this check signs by {Scheme.JWT.value} alone, but sender {trusted.name} must"
            f" sign by {', '.join(sorted(trusted.schemes))}: leave --keys out"
        )
    probe = Probe(
        url=url or own,
        own_url=own,
        sender=trusted,
        key=None if keys_path is None else load_signing_key(keys_path),
        token=token or next(iter(trusted.tokens), None),
        connections=ConnectionOptions(proxy=settings.proxy, ca_file=settings.roots),
    )
    click.echo(f"from {trusted.name} to {masked_url(probe.url)}")
    links = asyncio.run(check_public_url(probe))
    for link in links:
        mark, colour = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", None)}[link.holds]
        click.echo(f"{painted(mark, colour)} {link.name:9} {link.says}")
    at_fault = [link.name for link in links if link.holds is False]
    if at_fault:
        raise ConfigError(f"at fault: {', '.join(at_fault)}")


@contextlib.contextmanager
def _tried(name: str, failed: list[str]) -> Iterator[None]:
    """Print an error that is raised within, and add the name to the failed ones."""
    try:
        yield
    except PushkitError as exc:
        click.echo(f"{name}: error: {str(exc).removeprefix(f'{name}: ')}", err=True)
        failed.append(name)


async def _try_keys(receiver: Receiver, failed: list[str]) -> None:
    """Fetch every sender's keys."""
    try:
        snapshot = await receiver.trust.snapshot()
    finally:
        await receiver.close()
    for held in snapshot.held:
        if held.missing is not None:
            failed.append(held.sender.name)
            click.echo(f"{held.sender.name}: error: {held.missing}", err=True)
        elif held.sender.has_keys:
            keys = [key for same in held.keys.values() for key in same]
            click.echo(f"{held.sender.name}: {numbered(len(keys), 'key')}")
            for key in keys:
                click.echo(f"  {key.algorithm.value:6} {in_a_line(key.kid)}")


async def _try_redis(url: str, namespace: str) -> None:
    async with closing(redis_replay(url, namespace=namespace)) as memory:
        await memory.open()


def _masked(settings: ReceiverSettings) -> JsonObject:
    """Return the effective configuration without its secrets."""
    shown = settings.model_dump(mode="json").items()
    document: JsonObject = {name: _without_users(value) for name, value in shown}
    for name, location in (
        ("database", settings.database),
        ("replay", settings.replay),
        ("proxy", settings.proxy),
    ):
        document[name] = location and masked(location)
    return document


def _without_users(value: JsonValue) -> JsonValue:
    """Mask user, password and query of every URL in a value; the query of a stream is kept."""
    if isinstance(value, dict):
        return {name: _without_users(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_without_users(item) for item in value]
    if not isinstance(value, str) or "://" not in value:
        return value
    return masked_url(value, keep_query=value.partition("://")[0] in STREAM_SCHEMES)
