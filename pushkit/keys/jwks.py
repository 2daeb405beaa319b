"""JWK Sets (RFC 7517 §5): writing a sender's own, and reading another's, which is not trusted."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pushkit.bounded_json import JsonValue, read_json_object
from pushkit.errors import JwksError, MalformedJsonError
from pushkit.keys.jwk import VerificationKey, public_jwk, verification_key

if TYPE_CHECKING:
    from pushkit.keys.ring import KeyRing

__all__ = [
    "MAX_JWKS_BYTES",
    "MAX_JWKS_KEYS",
    "JwksResponse",
    "KeySet",
    "etag_matches",
    "jwks_document",
    "jwks_response",
    "parse_jwks",
]

MAX_JWKS_BYTES: Final = 64 * 1024
MAX_JWKS_KEYS: Final = 32

_MEDIA_TYPE: Final = "application/jwk-set+json"  # RFC 7517 §8.5.2
_ENTITY_TAG: Final = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')  # RFC 9110 §8.8.3
_SHOWN_CHARACTERS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class JwksResponse:
    """The HTTP answer that a JWK Set is served with."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySet:
    """The keys of a JWK Set that may verify.

    Args:
        keys: By kid.
        refused: What was left out: the kid or the position, and the reason.
    """

    keys: Mapping[str, VerificationKey]
    refused: tuple[tuple[str, str], ...] = ()


def jwks_document(ring: KeyRing, now: datetime) -> bytes:
    """Write the ring's published keys as a JWK Set; the same keys give the same bytes."""
    keys: list[JsonValue] = [
        public_jwk(entry.key)
        for entry in sorted(ring.published(now), key=lambda entry: (entry.published_at, entry.kid))
    ]
    return json.dumps({"keys": keys}, sort_keys=True, separators=(",", ":")).encode()


def jwks_response(ring: KeyRing, now: datetime, if_none_match: str | None = None) -> JwksResponse:
    """Answer a GET for the JWK Set (RFC 9110 §13.1.2, RFC 9111 §5.2.2).

    Args:
        ring: The sender's keys.
        now: The present.
        if_none_match: The request's `If-None-Match`, several joined with commas.
    """
    body = jwks_document(ring, now)
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {
        "Cache-Control": f"public, max-age={int(ring.max_age.total_seconds())}",
        "ETag": etag,
    }
    if if_none_match is not None and etag_matches(if_none_match, etag):
        return JwksResponse(status=304, headers=headers, body=b"")
    return JwksResponse(status=200, headers={"Content-Type": _MEDIA_TYPE, **headers}, body=body)


def parse_jwks(body: bytes) -> KeySet:
    """Read a JWK Set from outside.

    A key that is private, symmetric, contradictory or of an unknown type is left out, and so are
    all keys that share a kid and differ (RFC 7517 §5: unknown keys are to be ignored). A set
    without a usable key is still a set: its sender has withdrawn what it had.

    Raises:
        JwksError: Too large, too many keys, or not a JWK Set.
    """
    members = _members(body)
    found: dict[str, list[VerificationKey]] = {}
    refused: list[tuple[str, str]] = []
    for position, member in enumerate(members):
        try:
            key = _key(member)
        except JwksError as exc:
            refused.append((_label(member, position), str(exc)))
        else:
            found.setdefault(key.kid, []).append(key)
    keys = {kid: same[0] for kid, same in found.items() if all(key == same[0] for key in same)}
    ambiguous = [(_cut(kid), "several different keys") for kid in found if kid not in keys]
    return KeySet(keys=keys, refused=(*refused, *ambiguous))


def _members(body: bytes) -> list[JsonValue]:
    if len(body) > MAX_JWKS_BYTES:
        raise JwksError(f"the JWK Set is larger than {MAX_JWKS_BYTES} bytes")
    try:
        members = read_json_object(body).get("keys")
    except MalformedJsonError as exc:
        raise JwksError(f"not a JWK Set: {exc}") from exc
    if not isinstance(members, list):
        raise JwksError("not a JWK Set: expected a member 'keys' that is an array")
    if len(members) > MAX_JWKS_KEYS:
        raise JwksError(f"the JWK Set has {len(members)} keys, expected at most {MAX_JWKS_KEYS}")
    return members


def _key(member: JsonValue) -> VerificationKey:
    if not isinstance(member, dict):
        raise JwksError("expected an object")
    return verification_key(member)


def _label(member: JsonValue, position: int) -> str:
    kid = member.get("kid") if isinstance(member, dict) else None
    return _cut(kid) if isinstance(kid, str) else f"keys[{position}]"


def _cut(kid: str) -> str:
    # What goes to a log is printable and short, whatever a stranger wrote.
    return ascii(kid)[1:-1][:_SHOWN_CHARACTERS]


def etag_matches(if_none_match: str, etag: str) -> bool:
    """Say whether an `If-None-Match` names an entity tag (quoted, without `W/`)."""
    # RFC 9110 §13.1.2 compares weakly (§8.8.3.2): the prefix W/ makes no difference.
    return if_none_match.strip() == "*" or etag in _ENTITY_TAG.findall(if_none_match)
