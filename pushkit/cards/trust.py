"""The keys that the operator trusts for cards, per origin of the card.

A card names its own key (`kid`, `jku`), and so does a forged one: if `jku` were a trust root,
forgers could nominate their own key (A2A#2096). Both only select among the keys configured here,
or in a TOML file:

[origins."https://agent.example.com"]
jwks_urls = ["https://agent.example.com/.well-known/jwks.json"]
revoked = { "a kid or thumbprint" = 2026-05-01T12:00:00Z }

[[origins."https://agent.example.com".keys]]
file = "agent.pem"                    # PEM or a JWK Set, beside this file
kid = "key-1"                         # PEM: its thumbprint if left out
alg = "PS256"                         # of keys that state none; by their type if left out
not_before = 2026-01-01T00:00:00Z
expires_at = 2027-01-01T00:00:00Z
revoked_at = 2026-05-01T12:00:00Z
"""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pushkit.errors import ConfigError, InvalidUrlError, JwksError, KeyFileError, PushkitError
from pushkit.files import read_file
from pushkit.keys.jwk import Algorithm, VerificationKey, thumbprint, verification_key_from_pem
from pushkit.keys.jwks import parse_jwks_file
from pushkit.record import record
from pushkit.url import Url, is_http_url, masked_url

_logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKey:
    """A key that the operator trusts, and for how long."""

    key: VerificationKey
    jwks_url: str | None = None  # the trusted URL that it was fetched from; None for a pinned key
    not_before: datetime | None = None  # when the key starts to count
    # When the key stops counting, also for what it signed before: a card bears no date.
    expires_at: datetime | None = None
    revoked_at: datetime | None = None  # the same, for a key that was withdrawn

    def __post_init__(self) -> None:
        for moment in (self.not_before, self.expires_at, self.revoked_at):
            if moment is not None and moment.utcoffset() is None:
                raise ConfigError("a trusted key: expected times with a time zone")

    def objection(self, now: datetime) -> str | None:
        """Return why the key does not count at a time; None if it does."""
        if self.revoked_at is not None and now >= self.revoked_at:
            return f"key {self.key.kid!a} was revoked at {self.revoked_at.isoformat()}"
        if self.expires_at is not None and now >= self.expires_at:
            return f"key {self.key.kid!a} expired at {self.expires_at.isoformat()}"
        if self.not_before is not None and now < self.not_before:
            return f"key {self.key.kid!a} counts from {self.not_before.isoformat()} on"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKeys:
    """The keys that are trusted for one card."""

    keys: tuple[TrustedKey, ...] = ()  # pinned and fetched
    jwks_urls: tuple[str, ...] = ()  # of the trusted JWK Sets, whether or not they were fetched
    unavailable: tuple[str, ...] = ()  # those of `jwks_urls` that could not be fetched

    @classmethod
    def pinned(cls, *keys: VerificationKey) -> TrustedKeys:
        """Return trust in keys that the operator holds, without an expiry."""
        return cls(keys=tuple(TrustedKey(key=key) for key in keys))

    def candidates(self, kid: str | None, jku: str | None) -> list[TrustedKey]:
        """Return the keys to try for a signature with this `kid` and `jku`.

        A trusted `jku` selects the keys published there and the pinned ones; any other `jku` is
        ignored. A known `kid` selects its keys. An unknown `kid` is ignored, because the operator
        may have pinned the key under another name than the signer's.
        """
        found = list(self.keys)
        if jku in self.jwks_urls:
            found = [entry for entry in found if entry.jwks_url in (None, jku)]
        named = [entry for entry in found if entry.key.kid == kid]
        return named or found


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginTrust:
    """What the operator trusts for the cards of one origin."""

    keys: tuple[TrustedKey, ...] = ()  # pinned
    # A key that is removed from its JWK Set stops counting when the cached set expires.
    jwks_urls: tuple[str, ...] = ()
    # When keys were withdrawn, by `kid` or RFC 7638 thumbprint. From then on they do not count,
    # even where they are still published.
    revoked: Mapping[str, datetime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for url in self.jwks_urls:
            try:
                Url.parse(url)
            except InvalidUrlError as exc:
                raise ConfigError(f"trusted JWK Sets: {exc}") from exc
        # A JWK Set may have any key. Of pinned keys alone, such a name would revoke nothing: a PEM
        # file does not say under which `kid` its key signs.
        names = {name for e in self.keys for name in (e.key.kid, thumbprint(e.key.public_key))}
        if names and not self.jwks_urls and (unknown := self.revoked.keys() - names):
            raise ConfigError(
                f"revoked: {', '.join(map(ascii, sorted(unknown)))}: found no pinned key of this"
                f" kid or thumbprint, expected one of {', '.join(map(ascii, sorted(names)))}"
            )


# --- from files ---------------------------------------------------------------------------------

_ORIGIN: Final = {"jwks_urls": list, "keys": list, "revoked": dict}
_TIMES: Final = {"not_before": datetime, "expires_at": datetime, "revoked_at": datetime}
_KEY: Final = {"file": str, "kid": str, "alg": str, **_TIMES}
_EXPECTED: Final = {
    str: "a string",
    datetime: "a time, like 2027-01-01T00:00:00Z without quotes",
    list: "an array",
    dict: "a table",
}
_PEM_KEY: Final = re.compile(b"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.DOTALL)


def load_card_trust(path: str | Path) -> dict[str, OriginTrust]:
    """Read a trust file into the origins of a `CardTrust`.

    Raises:
        ConfigError: The file cannot be read, or has an unknown member or a wrong value.
    """
    path = Path(path)
    try:
        document = tomllib.loads(read_file(path).decode("utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or 'cannot be read'}") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: not TOML: {exc}") from exc
    try:
        origins = _members(document, "expected tables", {"origins": dict}).get("origins", {})
        return {name: _origin(name, entry, path.parent) for name, entry in origins.items()}
    except PushkitError as exc:
        raise ConfigError(f"{path}: {exc}") from exc


@record(frozen=True, slots=True, kw_only=True)
class NamedTrust:
    """The trust that the options of a command name, as paths and URLs.

    Attributes:
        keys: Trust these public keys: files in PEM, or JWK Sets.
        jwks: Trust these JWK Sets: files, or https URLs.
        trust_file: Trust the keys in this TOML file, for each origin; instead of the others.
    """

    keys: tuple[Path, ...] = ()
    jwks: tuple[str, ...] = ()
    trust_file: Path | None = None

    def load(self, *origins: str) -> dict[str, OriginTrust]:
        """Return the origins of a `CardTrust`; these for keys that are named without an origin.

        Raises:
            ConfigError: A file or a URL is not what it should be.
            KeyFileError: A file has no public key.
        """
        if self.trust_file is not None:
            return load_card_trust(self.trust_file)
        files = (*self.keys, *self.jwks_files)
        given = OriginTrust(
            keys=tuple(TrustedKey(key=key) for path in files for key in load_public_keys(path)),
            jwks_urls=tuple(filter(is_http_url, self.jwks)),
        )
        return dict.fromkeys(origins, given)

    @property
    def jwks_files(self) -> tuple[Path, ...]:
        """The JWK Sets that are files."""
        return tuple(Path(where) for where in self.jwks if not is_http_url(where))


def load_public_keys(
    path: str | Path, *, kid: str | None = None, algorithm: Algorithm | None = None
) -> list[VerificationKey]:
    """Read the public keys in a file, which is PEM or a JWK Set; unusable keys of a set are logged.

    `kid` (for one key) is only for PEM; if None, it is a key's thumbprint. `algorithm` is for keys
    that do not state their own; if None, it follows from their type.

    Raises:
        KeyFileError: The file cannot be read, or holds no public key.
        JwksError: The file looks like a JWK Set, but is not one.
    """
    path = Path(path)
    try:
        content = read_file(path)
    except OSError as exc:
        raise KeyFileError(f"{path}: {exc.strerror or 'cannot be read'}") from exc
    except ValueError as exc:  # a null character in it
        raise KeyFileError(f"{str(path)!r}: not a path") from exc
    is_pem = content.lstrip()[:1] != b"{"
    if not is_pem and kid is not None:
        raise KeyFileError(f"{path}: `kid` is for PEM; a JWK Set states its own")
    try:
        if is_pem:
            return _keys_in_pem(content, kid, algorithm)
        found = parse_jwks_file(content, path, [algorithm] if algorithm else list(Algorithm))
    except (KeyFileError, JwksError) as exc:
        raise type(exc)(f"{path}: {exc}") from exc
    if found.refused:
        _logger.warning("%s: left out: %s", path, found.left_out())
    return list(found.keys)


def _keys_in_pem(
    content: bytes, kid: str | None, algorithm: Algorithm | None
) -> list[VerificationKey]:
    blocks = _PEM_KEY.findall(content)
    # A file with one key may be a certificate. The issuers' certificates in it sign no cards.
    if len(blocks) < 2:
        return [verification_key_from_pem(content, kid=kid, algorithm=algorithm)]
    if kid is not None:
        raise KeyFileError(f"`kid` names one key, found {len(blocks)}")
    return [verification_key_from_pem(block, algorithm=algorithm) for block in blocks]


def _origin(name: str, entry: object, folder: Path) -> OriginTrust:
    try:
        Url.parse(name)
        found = _members(entry, "expected a table", _ORIGIN)
        return OriginTrust(
            keys=tuple(key for table in found.get("keys", ()) for key in _keys(table, folder)),
            jwks_urls=tuple(_is(url, str, "jwks_urls") for url in found.get("jwks_urls", ())),
            revoked={
                kid: _is(moment, datetime, f"revoked.{kid}")
                for kid, moment in found.get("revoked", {}).items()
            },
        )
    except PushkitError as exc:
        raise ConfigError(f"origins.{masked_url(name)!r}: {exc}") from exc


def _keys(table: object, folder: Path) -> list[TrustedKey]:
    found = _members(table, "keys: expected tables", _KEY)
    file, kid, alg = (found.pop(name, None) for name in ("file", "kid", "alg"))
    if not file:
        raise ConfigError("keys: expected a `file`")
    algorithm = Algorithm.parse(alg) if alg is not None else None
    if alg is not None and algorithm is None:
        raise ConfigError(f"keys: alg: expected one of {', '.join(Algorithm)}")
    keys = load_public_keys(folder / file, kid=kid, algorithm=algorithm)
    return [TrustedKey(key=key, **found) for key in keys]


def _members(table: object, otherwise: str, types: Mapping[str, type]) -> dict[str, Any]:
    """Return the members of a table, whose names and types are checked."""
    if not isinstance(table, dict):
        raise ConfigError(otherwise)
    # A misspelt `expires_at` must not yield a key that never expires.
    if unknown := sorted(table.keys() - types):
        raise ConfigError(f"unknown: {', '.join(unknown)}; expected {', '.join(sorted(types))}")
    return {name: _is(value, types[name], name) for name, value in table.items()}


def _is(value: object, type_: type, name: str) -> Any:
    if not isinstance(value, type_):
        raise ConfigError(f"{name}: expected {_EXPECTED[type_]}")
    if isinstance(value, datetime) and value.utcoffset() is None:
        raise ConfigError(f"{name}: expected a time with a zone, like 2027-01-01T00:00:00Z")
    return value
