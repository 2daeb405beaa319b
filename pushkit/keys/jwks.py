"""JWK Sets (RFC 7517 §5): writing a sender's own, and reading untrusted ones."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from pushkit.bounded_json import JsonValue, read_json_object
from pushkit.errors import JwksError, KeyFileError, MalformedJsonError
from pushkit.keys.jwk import (
    MAX_JWKS_KEYS,
    Algorithm,
    VerificationKey,
    is_public_jwk,
    public_jwk,
    verification_key,
)
from pushkit.logs import printable

if TYPE_CHECKING:
    from pushkit.keys.ring import KeyRing
    from pushkit.webhook import DocumentResponse

JWKS_PATH: Final = "/.well-known/jwks.json"
"""Where a sender publishes its keys, unless it says otherwise."""
MAX_JWKS_BYTES: Final = 64 * 1024

_MEDIA_TYPE: Final = "application/jwk-set+json"  # RFC 7517 §8.5.2


KeysByKid: TypeAlias = Mapping[str, Sequence[VerificationKey]]
"""Keys by `kid`: those with the same one are for different algorithms (RFC 7517 §4.5)."""


class KeySet(NamedTuple):
    """The keys of a JWK Set that may verify."""

    keys: Sequence[VerificationKey]
    # The keys that were left out: the kid or the position, and the reason.
    refused: tuple[tuple[str, str], ...] = ()

    def left_out(self) -> str:
        """Return the keys that were left out with the reasons, for one line of the log."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.refused:
            by_reason.setdefault(reason, []).append(name)
        return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())


def jwks_document(ring: KeyRing, now: datetime) -> bytes:
    """Write the ring's published keys as a JWK Set; the same keys give the same bytes."""
    keys: list[JsonValue] = [
        public_jwk(entry.key)
        for entry in sorted(ring.published(now), key=lambda entry: (entry.published_at, entry.kid))
    ]
    return json.dumps({"keys": keys}, sort_keys=True, separators=(",", ":")).encode()


def jwks_response(
    ring: KeyRing, now: datetime, if_none_match: str | None = None
) -> DocumentResponse:
    """Answer a GET for the JWK Set, given its `If-None-Match` (several joined with commas)."""
    from pushkit.webhook import document_response  # verifiers do not need it

    body = jwks_document(ring, now)
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return document_response(body, _MEDIA_TYPE, tag, ring.max_age, if_none_match)


def keys_by_kid(keys: Iterable[VerificationKey]) -> dict[str, list[VerificationKey]]:
    """Return keys by their `kid`."""
    found: dict[str, list[VerificationKey]] = {}
    for key in keys:
        found.setdefault(key.kid, []).append(key)
    return found


def key_for(keys: Sequence[VerificationKey], alg: str | None) -> VerificationKey | None:
    """Return the key for the algorithm that a message names, of those with the `kid` it names.

    If none is for it, any of them, which then refuses the message: the key determines the
    algorithm (RFC 8725 §3.1). None if there are no keys.
    """
    algorithm = Algorithm.parse(alg or "")
    return next((key for key in keys if key.algorithm is algorithm), next(iter(keys), None))


def parse_jwks(body: bytes, algorithms: Collection[Algorithm] = frozenset(Algorithm)) -> KeySet:
    """Read an untrusted JWK Set, of an owner who may sign with these algorithms.

    A key that is private, symmetric, contradictory or of an unknown type is left out, and so are
    keys that share kid and algorithm, and differ (RFC 7517 §5: unknown keys are to be ignored). A
    set without a usable key is still a set: its sender has withdrawn its keys.

    Raises:
        JwksError: Too large, too many keys, or not a JWK Set.
    """
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
    found: dict[tuple[str, Algorithm], VerificationKey] = {}
    ambiguous: set[tuple[str, Algorithm]] = set()
    refused: list[tuple[str, str]] = []
    for position, member in enumerate(members):
        if not isinstance(member, dict):
            refused.append((f"keys[{position}]", "expected an object"))
            continue
        try:
            key = verification_key(member, algorithms)
        except JwksError as exc:
            kid = member.get("kid")
            label = printable(kid) if isinstance(kid, str) else f"keys[{position}]"
            refused.append((label, str(exc)))
        else:
            name = (key.kid, key.algorithm)
            if found.setdefault(name, key) != key:
                ambiguous.add(name)
    refused += [
        (printable(kid), f"several different keys for {algorithm}")
        for kid, algorithm in found
        if (kid, algorithm) in ambiguous
    ]
    keys = [key for name, key in found.items() if name not in ambiguous]
    return KeySet(keys=keys, refused=tuple(refused))


def is_jwks(content: bytes) -> bool:
    """Return whether this is a JWK Set of public keys, usable or not."""
    try:
        keys = read_json_object(content).get("keys")
    except MalformedJsonError:
        return False
    return isinstance(keys, list) and all(map(is_public_jwk, keys))


def parse_jwks_file(
    content: bytes,
    path: str | Path,
    algorithms: Collection[Algorithm] = frozenset(Algorithm),
) -> KeySet:
    """Read a JWK Set that an operator keeps in a file: at least one key has to be usable.

    Raises:
        JwksError: As for `parse_jwks`.
        KeyFileError: No key is usable, or it is a key file of pushkit.
    """
    found = parse_jwks(content, algorithms)
    if found.keys:
        return found
    if b"PRIVATE KEY-----" in content:
        raise KeyFileError(
            "a key file with private keys, expected public keys:"
            f" `pushkit keys export --keys {shlex.quote(str(path))} --out jwks.json` writes them"
        )
    reasons = f": {found.left_out()}" if found.refused else ""
    raise KeyFileError(
        f"no usable key in the JWK Set{reasons}; `pushkit keys export` writes the set of a key file"
    )
