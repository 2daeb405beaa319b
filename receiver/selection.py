"""Step 2: which trusted sender a request claims to be from. Pure, over a snapshot of keys.

Configured, never received: `iss` and `kid` are looked up among what is trusted, and nothing that a
message names is fetched because it says so. `receiver.trusted_keys` fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pushkit.errors import ConfigError, InboundError, InvalidSignatureError, KeysUnavailableError
from pushkit.keys.jwk import VerificationKey
from pushkit.logs import printable
from pushkit.signing.http_message_signatures import (
    TAG,
    UnverifiedHttpSignature,
    read_unverified_signatures,
)
from pushkit.signing.notification_jwt import UnverifiedJwt, find_jwt, read_unverified
from pushkit.signing.scheme import Scheme
from pushkit.url import audience_of
from pushkit.webhook import Headers
from receiver.trust import SenderProfile, TrustedSender, check_senders

_SHOWN_SENDERS = 5


class UnknownSenderError(InboundError, code="unknown_sender", status=403):
    """No trusted sender fits the path, the issuer and the key of this request."""


class HeldKeys(NamedTuple):
    """A sender with its keys as they are held at one moment."""

    sender: TrustedSender
    keys: Mapping[str, VerificationKey] = MappingProxyType({})  # by `kid`
    missing: str | None = None  # why there are none, if they could not be had; None otherwise


class Claimed(NamedTuple):
    """What a request says of who signed it. Nothing here is proven."""

    jwt: UnverifiedJwt | None = None  # its JWT, parsed
    # Its HTTP message signatures for us, parsed.
    signatures: tuple[UnverifiedHttpSignature, ...] = ()

    def kids(self, sender: TrustedSender) -> list[str]:
        """Return the keys that it names, of a sender that signs so."""
        jwt, signatures = self
        kids = [jwt.kid] if jwt is not None and jwt.kid and Scheme.JWT in sender.signing else []
        if signatures and Scheme.HTTP_MESSAGE_SIGNATURES in sender.signing:
            kids += [signature.keyid for signature in signatures]
        return kids


class KeysOf(NamedTuple):
    """What step 2 asks: the keys of these senders, as far as the request names them."""

    senders: Sequence[TrustedSender]
    says: Claimed


class Selected(NamedTuple):
    """The sender that a request claims to be from, and what is to prove it."""

    sender: TrustedSender
    jwt: UnverifiedJwt | None = None  # the JWT, parsed; None if it does not sign so
    # The sender's own key that the JWT names; None if it does not sign so.
    key: VerificationKey | None = None
    # Its HTTP message signatures, each with the sender's own key that it names; empty if it does
    # not sign so. One that holds is enough: two keys may sign during a rotation.
    signatures: tuple[tuple[UnverifiedHttpSignature, VerificationKey], ...] = ()


class TrustSnapshot:
    """The trusted senders with their keys at one moment: what `verify_notification` needs.

    Immutable. Keys change: take a new one every few minutes (`fetch_trust`), or when a key file
    has changed.

    Args:
        url: The base URL at which agents reach this receiver, without the senders' paths.
        held: The senders with their keys.
    """

    def __init__(self, url: str, held: Iterable[HeldKeys]) -> None:
        self.url: str = base_url(url)
        self.held: tuple[HeldKeys, ...] = tuple(held)
        check_senders([entry.sender for entry in self.held])

    def at(self, path: str) -> Sequence[TrustedSender]:
        """Return the senders at a path."""
        return [entry.sender for entry in self.held if entry.sender.path == path]

    def at_hand(self, asked: KeysOf) -> list[HeldKeys]:
        """Return the keys that are asked for."""
        names = {sender.name for sender in asked.senders}
        return [entry for entry in self.held if entry.sender.name in names]


def base_url(url: str) -> str:
    """Return a receiver's base URL in one spelling.

    Raises:
        ConfigError: No absolute URL, or one with a query.
    """
    normalised = audience_of(url)
    if "?" in normalised:
        raise ConfigError("url: expected a base URL without a query: the senders' paths follow it")
    return normalised.rstrip("/")


def keys_to_ask_for(among: Sequence[TrustedSender], headers: Headers) -> KeysOf:
    """Begin step 2: by path, then `iss`, whose keys are needed.

    Args:
        among: All senders at the request's path.
        headers: The request's.

    Raises:
        InvalidSignatureError: A signature cannot be read.
        MalformedRequestError: The headers of a signature cannot be read.
    """
    says = _claimed(among, headers)
    return KeysOf(_possible(among, says), says)


def select(among: Sequence[TrustedSender], says: Claimed, held: Sequence[HeldKeys]) -> Selected:
    """Do the rest of step 2, and find the key of step 3: by `kid`.

    Args:
        among: All senders at the request's path.
        says: What the request claims.
        held: The possible senders with their keys.

    Raises:
        UnknownSenderError: No sender, or more than one that cannot be told apart.
        InvalidSignatureError: The sender signs, and there is no signature by a key of its.
        KeysUnavailableError: The sender's keys are not to be had.
    """
    if len(held) > 1 and (says.jwt is not None or says.signatures):
        held = _with_key(held, says)
    if len(held) != 1:
        raise UnknownSenderError(_unknown(says, [entry.sender for entry in held], among))
    sender = held[0].sender
    by_jwt = Scheme.JWT in sender.signing
    by_http = Scheme.HTTP_MESSAGE_SIGNATURES in sender.signing
    return Selected(
        sender,
        says.jwt if by_jwt else None,
        _key_of_jwt(held[0], says.jwt) if by_jwt else None,
        _by_own_keys(held[0], says.signatures) if by_http else (),
    )


def _claimed(among: Sequence[TrustedSender], headers: Headers) -> Claimed:
    """Read what a request says of who signed it.

    Of several senders, one need not sign as another does: what cannot be read then may be anything,
    as long as something else says whom the request is from.
    """
    schemes = among[0].signing if len(among) == 1 else _schemes_of(among)
    jwt: UnverifiedJwt | None = None
    signatures: tuple[UnverifiedHttpSignature, ...] = ()
    unread: InboundError | None = None
    if Scheme.JWT in schemes:
        try:
            # Without a signature a Bearer value is the client's own secret, whatever it looks like.
            compact = find_jwt(headers)
            jwt = None if compact is None else read_unverified(compact)
        except InboundError as exc:
            unread = exc
    if Scheme.HTTP_MESSAGE_SIGNATURES in schemes:
        try:
            signatures = tuple(read_unverified_signatures(headers))
        except InboundError as exc:
            unread = exc
    if unread is not None and (len(among) == 1 or not (jwt or signatures)):
        raise unread
    return Claimed(jwt, signatures)


def _schemes_of(senders: Sequence[TrustedSender]) -> frozenset[Scheme]:
    return frozenset[Scheme]().union(*[sender.signing for sender in senders])


def _possible(senders: Sequence[TrustedSender], says: Claimed) -> Sequence[TrustedSender]:
    """Return those at a path that a request may be from, by its issuer."""
    if says.jwt is None:
        return senders
    # Who states an issuer is that sender, if there is one; a sender without an issuer must not
    # stand in its way by publishing a key of the same name.
    issuer = says.jwt.issuer
    exact = [sender for sender in senders if issuer is not None and sender.issuer == issuer]
    return exact or [sender for sender in senders if _may_issue(sender)]


def _unknown(says: Claimed, found: Sequence[TrustedSender], among: Sequence[TrustedSender]) -> str:
    """Say what came and what is expected: what is first got wrong, and no secret."""
    if not among:
        return "no trusted sender has this path"
    came = [f"kid {printable(signature.keyid)}" for signature in says.signatures]
    if says.jwt is not None:
        came.insert(0, f"iss {printable(says.jwt.issuer)} kid {printable(says.jwt.kid)}")
    fits = "fits more than one sender" if found else "fits no sender"
    known = [
        f"{sender.name} ({f'iss {sender.issuer}' if sender.issuer else 'by its keys'})"
        for sender in (found or among)
    ]
    more = f" and {len(known) - _SHOWN_SENDERS} more" if len(known) > _SHOWN_SENDERS else ""
    shown = ", ".join(known[:_SHOWN_SENDERS]) + more
    return f"{' and '.join(came) or 'no signature'} {fits} of this path: {shown}"


def _key_of_jwt(held: HeldKeys, jwt: UnverifiedJwt | None) -> VerificationKey:
    if jwt is None:
        raise InvalidSignatureError(f"no JWT, expected one from sender {held.sender.name}")
    key = held.keys.get(jwt.kid or "")
    if key is None:
        raise _no_key(held, jwt.kid)
    return key


def _by_own_keys(
    held: HeldKeys, signatures: Sequence[UnverifiedHttpSignature]
) -> tuple[tuple[UnverifiedHttpSignature, VerificationKey], ...]:
    if not signatures:
        raise InvalidSignatureError(
            f"no HTTP message signature with tag {TAG}, expected one from sender {held.sender.name}"
        )
    own = tuple((one, held.keys[one.keyid]) for one in signatures if one.keyid in held.keys)
    if not own:
        raise _no_key(held, signatures[0].keyid)
    return own


def _no_key(held: HeldKeys, kid: str | None) -> InboundError:
    if held.missing is not None:
        return KeysUnavailableError(held.missing)
    return InvalidSignatureError(f"kid {printable(kid)} is no key of sender {held.sender.name}")


def _may_issue(sender: TrustedSender) -> bool:
    """Say whether a sender need not be named by `iss`: the legacy profiles state no issuer."""
    return sender.profile is not SenderProfile.STANDARD or Scheme.JWT not in sender.signing


def _with_key(held: Sequence[HeldKeys], says: Claimed) -> list[HeldKeys]:
    """Return the senders that have a key of a name that is claimed.

    Raises:
        KeysUnavailableError: None has, but not all could be asked. One whose keys are out of reach
            does not stand in the way of another.
    """
    named = [(entry, says.kids(entry.sender)) for entry in held]
    found = [entry for entry, kids in named if any(kid in entry.keys for kid in kids)]
    unavailable = [entry.missing for entry, kids in named if kids and entry.missing is not None]
    if not found and unavailable:
        raise KeysUnavailableError(unavailable[0])
    return found
