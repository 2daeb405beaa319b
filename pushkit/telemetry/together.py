"""Lets several processes of one service count together, in files of a shared folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DIRECTORY: Final = "PROMETHEUS_MULTIPROC_DIR"  # prometheus-client's word
_PREFIX: Final = "pushkit-metrics-"
_HELD: Final = "held"  # a file in the folder, which the service locks


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
