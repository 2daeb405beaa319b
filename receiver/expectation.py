"""`Expectation`: mints the token and credentials of `expect()`, and the push config with them."""

from __future__ import annotations

import base64
import secrets
from datetime import datetime, timedelta

from pushkit.a2a import Authentication, PushConfig, WireVersion, format_push_config
from pushkit.arguments import check_duration, check_each, check_type
from pushkit.bounded_json import JsonObject
from pushkit.errors import ConfigError
from pushkit.record import record
from pushkit.signing.token import hash_credentials, hash_token
from pushkit.storage.script import Script
from receiver.registrations import Registration, register, replace_token
from receiver.senders import TrustedSender

OVERLAP = timedelta(hours=1)
_MINTED = frozenset({"apikey", "basic", "bearer"})


@record(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The result of `expect()`."""

    sender: str  # the name of the trusted sender that may use it
    config: PushConfig  # for that agent, with URL and token
    version: WireVersion  # the A2A version in which `as_json` writes it

    def as_json(self) -> JsonObject:
        """Return the config object in its A2A version."""
        return format_push_config(self.config, self.version)


def hand_out(
    sender: TrustedSender,
    *,
    url: str,
    task_id: str | None,
    version: WireVersion | str,
    expires_in: timedelta | None,
    authentication: str | None,
    replaces: str | None,
    overlap: timedelta,
    now: datetime,
) -> Script[Expectation]:
    """Mint a token for a sender, store its hash, and return the config for the agent.

    The arguments are those of `Receiver.expect`, but without `expires_in` it never expires.

    Raises:
        ConfigError: The version or scheme is unknown, the version has no tokens or credentials
            although they are needed, `expires_in` is not positive, or the token to replace is not
            valid.
    """
    check_each(str | None, task_id=task_id, authentication=authentication, replaces=replaces)
    if task_id == "":  # no notification has such a task
        raise ConfigError("task_id: found an empty string, expected a task, or None for any")
    check_type("overlap", overlap, timedelta)
    if expires_in is not None:
        check_duration("expires_in", expires_in)
    if replaces is not None and task_id is not None:
        raise ConfigError("task_id: a token that replaces another has its task; leave task_id out")
    wire_version = WireVersion.parse(str(version))
    if wire_version is WireVersion.AGENTVAULT_0_2:
        _check_expected_by_task(sender, task_id, authentication)
    token = mint_token()
    minted = mint_authentication(authentication) if authentication else None
    expires_at = None if expires_in is None else _end("expires_in", now, expires_in)
    if replaces is not None:
        _end("overlap", now, overlap)
    registration = Registration(
        sender=sender.name,
        expectation=mint_token(),
        token_sha256=hash_token(token),
        credentials_sha256=(
            hash_credentials(f"{minted.scheme} {minted.credentials}") if minted else None
        ),
        task_id=task_id,
        created_at=now,
        expires_at=expires_at,
    )
    if replaces is None:
        yield from register(registration)
    else:
        task_id = yield from replace_token(hash_token(replaces), registration, overlap=overlap)
    config = PushConfig(url=url, token=token, task_id=task_id, authentication=minted)
    return Expectation(sender=sender.name, config=config, version=wire_version)


def _end(setting: str, since: datetime, within: timedelta) -> datetime:
    try:
        return since + within
    except OverflowError as exc:
        raise ConfigError(f"{setting}: found {within}, which ends beyond the calendar") from exc


def _check_expected_by_task(
    sender: TrustedSender, task_id: str | None, authentication: str | None
) -> None:
    """Refuse a registration that needs more than a task: AgentVault's config is a URL alone."""
    carries = "since AgentVault's config carries no"
    if task_id is None:
        raise ConfigError(f"task_id: expected one, {carries} token")
    if authentication is not None:
        raise ConfigError(f"authentication: expected none, {carries} credentials")
    if sender.token_required:
        raise ConfigError(
            f"sender {sender.name!r}: token_required: expected false, {carries} token"
        )


def mint_token() -> str:
    """Return a fresh token: 256 random bits, URL-safe."""
    return secrets.token_urlsafe(32)


def mint_authentication(scheme: str) -> Authentication:
    """Return fresh credentials of a scheme, for the agent's push config.

    Args:
        scheme: `Bearer`, `Basic` or `ApiKey`, in the case that the agent wants to read.

    Raises:
        ConfigError: Another scheme.
    """
    secret = mint_token()
    if scheme.lower() not in _MINTED:
        raise ConfigError("authentication: expected Bearer, Basic or ApiKey")
    if scheme.lower() == "basic":  # RFC 7617 §2: already encoded, as the agent writes it verbatim
        secret = base64.b64encode(f"a2a:{secret}".encode()).decode()
    return Authentication(schemes=(scheme,), credentials=secret)
