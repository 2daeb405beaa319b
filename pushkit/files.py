"""Files: texts as editors save them, and files that hold secrets.

Some texts begin with a byte order mark, some are not UTF-8. Of a file with secrets, other users may
read nothing, and it is replaced atomically. A group of this process may read it, too: Kubernetes
passes secrets this way to a service that does not run as root (`fsGroup`).
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import glob
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pushkit.errors import ConfigError, KeyFileError
from pushkit.url import shown_path

# UTF-32's mark in little-endian order begins with that of UTF-16.
_OTHERS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}


def unmarked(content: bytes) -> bytes:
    """Return the content of a file without the byte order mark of UTF-8.

    Raises:
        OSError: It has the mark of UTF-16 or UTF-32; `strerror` says so.
    """
    for mark, name in _OTHERS.items():
        if content.startswith(mark):
            raise OSError(errno.EILSEQ, f"found {name}, expected UTF-8: save the file as UTF-8")
    return content.removeprefix(codecs.BOM_UTF8)


def read_file(path: Path) -> bytes:
    """Return the content of a text file without a byte order mark.

    Raises:
        OSError: It cannot be read, or is not UTF-8 by its mark.
    """
    return unmarked(path.read_bytes())


def read_text(path: Path, *, setting: str) -> str:
    """Return the text of a file that a setting names. Raises ConfigError: it cannot be read."""
    try:
        return read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
        raise ConfigError(f"{setting}: cannot read {path}: {reason}") from exc


# --- files that hold secrets ---------------------------------------------------------------------

_MODE: Final = 0o600
_MAX_BYTES: Final = 1024 * 1024


@contextlib.contextmanager
def _os_errors_of(path: Path) -> Iterator[None]:
    """Raise a `KeyFileError` that names the file in place of an `OSError`."""
    try:
        yield
    except PermissionError as exc:  # mostly for its lock or a new file, not for the file itself
        raise KeyFileError(
            f"{shown_path(path)}: {exc.filename}: {exc.strerror}; to change the file,"
            f" {_ourselves()} must be able to write its folder and its lock"
        ) from exc
    except OSError as exc:
        raise KeyFileError(f"{shown_path(path)}: {exc.strerror or 'cannot be accessed'}") from exc


def read_private(path: Path, *, made_by: str) -> bytes:
    """Read a file that only its owner may read, or a group of this process.

    `made_by` is the command that makes such a file, for the message.

    Raises:
        KeyFileError: It cannot be read, is not a regular file, others may read or write it, or it
            is too large.
    """
    with _os_errors_of(path):
        # Non-blocking: opening a named pipe would wait for a writer. The opened file is checked:
        # it cannot be exchanged afterwards.
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as exc:
            shown = shown_path(path)
            making = f"{made_by} {shlex.quote(shown)}"
            raise KeyFileError(f"{shown}: does not exist; `{making}` makes one") from exc
        except ValueError as exc:  # a null character in it
            raise KeyFileError(f"{path}: not a path") from exc
        except PermissionError as exc:
            raise KeyFileError(f"{path}: may not be read by {_ourselves()}") from exc
        with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor, not a path
            _require_private(path, os.fstat(descriptor))
            contents = unmarked(file.read(_MAX_BYTES + 1))
    if len(contents) > _MAX_BYTES:
        raise KeyFileError(f"{path}: larger than {_MAX_BYTES} bytes; not a key file")
    return contents


def _require_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise KeyFileError(f"{path}: not a regular file")
    mode = stat.S_IMODE(status.st_mode)
    if mode & ~stat.S_IRGRP & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(
            f"{path}: has mode {mode:04o}, expected {_MODE:04o}, as others may read or write it:"
            f" chmod 600 {shlex.quote(str(path))}"
        )
    if mode & stat.S_IRGRP and status.st_gid not in _groups():
        raise KeyFileError(
            f"{path}: has mode {mode:04o}, so that it may be read by the group {status.st_gid},"
            f" which is no group of {_ourselves()}: chmod 600 {shlex.quote(str(path))}, or in"
            f" Kubernetes set fsGroup: {status.st_gid}"
        )


def _groups() -> set[int]:
    return {os.getegid(), *os.getgroups()}


def _ourselves() -> str:
    groups = ", ".join(map(str, sorted(_groups())))
    return f"this process (user {os.geteuid()}, groups {groups})"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock `<path>.lock`, with links resolved; wait for another process that holds it.

    Raises:
        KeyFileError: In place of an `OSError`, also one that is raised under the lock.
    """
    import fcntl  # not on Windows, where requests and cards are verified, too

    if not path.name:  # like the path of an empty string, from a variable that is not set
        raise KeyFileError(f"{path}: a folder, expected a file")
    with _os_errors_of(path):
        target = path.resolve()
        lock = target.with_name(target.name + ".lock")
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        try:
            _keep_owner(descriptor, path)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)  # releases the lock


def replace_private(path: Path, contents: bytes) -> None:
    """Replace a file so that a crash at any time leaves the whole old one, or the whole new one.

    Raises:
        KeyFileError: The contents are too large to be read again.
    """
    if len(contents) > _MAX_BYTES:
        raise KeyFileError(
            f"{path}: would have {len(contents)} bytes, expected at most {_MAX_BYTES};"
            " the file is unchanged"
        )
    target = path.resolve()  # the file that a symbolic link leads to, not the link
    # No other process writes under the lock: these files were left by one that was killed. The
    # pattern has the digits, or it would match those of `keys.json` beside a file `keys`.
    for left in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 16}.tmp"):
        left.unlink(missing_ok=True)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            _keep_owner(descriptor, target)
            _keep_readers(descriptor, target)
            file.write(contents)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _keep_owner(descriptor: int, like: Path) -> None:
    """Keep the owner of a file that root changes, so that the service can still read it."""
    if os.geteuid() == 0 and like.exists():
        status = like.stat()
        os.fchown(descriptor, status.st_uid, status.st_gid)


def _keep_readers(descriptor: int, like: Path) -> None:
    """Keep the group that may read the file, if this process may set it."""
    if not like.exists() or not like.stat().st_mode & stat.S_IRGRP:
        return
    with contextlib.suppress(PermissionError):
        os.fchown(descriptor, -1, like.stat().st_gid)
        os.fchmod(descriptor, _MODE | stat.S_IRGRP)
