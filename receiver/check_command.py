"""`receiver check`: tries the configuration and its resources, or the public URL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import ConfigError, PushkitError
from pushkit.net.transport import ConnectionOptions
from pushkit.signing.scheme import Scheme
from pushkit.storage.location import masked
from pushkit.terminal.command import painted
from pushkit.terminal.options import FILE, refuse_given
from pushkit.terminal.output import example, in_a_line, numbered
from pushkit.url import Url, masked_url
from receiver.admin import open_inbox
from receiver.diagnosis.public_url import TrialRequest, check_public_url, faults
from receiver.diagnosis.report import step_lines
from receiver.forwards import STREAM_SCHEMES
from receiver.options import config_option, load_signing_key
from receiver.receiver import Receiver
from receiver.senders import choose_sender
from receiver.serve_command import dashboard_access, tls_of
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
@click.option(
    "--settings",
    "with_settings",
    is_flag=True,
    help="Print the effective configuration as well, as JSON, with masked secrets.",
)
def check(
    *,
    config: Path,
    url: str | None,
    sender: str | None,
    keys_path: Path | None,
    token: str | None,
    with_settings: bool,
) -> None:
    """Check the configuration, and try its resources.

    The resources are every sender's keys, the database (nothing is created there), the TLS files
    and the dashboard's token. The first line says what was found. The exit status is 1 if one of
    them is not available.

    With --url instead: post through the public URL to the running service, and report which link
    on the way is at fault (scheme, DNS, TLS, proxy, path), or which step of the receiver. That one
    refuses the request in the end, and stores nothing.
    """
    if url is not None:
        refuse_given("with_settings", only_for="a check without --url")
        _check_url(load_settings(config), url, sender=sender, keys_path=keys_path, token=token)
        return
    refuse_given("sender", "keys_path", "token", only_for="--url")
    settings = load_settings(config)
    found = _try_all(settings)
    says = f"not available: {', '.join(found.failed)}" if found.failed else "ok"
    click.echo(f"{config}: {painted(says, 'red' if found.failed else 'green')}")
    for line in found.failed.values():
        click.echo(line, err=True)
    for line in found.lines:
        click.echo(line)
    if with_settings:
        click.echo(json.dumps(_masked(settings), indent=2))
    if found.failed:
        sys.exit(1)


@dataclass(frozen=True, slots=True)
class _Found:
    """The results of a check."""

    lines: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # the lines of what failed, by its name

    @contextlib.contextmanager
    def trying(self, name: str) -> Iterator[None]:
        """Note an error that is raised within."""
        try:
            yield
        except PushkitError as exc:
            self.failed[name] = f"{name}: error: {str(exc).removeprefix(f'{name}: ')}"


def _try_all(settings: ReceiverSettings) -> _Found:
    found, receiver = _Found(), settings.build()
    for trusted in receiver.senders.values():
        unproven = None
        if not trusted.profile.signed:
            unproven = f"{trusted.profile.value}: only its secret is verified"
        elif not trusted.has_keys:
            unproven = f"{Scheme.STANDARD_WEBHOOKS.value}: no audience is verified"
        if unproven is not None:
            found.lines.append(f"{trusted.name}: {unproven}")
    for mailbox in receiver.mailboxes:
        found.lines.append(f"{mailbox.name}: mailbox, {numbered(len(mailbox.tokens), 'token')}")
    with found.trying("tls"):
        if tls_of(settings) is not None:
            found.lines.append("tls: ok")
    with found.trying("dashboard"):
        if (access := dashboard_access(settings)) is not None:
            found.lines.append(f"dashboard: ok, {'with' if access.token else 'without'} a token")
    asyncio.run(_try_keys(receiver, found))
    with found.trying("database"):
        schema = asyncio.run(open_inbox(settings.inbox_location).schema())
        schema.check_known()
        outlook = "" if schema.is_current else f"; {schema.outlook}, when `receiver serve` starts"
        found.lines.append(f"database: ok{outlook}")
    return found


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
    probe = TrialRequest(
        url=url or own,
        own_url=own,
        sender=trusted,
        key=None if keys_path is None else load_signing_key(keys_path),
        token=token or next(iter(trusted.tokens), None),
        connections=ConnectionOptions(proxy=settings.proxy, ca_file=settings.ca_file),
    )
    click.echo(f"from {trusted.name} to {masked_url(probe.url)}")
    results = asyncio.run(check_public_url(probe))
    for line in step_lines(results):
        click.echo(line)
    if at_fault := faults(results):
        raise ConfigError(f"at fault: {', '.join(at_fault)}")


async def _try_keys(receiver: Receiver, found: _Found) -> None:
    """Fetch every sender's keys."""
    try:
        snapshot = await receiver.trust.snapshot()
    finally:
        await receiver.close()
    for held in snapshot.held:
        if held.missing is not None:
            found.failed[held.sender.name] = f"{held.sender.name}: error: {held.missing}"
        elif held.sender.has_keys:
            keys = [key for same in held.keys.values() for key in same]
            found.lines.append(f"{held.sender.name}: {numbered(len(keys), 'key')}")
            found.lines.extend(f"  {key.algorithm.value:6} {in_a_line(key.kid)}" for key in keys)


def _masked(settings: ReceiverSettings) -> JsonObject:
    """Return the effective configuration without its secrets."""
    shown = settings.document().items()
    document: JsonObject = {name: _without_users(value) for name, value in shown}
    document["database"] = masked(settings.database)
    document["proxy"] = settings.proxy and masked(settings.proxy)
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
