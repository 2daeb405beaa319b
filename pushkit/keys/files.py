"""The key file, and the sources from which a sender takes its key ring.

A key file is one JSON file of mode 0600 with a whole ring, replaced atomically. Its private keys
are PKCS#8 PEM (RFC 7468 §10, §11), encrypted if there is a passphrase. Changes are made by
`update_key_ring`, so that none is lost if two processes rotate at the same time.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol, TypeVar

from pushkit.bounded_json import JsonObject, JsonValue, read_json_object
from pushkit.errors import ConfigError, KeyFileError, KeyRingError, MalformedJsonError
from pushkit.files import locked, read_private, replace_private
from pushkit.keys.jwk import (
    Algorithm,
    RemoteKey,
    RemoteSigner,
    SigningKey,
    signing_key_from_pem,
    signing_key_to_pem,
)
from pushkit.keys.ring import ALWAYS, KeyRing, RingKey
from pushkit.options import check_type

_logger = logging.getLogger(__name__)

_FORMAT: Final = "pushkit-key-ring"
_VERSION: Final = 1
_MADE_BY: Final = "pushkit keys new"
_MAX_SECONDS: Final = 10 * 365 * 86400

_T = TypeVar("_T", bound=JsonValue)


def load_key_ring(path: str | Path, passphrase: bytes | None = None) -> KeyRing:
    """Read a key file.

    Raises:
        KeyFileError: It does not exist, is not a regular file, others may read or write it, it has
            wrong contents or a newer format, or the passphrase is wrong or missing.
    """
    check_type("passphrase", passphrase, bytes | None)
    path = Path(path)
    contents = read_private(path, made_by=_MADE_BY)
    if not contents:
        raise KeyFileError(
            f"{path}: empty, expected a key file: delete it; `pushkit keys new {path}` makes one"
        )
    if contents.lstrip().startswith(b"-----BEGIN"):
        raise KeyFileError(
            f"{path}: found PEM, expected a key file: `pushkit keys import {path}` makes one of it"
        )
    document = _document(path, contents)
    try:
        return _ring(document, passphrase)
    except (KeyFileError, KeyRingError) as exc:
        raise KeyFileError(f"{path}: {exc}") from exc


def save_key_ring(path: str | Path, ring: KeyRing, passphrase: bytes | None = None) -> None:
    """Write a key file, over one that exists; use `update_key_ring` to change a ring.

    Raises:
        KeyFileError: The file is another one, or cannot be read or written.
    """
    check_type("ring", ring, KeyRing)
    check_type("passphrase", passphrase, bytes | None)
    path = Path(path)
    with locked(path):
        if path.exists() and (former := read_private(path, made_by=_MADE_BY)):
            _document(path, former)
        replace_private(path, _contents(ring, passphrase))


def create_key_ring(path: str | Path, ring: KeyRing, passphrase: bytes | None = None) -> None:
    """Write a key file that must not exist yet.

    Raises:
        KeyFileError: It exists, or cannot be written.
    """
    path = Path(path)
    with locked(path):
        if path.exists():
            raise KeyFileError(f"{path}: the file exists; its keys would be lost")
        replace_private(path, _contents(ring, passphrase))


def update_key_ring(
    path: str | Path, change: Callable[[KeyRing], KeyRing], passphrase: bytes | None = None
) -> KeyRing:
    """Read a key file, change the ring and write it, under the lock `<path>.lock`.

    Waits for another process that holds the lock. If `change` raises, nothing is written.

    Raises:
        KeyFileError: The file cannot be read or written; see `load_key_ring`.
    """
    path = Path(path)
    with locked(path):
        ring = change(load_key_ring(path, passphrase))
        replace_private(path, _contents(ring, passphrase))
    return ring


# --- its contents --------------------------------------------------------------------------------


def _contents(ring: KeyRing, passphrase: bytes | None) -> bytes:
    document: JsonObject = {
        "format": _FORMAT,
        "version": _VERSION,
        "default_algorithm": ring.default_algorithm.value,
        "max_age_seconds": ring.max_age.total_seconds(),
        "activation_lead_seconds": ring.activation_lead.total_seconds(),
        "grace_seconds": ring.grace.total_seconds(),
        "keys": [_key_document(entry, passphrase) for entry in ring.keys],
    }
    return json.dumps(document, indent=2).encode() + b"\n"


def _key_document(entry: RingKey, passphrase: bytes | None) -> JsonObject:
    if not isinstance(entry.key, SigningKey):
        raise KeyFileError(f"a remote signer keeps key {entry.kid}: it cannot be written")
    return {
        "kid": entry.kid,
        "algorithm": entry.algorithm.value,
        "published_at": entry.published_at.isoformat(),
        "activates_at": entry.activates_at.isoformat() if entry.activates_at else None,
        "revoked_at": entry.revoked_at.isoformat() if entry.revoked_at else None,
        "private_key": signing_key_to_pem(entry.key, passphrase).decode("ascii"),
    }


def _document(path: Path, contents: bytes) -> JsonObject:
    """Return the JSON of a key file, of any version."""
    try:
        document = read_json_object(contents)
    except MalformedJsonError as exc:
        raise KeyFileError(f"{path}: {exc}") from exc
    if document.get("format") != _FORMAT:
        raise KeyFileError(f"{path}: not a key file: format is not {_FORMAT!r}")
    return document


def _ring(document: JsonObject, passphrase: bytes | None) -> KeyRing:
    version = _member(document, "version", int, "an integer")
    if version != _VERSION:
        newer = ": written by a newer pushkit" if version > _VERSION else ""
        raise KeyFileError(f"version is {version}, expected {_VERSION}{newer}")
    keys = []
    for number, entry in enumerate(_member(document, "keys", list, "an array")):
        try:
            keys.append(_ring_key(entry, passphrase))
        except (ConfigError, KeyRingError) as exc:
            raise KeyFileError(f"keys[{number}]: {exc}") from exc
    return KeyRing(
        keys=tuple(keys),
        default_algorithm=_algorithm(document, "default_algorithm"),
        max_age=_seconds(document, "max_age_seconds"),
        activation_lead=_seconds(document, "activation_lead_seconds"),
        grace=_seconds(document, "grace_seconds"),
    )


def _ring_key(document: JsonValue, passphrase: bytes | None) -> RingKey:
    if not isinstance(document, dict):
        raise KeyFileError("expected an object")
    published_at = _moment(document, "published_at")
    if published_at is None:
        raise KeyFileError("published_at: expected a time, found null")
    key = signing_key_from_pem(
        _member(document, "private_key", str, "a string").encode(),
        passphrase,
        kid=_member(document, "kid", str, "a string"),
        algorithm=_algorithm(document, "algorithm"),
    )
    return RingKey(
        key=key,
        published_at=published_at,
        activates_at=_moment(document, "activates_at"),
        revoked_at=_moment(document, "revoked_at"),
    )


def _member(document: Mapping[str, JsonValue], name: str, type_: type[_T], expected: str) -> _T:
    # The message never holds the value: it may be a private key in the wrong place.
    value = document.get(name)
    if not isinstance(value, type_) or isinstance(value, bool):
        raise KeyFileError(
            f"{name}: {'missing' if value is None else 'wrong'}, expected {expected}"
        )
    return value


def _algorithm(document: Mapping[str, JsonValue], name: str) -> Algorithm:
    algorithm = Algorithm.parse(_member(document, name, str, "a string"))
    if algorithm is None:
        raise KeyFileError(f"{name}: expected one of {', '.join(Algorithm)}")
    return algorithm


def _seconds(document: Mapping[str, JsonValue], name: str) -> timedelta:
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KeyFileError(f"{name}: expected a number of seconds")
    if not 0 <= value <= _MAX_SECONDS:
        raise KeyFileError(f"{name}: expected 0 to {_MAX_SECONDS} seconds")
    return timedelta(seconds=value)


def _moment(document: Mapping[str, JsonValue], name: str) -> datetime | None:
    """Read a time (RFC 3339 §5.6) or null; the member must not be missing."""
    if name in document and document[name] is None:
        return None
    text = _member(document, name, str, "a time or null")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise KeyFileError(f"{name}: expected a time like 2026-01-31T12:00:00Z") from exc
    if moment.utcoffset() != timedelta(0):
        raise KeyFileError(f"{name}: expected a time in UTC, ending in Z or +00:00")
    return moment.astimezone(UTC)


# --- sources -------------------------------------------------------------------------------------


class KeySource(Protocol):
    """Provides the current key ring."""

    def ring(self) -> KeyRing:
        """Return the current ring; cheap enough to be called for every signature."""
        ...


class FileKeySource:
    """A key file, read again whenever it has changed.

    A file that becomes unreadable later does not stop the sender: the last good ring stays in use,
    and one error is logged for each unreadable version.

    Raises:
        KeyFileError: The file cannot be read at the start.
    """

    def __init__(
        self,
        path: str | Path,
        passphrase: bytes | None = None,
        # Called with the old and the new ring after a change.
        changed: Callable[[KeyRing, KeyRing], None] = lambda _before, _now: None,
    ) -> None:
        self._changed = changed
        self._path = Path(path).absolute()  # whatever directory the process changes to
        self._passphrase = passphrase
        # Before the read: if the file is replaced in between, the next call reads it again.
        self._seen = self._logged = fingerprint(self._path)
        self._ring = load_key_ring(self._path, passphrase)

    def ring(self) -> KeyRing:
        """Return the ring in the file, or the last good one."""
        found = fingerprint(self._path)
        if found == self._seen:
            return self._ring
        try:
            ring = load_key_ring(self._path, self._passphrase)
        except KeyFileError as exc:
            if found != self._logged:
                # Without the traceback: the message never holds key material.
                _logger.error("the key ring read before stays in use: %s", exc)  # noqa: TRY400
            self._logged = found
            # With too many open files, for example, another attempt may succeed. Without one, a
            # revoked key would sign until the file changes again.
            if not isinstance(exc.__cause__, OSError):
                self._seen = found
            return self._ring
        self._seen, before, self._ring = found, self._ring, ring
        self._changed(before, ring)
        return ring


def key_source(
    keys: KeySource | RemoteSigner | str | Path,
    passphrase: bytes | None = None,
    changed: Callable[[KeyRing, KeyRing], None] = lambda _before, _now: None,
) -> KeySource:
    """Return a source of `keys`: itself if it is one, a key file, or a signer's key.

    Raises:
        KeyFileError: `keys` is a path, and the file cannot be read.
        ConfigError: `keys` is none of these, or a signer whose public key cannot be read.
    """
    if isinstance(keys, str | Path):
        return FileKeySource(keys, passphrase, changed)
    if isinstance(keys, RemoteSigner):
        # The key is older than this process, and signs from the start.
        return KeyRing.create(ALWAYS, key=RemoteKey.of(keys))
    if not hasattr(keys, "ring"):
        raise ConfigError(
            f"keys: found {type(keys).__name__},"
            " expected the path of a key file, a KeyRing, a KeySource or a RemoteSigner"
        )
    return keys


def fingerprint(path: Path) -> tuple[int, ...] | None:
    """Return a value that changes when the file is replaced, written, or its mode changed."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # missing, or not a valid path
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev, status.st_size)
