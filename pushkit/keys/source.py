"""Sources of a sender's key ring: a value, or a file that another process may change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from pushkit.errors import ConfigError, KeyFileError
from pushkit.keys.files import load_key_ring
from pushkit.keys.remote import RemoteKey, RemoteSigner
from pushkit.keys.ring import ALWAYS, KeyRing

_logger = logging.getLogger(__name__)


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
        self._seen = fingerprint(self._path)
        self._ring = load_key_ring(self._path, passphrase)

    def ring(self) -> KeyRing:
        """Return the ring in the file, or the last good one."""
        found = fingerprint(self._path)
        if found == self._seen:
            return self._ring
        self._seen, before = found, self._ring
        try:
            self._ring = load_key_ring(self._path, self._passphrase)
        except KeyFileError as exc:
            # Without the traceback: the message never holds key material.
            _logger.error("the key ring read before stays in use: %s", exc)  # noqa: TRY400
        else:
            self._changed(before, self._ring)
        return self._ring


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
