"""Who is trusted, with which keys, for what. Configured, never received.

A message only selects among what stands here: its `iss` and `kid` are looked up, and nothing that
it names is fetched because it says so. Pure: keys come in as a snapshot, see `TrustSnapshot`;
`receiver.trusted_keys` fetches them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from pushkit.errors import (
    ConfigError,
    InboundError,
    InvalidSignatureError,
    KeysUnavailableError,
)
from pushkit.keys.jwk import Algorithm, VerificationKey
from pushkit.signing.audience import audience_of
from pushkit.signing.notification_jwt import UnverifiedJwt, find_jwt, read_unverified
from pushkit.webhook import Headers
from receiver.limits import RateLimit

__all__ = [
    "DEFAULT_PATH",
    "HeldKeys",
    "Selected",
    "SenderProfile",
    "TaskPolicy",
    "TrustSnapshot",
    "TrustedSender",
    "UnknownSenderError",
    "base_url",
    "check_senders",
    "claimed_jwt",
    "one_of",
    "possible",
    "printable",
]

DEFAULT_PATH = "/a2a/push"

_SHOWN_CHARACTERS = 128

# RFC 3986 §3.3. A query is no part of it, and braces would make a pattern of it.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")
# RFC 9110 §5.6.2: a token; RFC 6901 §3: a pointer.
_ID_FIELD = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+|(?:/(?:[^~/]|~[01])*)+")


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
    UNSIGNED_SECRET_ONLY = "unsigned-secret-only"  # noqa: S105  # a profile's name
    """No signature: the A2A SDKs as they are send a token, or a static `Authorization`, and nothing
    else. Whoever learns that secret can make up any notification, and nobody can see that a body
    was changed on its way."""

    @property
    def signed(self) -> bool:
        """Whether there is a signature to verify."""
        return self is not SenderProfile.UNSIGNED_SECRET_ONLY


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

    Exactly one of `jwks_url`, `jwks_file` and `keys` says which keys it signs with. One that does
    not sign has none, and a path of its own: nothing else tells it apart.

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
        max_body_bytes: Its largest body; None for the receiver's own limit, which it cannot lift.
        rate: How much it may send; None for the receiver's own `sender_rate`.
        id_field: Of an unsigned sender, what names a delivery: a header (`X-Event-Id`), or a member
            of the body as a JSON Pointer (`/statusUpdate/metadata/eventId`). Without it, and
            without a `webhook-id`, such a sender's repetitions are not recognised.
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
    max_body_bytes: int | None = None
    rate: RateLimit | None = None
    id_field: str | None = None

    def __post_init__(self) -> None:
        for mistake in _mistakes_of(self):
            raise ConfigError(f"sender {self.name!r}: {mistake}")


def _mistakes_of(sender: TrustedSender) -> Iterable[str]:
    yield from (
        _mistakes_of_signed(sender) if sender.profile.signed else _mistakes_of_unsigned(sender)
    )
    if not _PATH.fullmatch(sender.path):
        yield "path: expected it to start with /, without query or braces"
    # An empty secret, from a variable that is not set, would be one that everybody knows.
    if not all(secret.strip() for secret in (*sender.tokens, *sender.credentials)):
        yield "an empty token or credential"
    if sender.max_body_bytes is not None and sender.max_body_bytes < 1:
        yield "max_body_bytes: expected at least 1"


def _sources(sender: TrustedSender) -> int:
    return sum(source is not None for source in (sender.jwks_url, sender.jwks_file, sender.keys))


def _mistakes_of_signed(sender: TrustedSender) -> Iterable[str]:
    if _sources(sender) != 1:
        yield "expected exactly one of jwks_url, jwks_file and keys"
    if sender.profile is SenderProfile.STANDARD and not sender.issuer:
        yield "expected issuer, the `iss` that it states"
    if sender.id_field is not None:
        yield "id_field: only an unsigned sender needs one: the others sign their ids"
    for audience in sender.audience:
        audience_of(audience)


def _mistakes_of_unsigned(sender: TrustedSender) -> Iterable[str]:
    if _sources(sender) or sender.issuer or sender.audience:
        yield f"{sender.profile.value}: expected no keys, issuer or audience: it does not sign"
    if sender.id_field is not None and not _ID_FIELD.fullmatch(sender.id_field):
        yield "id_field: expected a header's name, or a JSON Pointer that begins with /"


# --- selecting ----------------------------------------------------------------------------------


class _OfSender(Protocol):
    @property
    def sender(self) -> TrustedSender: ...


_Entry = TypeVar("_Entry", bound=_OfSender)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldKeys:
    """A sender with its keys as they are held at one moment.

    Attributes:
        sender: The sender.
        keys: By `kid`.
        missing: Why there are none, if they could not be had; None otherwise.
    """

    sender: TrustedSender
    keys: Mapping[str, VerificationKey] = field(default_factory=dict)
    missing: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The sender that a request claims to be from, and what is to prove it.

    Attributes:
        sender: The sender.
        jwt: What it signed, parsed; None if it does not sign.
        key: The sender's own key that the JWT names; None if it does not sign.
    """

    sender: TrustedSender
    jwt: UnverifiedJwt | None = None
    key: VerificationKey | None = None


