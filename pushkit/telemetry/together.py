"""Lets several processes of one service count together, in files of a shared folder.

Each process has a file for each kind of metric. They are written through memory mappings, which
outlive their names: whoever cleans `/tmp` removes the names, and no process would read the files of
the others any more. So each looks for its own from time to time, and writes them anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_log = logging.getLogger("pushkit.telemetry")

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"  # prometheus-client's word
_PREFIX: Final = "pushkit-metrics-"
_HELD: Final = "held"  # a file in the folder, which the service locks
# The files that each process writes, and a size above all their needs.
_KINDS: Final = ("counter", "histogram", "gauge_livesum")
_FILE_BYTES: Final = 1024 * 1024


@contextlib.contextmanager
def counted_together() -> Iterator[None]:
    """Let processes started in this context count together; keeps a folder that is set already."""
    if os.environ.get(DIRECTORY):
        yield
        return
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, _held(Path(folder)):
        os.environ[DIRECTORY] = folder
        try:
            yield
        finally:
            del os.environ[DIRECTORY]


@contextlib.contextmanager
def _held(folder: Path) -> Iterator[None]:
    new = folder / f"{_HELD}.new"
    directory = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_SH)  # systemd-tmpfiles cleans no folder that is locked
        with new.open("xb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            new.rename(folder / _HELD)  # locked before another process can find it
            yield
    finally:
        os.close(directory)


def _remove_abandoned() -> None:
    """Remove the folders of services that were killed, some megabytes for each process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # One that runs holds its folder; what others made is not ours to remove.
        with contextlib.suppress(OSError), (folder / _HELD).open("rb") as file:
            if folder.lstat().st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)


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


def place_in_service() -> str | None:
    """Return a name for this process's place under its supervisor, which a replacement keeps."""
    supervisor = multiprocessing.parent_process()
    if supervisor is None:
        return None
    return f"{supervisor.pid}-{multiprocessing.current_process().name.rpartition('-')[2]}"


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
    import prometheus_client

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
