"""Who is trusted, with which keys, for what. Configured, never received.

A message only selects among what stands here: its `iss` and `kid` are looked up, and nothing that
it names is fetched because it says so.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from pushkit.errors import (
    ConfigError,
    DestinationRefusedError,
    InboundError,
    JwksError,
    KeysUnavailableError,
)
from pushkit.keys.jwk import Algorithm, VerificationKey
from pushkit.keys.jwks import parse_jwks
from pushkit.net.jwks_client import JwksClient, StaticKeys, VerificationKeys, fetch_jwks
from pushkit.net.transport import Transport
from pushkit.signing.audience import audience_of
from pushkit.signing.notification_jwt import UnverifiedJwt

__all__ = [
    "PresentedToken",
    "SenderProfile",
    "TaskPolicy",
    "Trust",
    "TrustedSender",
    "UnknownSenderError",
    "sender_keys",
]

DEFAULT_PATH = "/a2a/push"

# RFC 3986 §3.3. A query is no part of it, and braces would make a pattern of it.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")


class UnknownSenderError(InboundError):
    """No trusted sender fits the path, the issuer and the key of this request."""

    code = "unknown_sender"
    status = 403


class SenderProfile(StrEnum):
    """How a sender signs."""

    STANDARD = "standard"
    """The notification JWT of pushkit: `iss`, `aud`, `iat`, `exp`, `jti` and the body's hash are
    required; `taskId`, `configId` and `seq` are taken where they are stated."""
    A2A_SAMPLES = "a2a-samples"
    """The first A2A samples: only `iat` and the body's hash, which may be over a compact
    re-serialisation of the body. No audience and no id: weaker, so it is named."""
    TRPC_A2A_GO = "trpc-a2a-go"
    """trpc-a2a-go: only `iat` and the hash of the raw body."""


class TaskPolicy(StrEnum):
    """Which tasks a sender may speak of (A2A §4.3.3: the client must check)."""

    REGISTERED = "registered"
    """Tokens and tasks that were registered with `expect()`."""
    BIND = "bind"
    """The first notification with a token binds its task to it."""
    ANY = "any"
    """Every task: signature and token alone decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedSender:
    """One agent that may send notifications.

    Exactly one of `jwks_url`, `jwks_file` and `keys` says which keys it signs with.

    Attributes:
        name: Short and unique: for logs, callbacks and the inbox.
        issuer: The `iss` that it states; required in the standard profile.
        jwks_url: Where its JWK Set is fetched, pinned.
        jwks_file: A JWK Set in a file.
        keys: Keys by `kid`, already loaded.
        path: Where its notifications arrive.
        audience: URLs that its `aud` may name; by default the receiver's own URL and this path.
        profile: How it signs.
        algorithms: What it may sign with.
        tolerance: How far its `iat` may be from now.
        tokens: Static tokens that it was given out of band.
        token_required: Whether a notification without a token is refused.
        credentials: Static `Authorization` values (`Bearer abc`) or API keys that it was given;
            one of them must arrive if there are any.
        tasks: Which tasks it may speak of.
    """

    name: str
    issuer: str | None = None
    jwks_url: str | None = None
    jwks_file: Path | None = None
    keys: Mapping[str, VerificationKey] | None = None
    path: str = DEFAULT_PATH
    audience: Sequence[str] = ()
    profile: SenderProfile = SenderProfile.STANDARD
    algorithms: frozenset[Algorithm] = frozenset(Algorithm)
    tolerance: timedelta = timedelta(seconds=300)
    tokens: Sequence[str] = field(default=(), repr=False)
    token_required: bool = True
    credentials: Sequence[str] = field(default=(), repr=False)
    tasks: TaskPolicy = TaskPolicy.REGISTERED

    def __post_init__(self) -> None:
        sources = [self.jwks_url, self.jwks_file, self.keys]
        if sum(source is not None for source in sources) != 1:
            raise ConfigError(
                f"sender {self.name!r}: expected exactly one of jwks_url, jwks_file and keys"
            )
        if self.profile is SenderProfile.STANDARD and not self.issuer:
            raise ConfigError(f"sender {self.name!r}: expected issuer, the `iss` that it states")
        if not _PATH.fullmatch(self.path):
            raise ConfigError(
                f"sender {self.name!r}: path: expected it to start with /, without query or braces"
            )
        # An empty secret, from a variable that is not set, would be one that everybody knows.
        if not all(secret.strip() for secret in (*self.tokens, *self.credentials)):
            raise ConfigError(f"sender {self.name!r}: an empty token or credential")
        for audience in self.audience:
            audience_of(audience)