class TrustSnapshot:
    """The trusted senders with their keys at one moment: what `verify_notification` needs.

    Immutable. Keys change: take a new one every few minutes (`fetch_trust`), or when a key file
    has changed.

    Args:
        url: The base URL at which agents reach this receiver, without the senders' paths.
        held: The senders with their keys.
    """

    def __init__(self, url: str, held: Iterable[HeldKeys]) -> None:
        self.url = base_url(url)
        self.held = tuple(held)
        check_senders([entry.sender for entry in self.held])

    def own_url(self, path: str) -> str:
        """Return the URL of this receiver at a sender's path: what `aud` must name."""
        return f"{self.url}{path}"

    def select(self, path: str, headers: Headers) -> Selected:
        """Do step 2, and find the key of step 3: by path, then `iss`, then `kid`.

        Raises:
            UnknownSenderError: No sender, or more than one that cannot be told apart.
            InvalidSignatureError: The sender signs, and there is no JWT by a key of its.
            KeysUnavailableError: The sender's keys are not in this snapshot.
        """
        held = [entry for entry in self.held if entry.sender.path == path]
        jwt = claimed_jwt([entry.sender for entry in held], headers)
        return one_of(possible(held, jwt), jwt)


def base_url(url: str) -> str:
    """Return a receiver's base URL in one spelling.

    Raises:
        ConfigError: No absolute URL, or one with a query.
    """
    normalised = audience_of(url)
    if "?" in normalised:
        raise ConfigError("url: expected a base URL without a query: the senders' paths follow it")
    return normalised.rstrip("/")


def check_senders(senders: Sequence[TrustedSender]) -> None:
    """Refuse senders that could not be told apart.

    Raises:
        ConfigError: Two of one name, or an unsigned one that shares its path.
    """
    names = [sender.name for sender in senders]
    if len(set(names)) != len(names):
        raise ConfigError("two trusted senders have the same name, expected unique names")
    paths = [sender.path for sender in senders]
    for sender in senders:
        if not sender.profile.signed and paths.count(sender.path) > 1:
            raise ConfigError(
                f"sender {sender.name!r}: it does not sign, and shares its path {sender.path}:"
                " expected a path of its own, since nothing else tells it apart"
            )


def claimed_jwt(senders: Sequence[TrustedSender], headers: Headers) -> UnverifiedJwt | None:
    """Return the JWT of a request to these senders; None without one, or if they do not sign.

    Raises:
        InvalidSignatureError: It is none that could be verified.
    """
    # Without a signature a Bearer value is the client's own secret, whatever it looks like.
    compact = find_jwt(headers) if any(sender.profile.signed for sender in senders) else None
    return None if compact is None else read_unverified(compact)


def possible(entries: Sequence[_Entry], jwt: UnverifiedJwt | None) -> list[_Entry]:
    """Return those at a path that a request may be from, by its issuer."""
    if jwt is None:
        return list(entries)
    # Who states an issuer is that sender, if there is one; a sender without an issuer must not
    # stand in its way by publishing a key of the same name.
    exact = [entry for entry in entries if _is_issuer(entry.sender, jwt.issuer)]
    return exact or [entry for entry in entries if _may_issue(entry.sender)]


def one_of(held: Sequence[HeldKeys], jwt: UnverifiedJwt | None) -> Selected:
    """Return the one sender among those that a request may be from, see `TrustSnapshot.select`."""
    if jwt is not None and len(held) > 1:
        held = _with_key(held, jwt.kid)
    if len(held) != 1:
        raise UnknownSenderError("no trusted sender has this path, issuer and key")
    sender = held[0].sender
    if not sender.profile.signed:
        return Selected(sender=sender)
    if jwt is None:
        raise InvalidSignatureError(f"no JWT, expected one from sender {sender.name}")
    key = held[0].keys.get(jwt.kid or "")
    if key is None and held[0].missing is not None:
        raise KeysUnavailableError(held[0].missing)
    if key is None:
        raise InvalidSignatureError(f"kid {printable(jwt.kid)} is no key of sender {sender.name}")
    return Selected(sender=sender, jwt=jwt, key=key)


def _is_issuer(sender: TrustedSender, issuer: str | None) -> bool:
    return issuer is not None and sender.issuer == issuer


def _may_issue(sender: TrustedSender) -> bool:
    """Say whether a sender need not be named by `iss`: the legacy profiles state no issuer."""
    return sender.profile is not SenderProfile.STANDARD


def _with_key(held: Sequence[HeldKeys], kid: str | None) -> list[HeldKeys]:
    """Return the senders that have a key of this name.

    Raises:
        KeysUnavailableError: None has, but not all could be asked. One whose keys are out of reach
            does not stand in the way of another.
    """
    found = [entry for entry in held if (kid or "") in entry.keys]
    unavailable = [entry.missing for entry in held if entry.missing is not None]
    if kid is not None and not found and unavailable:
        raise KeysUnavailableError(unavailable[0])
    return found


def printable(text: str | None) -> str:
    """Return what a sender wrote as it may stand in a log: on one line, and not too long."""
    return "-" if text is None else ascii(text)[1:-1][:_SHOWN_CHARACTERS]
