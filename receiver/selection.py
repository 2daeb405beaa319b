"""Step 2: which trusted sender a request claims to be from. Pure, over a snapshot of keys.

Configured, never received: `iss` and `kid` are looked up among what is trusted, and nothing that a
message names is fetched because it says so. `receiver.trusted_keys` fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pushkit.errors import (
    ConfigError,
    InboundError,
    InvalidSignatureError,
    KeysUnavailableError,
)
from pushkit.keys.jwk import VerificationKey
from pushkit.signing.audience import audience_of
from pushkit.signing.notification_jwt import UnverifiedJwt, find_jwt, read_unverified
from pushkit.webhook import Headers
from receiver.trust import SenderProfile, TrustedSender, check_senders

__all__ = [
    "HeldKeys",
    "Selected",
    "TrustSnapshot",
    "UnknownSenderError",
    "base_url",
    "claimed_jwt",
    "one_of",
    "possible",
    "printable",
]

_SHOWN_CHARACTERS = 128


class UnknownSenderError(InboundError):
    """No trusted sender fits the path, the issuer and the key of this request."""

    code = "unknown_sender"
    status = 403


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
