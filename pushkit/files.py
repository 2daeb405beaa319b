"""Text files as editors save them: some begin with a byte order mark, some are not UTF-8."""

from __future__ import annotations

import codecs
import errno
from pathlib import Path

from pushkit.errors import ConfigError

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
