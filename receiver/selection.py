"""Step 2: which trusted sender a request claims to be from. Pure: it works on keys in memory.

`iss` and `kid` only select among configured senders and their keys; no URL that a message names is
ever fetched. `receiver.trust` fetches the configured ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from pushkit.errors import ConfigError, InboundError, KeysUnavailableError
from pushkit.keys.jwks import KeysByKid
from pushkit.logs import printable
from pushkit.signing.http_message_signatures import (
    UnverifiedHttpSignature,
    read_unverified_signatures,
)
from pushkit.signing.notification_jwt import UnverifiedJwt, find_jwt, read_unverified
from pushkit.signing.scheme import Scheme
from pushkit.url import Url, audience_of
from pushkit.webhook import Headers
from receiver.senders import SenderProfile, TrustedSender, check_senders
from receiver.steps import Step, Trail

if TYPE_CHECKING:
    from pushkit.net.jwks_client import JwksClient

_SHOWN_SENDERS = 5


class UnknownSenderError(InboundError, code="unknown_sender", status=403):
    """No trusted sender fits the path, the issuer and the key of this request."""


class HeldKeys(NamedTuple):
    """A sender with its keys at one moment."""

    sender: TrustedSender
    keys: KeysByKid = MappingProxyType({})
    missing: str | None = None  # the reason, if its keys could not be fetched


class Entry(NamedTuple):
    """A trusted sender, and its keys, or the client that fetches them."""

    sender: TrustedSender
    source: HeldKeys | JwksClient


class ReceiverPath(NamedTuple):
    """One path with the senders that post to it, indexed for step 2."""

    path: str  # as it is configured
    url: str  # its URL, as an audience names it
    entries: Sequence[Entry] = ()
    schemes: frozenset[Scheme] = frozenset()  # the schemes by which any of them signs
    by_issuer: Mapping[str | None, Sequence[Entry]] = MappingProxyType({})
    unnamed: Sequence[Entry] = ()  # the senders that need not state an `iss`


class Stated(NamedTuple):
    """What the signatures of a request state; nothing of it is proven."""

    jwt: UnverifiedJwt | None  # its JWT, parsed
    signatures: Sequence[UnverifiedHttpSignature]  # its HTTP message signatures for us, parsed
    entries: Sequence[Entry]  # the senders that it may be from

    def kids(self, sender: TrustedSender) -> list[str]:
        """Return the key ids that the request names, by the schemes of this sender."""
        jwt, signatures, _ = self
        kids = [jwt.kid] if jwt is not None and jwt.kid and Scheme.JWT in sender.signing else []
        if signatures and Scheme.HTTP_MESSAGE_SIGNATURES in sender.signing:
            kids += [signature.keyid for signature in signatures]
        return kids


def base_url(url: str) -> str:
    """Return a receiver's base URL in one spelling.

    Raises:
        ConfigError: No absolute URL, or one with a query.
    """
    try:
        normalised = audience_of(url)
    except ConfigError as exc:
        raise ConfigError(f"url: {str(exc).removeprefix('audience: ')}") from exc
    if "?" in normalised:
        raise ConfigError("url: expected a base URL without a query: the senders' paths follow it")
    return normalised.rstrip("/")


def path_of(url: str) -> str:
    """Return the decoded path of a base URL, empty if it has none.

    A proxy, or a mount, may take it away from the paths of requests, or leave it.
    """
    return unquote(Url.parse(url).target.rstrip("/"))


def endpoints_of(url: str, entries: Sequence[Entry]) -> Mapping[str, ReceiverPath]:
    """Return the endpoint of each path under a base URL in one spelling.

    Raises:
        ConfigError: Two senders cannot be distinguished.
    """
    check_senders([entry.sender for entry in entries])
    at: dict[str, list[Entry]] = {}
    for entry in entries:
        at.setdefault(entry.sender.path, []).append(entry)
    return {path: _endpoint(url, path, found) for path, found in sorted(at.items())}


def by_request_path(url: str, endpoints: Mapping[str, ReceiverPath]) -> Mapping[str, ReceiverPath]:
    """Return endpoints by the decoded paths that requests may have, with the URL's own and without.

    What is signed contains the URL's own.

    Raises:
        ConfigError: One path could mean two of them.
    """
    found = {unquote(path): endpoint for path, endpoint in endpoints.items()}
    prefix = path_of(url)
    for path, endpoint in list(found.items()):
        other = found.setdefault(f"{prefix}{path}", endpoint)
        if other is not endpoint:
            raise ConfigError(
                f"paths {endpoint.path} and {other.path}: with the path {prefix} of url, the first"
                " is the second: expected paths of which each is another sender's, with it too"
            )
    return found


def _endpoint(url: str, path: str, entries: Sequence[Entry]) -> ReceiverPath:
    by_issuer: dict[str | None, list[Entry]] = {}
    for entry in entries:
        if entry.sender.issuer is not None:
            by_issuer.setdefault(entry.sender.issuer, []).append(entry)
    return ReceiverPath(
        path,
        audience_of(f"{url}{path}"),
        tuple(entries),
        frozenset[Scheme]().union(*[entry.sender.signing for entry in entries]),
        by_issuer,
        [entry for entry in entries if _may_issue(entry.sender)],
    )


def read_signatures(endpoint: ReceiverPath, headers: Headers, trail: Trail) -> Stated:
    """Begin step 2: read the signatures, and find by path and `iss` whose they may be.

    Where senders with different schemes share a path, a signature that cannot be read is ignored if
    another one can.

    Raises:
        InvalidSignatureError: A signature cannot be read.
        MalformedRequestError: The headers of a signature cannot be read.
    """
    jwt: UnverifiedJwt | None = None
    signatures: Sequence[UnverifiedHttpSignature] = ()
    unread: InboundError | None = None
    if Scheme.JWT in endpoint.schemes:
        try:
            # None for a Bearer value that is no JWT: that is the client's own secret.
            compact = find_jwt(headers)
            jwt = None if compact is None else read_unverified(compact)
        except InboundError as exc:
            unread = exc
    if Scheme.HTTP_MESSAGE_SIGNATURES in endpoint.schemes:
        try:
            signatures = read_unverified_signatures(headers)
        except InboundError as exc:
            unread = exc
    if unread is not None and (len(endpoint.entries) == 1 or not (jwt or signatures)):
        trail.begun.append(Step.SIGNATURE)  # it is not known whose it is
        raise unread
    trail.begun.append(Step.SENDER)
    return Stated(jwt, signatures, _possible(endpoint, jwt))


def keys_at_hand(stated: Stated) -> list[HeldKeys] | None:
    """Return the keys that a request names; None if some of them may have to be fetched."""
    held = []
    for sender, source in stated.entries:
        if isinstance(source, HeldKeys):
            held.append(source)
            continue
        keys = source.at_hand(stated.kids(sender))
        if keys is None:
            return None
        held.append(HeldKeys(sender, keys))
    return held


def select_sender(endpoint: ReceiverPath, stated: Stated, held: Sequence[HeldKeys]) -> HeldKeys:
    """Do the rest of step 2: return the one sender that fits, with its keys.

    Raises:
        UnknownSenderError: No sender fits, or more than one.
        KeysUnavailableError: The keys of those that may fit could not be fetched.
    """
    if len(held) > 1 and (stated.jwt is not None or stated.signatures):
        held = _with_key(held, stated)
    if len(held) != 1:
        fitting = [entry.sender for entry in held]
        among = [entry.sender for entry in endpoint.entries]
        raise UnknownSenderError(_unknown(stated, fitting, among))
    return held[0]


def _possible(endpoint: ReceiverPath, jwt: UnverifiedJwt | None) -> Sequence[Entry]:
    """Return the senders at a path that a request may be from, by its issuer."""
    if jwt is None:
        return endpoint.entries
    # A stated `iss` selects that sender alone: one without an issuer must not be able to make the
    # choice ambiguous by publishing a key with the same `kid`.
    return endpoint.by_issuer.get(jwt.issuer) or endpoint.unnamed


def _unknown(stated: Stated, found: Sequence[TrustedSender], among: Sequence[TrustedSender]) -> str:
    """Return the reason of a refusal: what was found and expected, without secrets."""
    if not among:
        return "no trusted sender has this path: post to the URL of the push config"
    came = [f"kid {printable(signature.keyid)}" for signature in stated.signatures]
    if stated.jwt is not None:
        came.insert(0, f"iss {printable(stated.jwt.issuer)} kid {printable(stated.jwt.kid)}")
    known = [
        f"{sender.name} ({f'iss {sender.issuer}' if sender.issuer else 'by its keys'})"
        for sender in (found or among)
    ]
    more = f" and {len(known) - _SHOWN_SENDERS} more" if len(known) > _SHOWN_SENDERS else ""
    shown = ", ".join(known[:_SHOWN_SENDERS]) + more
    if not came:
        return f"found no signature, expected one by a sender of this path: {shown}"
    if not found:
        return f"found {' and '.join(came)}, expected a trusted sender of this path: {shown}"
    several = "which is more than one sender of this path"
    return f"found {' and '.join(came)}, {several}: {shown}; give each a path of its own"


def _may_issue(sender: TrustedSender) -> bool:
    """Return whether a sender need not state an `iss`: the legacy profiles have none."""
    return sender.profile is not SenderProfile.STANDARD or Scheme.JWT not in sender.signing


def _with_key(held: Sequence[HeldKeys], stated: Stated) -> list[HeldKeys]:
    """Return the senders that have a key with a `kid` that the request names.

    Raises:
        KeysUnavailableError: No sender has one, but the keys of some could not be fetched.
    """
    named = [(entry, stated.kids(entry.sender)) for entry in held]
    found = [entry for entry, kids in named if any(kid in entry.keys for kid in kids)]
    unavailable = [entry.missing for entry, kids in named if kids and entry.missing is not None]
    if not found and unavailable:
        raise KeysUnavailableError(unavailable[0])
    return found
