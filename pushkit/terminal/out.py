"""The files that commands write: a file is replaced only by one of its own kind."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import click

from pushkit.errors import ConfigError
from pushkit.files import unmarked
from pushkit.terminal.options import PATH, OptionDecorator, gathered

_MAX_CHECKED_BYTES: Final = 1024 * 1024
# What must not be lost, by bytes that are in it, for the message.
_PRECIOUS: Final = {
    b"PRIVATE KEY-----": "a file with private keys",
    b"psk1_": "a file with secret keys",
    b"SQLite format 3\0": "a database",
}


class FileKind(NamedTuple):
    """A kind of file that a command writes."""

    name: str  # with its article
    fits: Callable[[bytes], bool]  # whether a file with this content is one


@dataclass(frozen=True, slots=True, kw_only=True)
class OutFile:
    """The file that a command writes."""

    path: Path | None  # None for standard output
    force: bool = False  # replace it whatever it is

    def check(self, kind: FileKind) -> None:
        """Check that the file may be replaced: it is missing, empty, of this kind, or a device.

        Raises:
            ConfigError: It is another file, and `force` is not set.
        """
        if self.path is None or self.force or not self.path.is_file():
            return
        try:
            with self.path.open("rb") as file:
                content = unmarked(file.read(_MAX_CHECKED_BYTES))
        except OSError as exc:
            raise ConfigError(
                f"{self.path}: cannot be read to see what would be lost ({exc.strerror}):"
                " choose another file, or --force replaces it"
            ) from exc
        if not content.strip() or kind.fits(content):
            return
        found = next((name for mark, name in _PRECIOUS.items() if mark in content), "another file")
        raise ConfigError(
            f"{self.path}: found {found}, expected {kind.name} or no file: choose another file, or"
            " --force replaces it"
        )

    def write(self, content: bytes, kind: FileKind) -> None:
        """Write content of this kind to the file, or to standard output.

        A file is replaced as a whole: it may be served meanwhile, or be the one that was read, and
        a full disk must not leave half of it.

        Raises:
            ConfigError: As for `check`.
        """
        path = self.path
        if path is None:
            click.echo(content, nl=False)
            return
        self.check(kind)
        try:
            is_other = path.exists() and not path.is_file()  # a pipe or a device
            if is_other or not os.access(path.resolve().parent, os.W_OK):
                path.write_bytes(content)
            else:
                _replace(path.resolve(), content)
        except OSError as exc:
            raise click.FileError(str(path), exc.strerror) from exc


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_bytes(content)
        if target.exists():
            status = target.stat()
            if os.geteuid() == 0:
                os.chown(temporary, status.st_uid, status.st_gid)
            temporary.chmod(stat.S_IMODE(status.st_mode))
        temporary.replace(target)
    except OSError as exc:
        if exc.errno != errno.EBUSY:
            raise
        target.write_bytes(content)  # a mount of its own, as in a container: it stays in place
    finally:
        temporary.unlink(missing_ok=True)


def out_options(
    name: str = "--out", says: str = "The file to write.  [default: standard output]"
) -> OptionDecorator:
    """Add this option and `--force` to a command, which gets an `OutFile` as `out`."""

    def make(*, path: Path | None, force: bool) -> OutFile:
        if force and path is None:
            raise click.UsageError(f"--force is only for {name}")
        return OutFile(path=path, force=force)

    return gathered(
        "out",
        make,
        path=click.option(name, "path", type=PATH, help=says),
        force=click.option(
            "--force", is_flag=True, help=f"Replace another kind of file by {name}."
        ),
    )
