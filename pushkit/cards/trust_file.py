"""The operator's trust in cards, as a TOML file.

[origins."https://agent.example.com"]
jwks_urls = ["https://agent.example.com/.well-known/jwks.json"]
revoked = { "a kid or thumbprint" = 2026-05-01T12:00:00Z }

[[origins."https://agent.example.com".keys]]
file = "agent.pem"                    # PEM or a JWK Set, beside this file
kid = "key-1"                         # PEM: its thumbprint if left out
alg = "ES256"                         # PEM: what follows from its type if left out
not_before = 2026-01-01T00:00:00Z
expires_at = 2027-01-01T00:00:00Z
revoked_at = 2026-05-01T12:00:00Z
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from pushkit.cards.trust import OriginTrust, TrustedKey
from pushkit.errors import ConfigError, KeyFileError, PushkitError
from pushkit.keys.jwk import Algorithm, VerificationKey, verification_key_from_pem
from pushkit.keys.jwks import parse_jwks

__all__ = ["load_card_trust", "load_public_keys"]

_T = TypeVar("_T")
_D = TypeVar("_D")

_ORIGIN_MEMBERS: Final = {"jwks_urls", "keys", "revoked"}
_KEY_MEMBERS: Final = {"file", "kid", "alg", "not_before", "expires_at", "revoked_at"}


def load_card_trust(path: str | Path) -> dict[str, OriginTrust]:
    """Read a trust file; the result is for `CardTrust`.

    Raises:
        ConfigError: It cannot be read, or says something that is not understood.
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or 'cannot be read'}") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: not TOML: {exc}") from exc
    try:
        _only(document, {"origins"})
        origins = _member(document, "origins", dict, {})
        return {name: _origin(name, entry, path.parent) for name, entry in origins.items()}
    except PushkitError as exc:
        raise ConfigError(f"{path}: {exc}") from exc


def load_public_keys(
    path: str | Path, *, kid: str | None = None, algorithm: Algorithm | None = None
) -> list[VerificationKey]:
    """Read the public keys in a file: PEM, or a JWK Set.

    Args:
        path: The file.
        kid: The name of a PEM key; its thumbprint if None.
        algorithm: What a PEM key verifies; what follows from its type if None.

    Raises:
        KeyFileError: It cannot be read, or holds no public key.
        JwksError: A JWK Set that is none.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise KeyFileError(f"{path}: {exc.strerror or 'cannot be read'}") from exc
    if content.lstrip()[:1] != b"{":
        return [verification_key_from_pem(content, kid=kid, algorithm=algorithm)]
    if kid is not None or algorithm is not None:
        raise KeyFileError(f"{path}: a JWK Set says itself what its keys are called and are for")
    keys = list(parse_jwks(content).keys.values())
    if not keys:
        raise KeyFileError(
            f"{path}: no usable key in the JWK Set; `pushkit keys export` writes one of a key file"
        )
    return keys


def _origin(name: str, entry: object, folder: Path) -> OriginTrust:
    if not isinstance(entry, dict):
        raise ConfigError(f"origins.{name!r}: expected a table")
    try:
        _only(entry, _ORIGIN_MEMBERS)
        keys = _member(entry, "keys", list, [])
        urls = _member(entry, "jwks_urls", list, [])
        revoked = _member(entry, "revoked", dict, {})
        return OriginTrust(
            keys=tuple(key for table in keys for key in _keys(table, folder)),
            jwks_urls=tuple(_is(url, str, "jwks_urls") for url in urls),
            revoked={kid: _is(at, datetime, f"revoked.{kid}") for kid, at in revoked.items()},
        )
    except PushkitError as exc:
        raise ConfigError(f"origins.{name!r}: {exc}") from exc


def _keys(table: object, folder: Path) -> list[TrustedKey]:
    if not isinstance(table, dict):
        raise ConfigError("keys: expected tables")
    _only(table, _KEY_MEMBERS)
    file = _member(table, "file", str, "")
    if not file:
        raise ConfigError("keys: expected a `file`")
    alg = _member(table, "alg", str, None)
    algorithm = Algorithm.parse(alg) if alg is not None else None
    if alg is not None and algorithm is None:
        raise ConfigError(f"keys: alg: expected one of {', '.join(Algorithm)}")
    found = load_public_keys(
        folder / file, kid=_member(table, "kid", str, None), algorithm=algorithm
    )
    return [
        TrustedKey(
            key=key,
            not_before=_member(table, "not_before", datetime, None),
            expires_at=_member(table, "expires_at", datetime, None),
            revoked_at=_member(table, "revoked_at", datetime, None),
        )
        for key in found
    ]


def _only(table: Mapping[str, object], known: set[str]) -> None:
    # A misspelt `expires_at` must not mean a key without an end.
    if unknown := sorted(table.keys() - known):
        raise ConfigError(f"unknown: {', '.join(unknown)}; expected {', '.join(sorted(known))}")


def _member(table: Mapping[str, object], name: str, type_: type[_T], default: _D) -> _T | _D:
    return _is(table[name], type_, name) if name in table else default


def _is(value: object, type_: type[_T], name: str) -> _T:
    if not isinstance(value, type_):
        expected = {str: "a string", datetime: "a time", list: "an array", dict: "a table"}[type_]
        raise ConfigError(f"{name}: expected {expected}")
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise ConfigError(f"{name}: expected a time with a zone, like 2027-01-01T00:00:00Z")
    return value