@dataclass(frozen=True, slots=True, kw_only=True)
class PresentedToken:
    """The token of a request, by its hash.

    Attributes:
        sha256: Its hash.
        static: It is one that the sender was given out of band; else it must be registered.
    """

    sha256: str
    static: bool


@dataclass(frozen=True, slots=True)
class _Entry:
    sender: TrustedSender
    keys: VerificationKeys


class Trust:
    """The trusted senders, each with where its keys are found."""

    def __init__(self, senders: Sequence[tuple[TrustedSender, VerificationKeys]]) -> None:
        names = [sender.name for sender, _ in senders]
        if len(set(names)) != len(names):
            raise ConfigError("two trusted senders have the same name, expected unique names")
        self._entries = [_Entry(sender, keys) for sender, keys in senders]

    def paths(self) -> set[str]:
        """Return every path at which notifications arrive."""
        return {entry.sender.path for entry in self._entries}

    def keys_by_sender(self) -> dict[str, VerificationKeys]:
        """Return where each sender's keys are found, by the sender's name."""
        return {entry.sender.name: entry.keys for entry in self._entries}

    async def close(self) -> None:
        """Stop the fetching of keys."""
        for entry in self._entries:
            await entry.keys.close()

    async def select(
        self, path: str, token: UnverifiedJwt | None
    ) -> tuple[TrustedSender, VerificationKeys]:
        """Return the sender that a request claims to be from: by path, then `iss`, then `kid`.

        Raises:
            UnknownSenderError: None, or more than one that cannot be told apart.
        """
        entries = [entry for entry in self._entries if entry.sender.path == path]
        if token is not None:
            # Who states an issuer is that sender, if there is one; a sender without an issuer must
            # not stand in its way by publishing a key of the same name.
            exact = [entry for entry in entries if _is_issuer(entry.sender, token.issuer)]
            entries = exact or [entry for entry in entries if _may_issue(entry.sender)]
            if len(entries) > 1:
                entries = await _with_key(entries, token.kid)
        if len(entries) != 1:
            raise UnknownSenderError("no trusted sender has this path, issuer and key")
        return entries[0].sender, entries[0].keys


def _is_issuer(sender: TrustedSender, issuer: str | None) -> bool:
    return issuer is not None and sender.issuer == issuer


def _may_issue(sender: TrustedSender) -> bool:
    """Say whether a sender's signature need not name it: the legacy profiles state no issuer."""
    return sender.profile is not SenderProfile.STANDARD


async def _with_key(entries: Sequence[_Entry], kid: str | None) -> list[_Entry]:
    """Return the senders that have a key of this name.

    Raises:
        KeysUnavailableError: None has, but not all could be asked. One whose keys are out of reach
            does not stand in the way of another.
    """
    found: list[_Entry] = []
    unavailable: KeysUnavailableError | None = None
    for entry in entries:
        try:
            if kid is not None and await entry.keys.find(kid) is not None:
                found.append(entry)
        except KeysUnavailableError as exc:
            unavailable = exc
    if not found and unavailable is not None:
        raise unavailable
    return found


def sender_keys(
    sender: TrustedSender, transport: Transport, clock: Callable[[], datetime]
) -> VerificationKeys:
    """Return where a sender's keys are found: its pinned URL, its file, or its configuration.

    Raises:
        ConfigError: The file cannot be read, holds no usable key, or the URL is refused.
    """
    if sender.keys is not None:
        return StaticKeys(sender.keys.values())
    if sender.jwks_file is not None:
        return StaticKeys(_keys_in_file(sender.name, sender.jwks_file).values())
    url = sender.jwks_url or ""
    try:
        transport.policy.check(url)
    except DestinationRefusedError as exc:
        raise ConfigError(f"sender {sender.name!r}: jwks_url: {exc}") from exc
    return JwksClient(url, fetch=functools.partial(fetch_jwks, transport), clock=clock)


def _keys_in_file(name: str, path: Path) -> Mapping[str, VerificationKey]:
    try:
        keys = parse_jwks(path.read_bytes()).keys
    except OSError as exc:
        raise ConfigError(f"sender {name!r}: jwks_file: {path}: {exc.strerror}") from exc
    except JwksError as exc:
        raise ConfigError(f"sender {name!r}: jwks_file: {path}: {exc}") from exc
    if not keys:
        raise ConfigError(f"sender {name!r}: jwks_file: {path}: no usable key")
    return keys
