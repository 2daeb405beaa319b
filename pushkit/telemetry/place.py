"""The files of a process that counts together with others: one for each kind of metric.

They are written through memory mappings, which outlive their names: whoever cleans `/tmp` removes
the names, and no process would read the files of the others any more. So each looks for its own
from time to time, and writes them anew.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import prometheus_client

from pushkit.telemetry.together import DIRECTORY

_log = logging.getLogger("pushkit.telemetry")

# The files that each process writes, and a size above all their needs.
_KINDS: Final = ("counter", "histogram", "gauge_livesum")
_FILE_BYTES: Final = 1024 * 1024


class _Files:
    """The files of this process."""

    def __init__(self, folder: Path, place: str) -> None:
        self._folder = folder
        # Files that are written anew have the other name, at which prometheus-client opens them.
        self._names = (place, f"{place}b")
        found = (name for name in self._names if self._path("counter", name).exists())
        self.name: str = next(found, place)
        self._path("gauge_livesum", self.name).unlink(missing_ok=True)  # gauges start again
        for kind in _KINDS:
            _reserve(self._path(kind, self.name))
        self._open = self._opened(self.name)

    def keep(self) -> None:
        """Write the files anew if one of them was removed; log that, and whether it failed."""
        if all(self._path(kind, self.name).exists() for kind in _KINDS):
            return
        old, new = self.name, self._names[self.name == self._names[0]]
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for kind, file in self._open.items():
                content = os.pread(file, os.fstat(file).st_size, 0)
                self._path(kind, new).write_bytes(content)
            opened = self._opened(new)
        except OSError as exc:
            text = "metrics: files in %s were removed, and cannot be written anew: %s"
            _log.warning(text, self._folder, exc.strerror)
            return
        for file in self._open.values():
            os.close(file)
        self._open, self.name = opened, new
        for kind in _KINDS:
            self._path(kind, old).unlink(missing_ok=True)
        _log.warning("metrics: files in %s were removed, and are written anew", self._folder)

    def _opened(self, name: str) -> dict[str, int]:
        return {kind: os.open(self._path(kind, name), os.O_RDONLY) for kind in _KINDS}

    def _path(self, kind: str, name: str) -> Path:
        return self._folder / f"{kind}_{name}.db"


_own: list[_Files] = []  # of this process, if it has a place


def count_in_place(place: str | None) -> None:
    """Continue the files of the process that this one replaced; call it before counting anything.

    Otherwise the files of every process that died would stay, and be read at every scrape. Does
    nothing without a place, or if processes do not count together.

    Raises:
        OSError: The disk is full.
    """
    folder = shared_folder()
    if place is None or folder is None:
        return
    _own[:] = [files := _Files(folder, place)]
    counting = prometheus_client.values
    counting.ValueClass = counting.MultiProcessValue(lambda: files.name)  # type: ignore[no-untyped-call]


def keep_files() -> None:
    """Write this process's files anew if they were removed."""
    for files in _own:
        files.keep()


def shared_folder() -> Path | None:
    """Return the folder of processes that count together, made again if `/tmp` was cleaned."""
    directory = os.environ.get(DIRECTORY)
    if not directory:
        return None
    folder = Path(directory)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _reserve(path: Path) -> None:
    """Create a file with all of its disk space allocated, unless it exists.

    The file is written through a memory mapping: on a full disk, SIGBUS would kill the process.
    """
    if path.exists():
        return
    try:
        path.write_bytes(bytes(_FILE_BYTES))
    except OSError as exc:
        path.unlink(missing_ok=True)
        raise OSError(exc.errno, exc.strerror, str(path)) from exc
