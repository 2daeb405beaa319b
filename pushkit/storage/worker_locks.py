"""Lock files that show which workers on this machine are alive: a lock ends with its process.

A lease ends after a while; a lock of the operating system ends at once. If all workers share a file
on one machine (SQLite), a free lock shows that the rows of its worker can be released at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import glob
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from pushkit.errors import StorageError


class WorkerLocks:
    """The lock files beside a database file.

    Args:
        database: The database file; the locks are beside it, with symbolic links resolved.
        note_fault: Gets why a lock could not be held.
    """

    def __init__(self, database: Path, note_fault: Callable[[str], None]) -> None:
        self._named = database
        self._note_fault = note_fault
        self._held: dict[str, int] = {}

    @functools.cached_property
    def _database(self) -> Path:
        return self._named.resolve()

    def hold(self, worker: str) -> None:
        """Hold the lock of a worker of this process, until `release` or the process ends.

        If the lock's file was removed, it locks a new one: others cannot see the old lock.

        Raises:
            StorageError: No file can be made there, or it cannot be locked.
        """
        descriptor = self._held.pop(worker, None)
        while descriptor is None or not self._is_there(worker, descriptor):
            if descriptor is not None:
                os.close(descriptor)
            descriptor = self._locked_file(self._path(worker))
        self._held[worker] = descriptor

    def _locked_file(self, path: Path) -> int:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                os.close(descriptor)
                raise
        except OSError as exc:
            reason = f"{path}: cannot be locked: {exc.strerror}"
            self._note_fault(reason)
            raise StorageError(reason) from exc
        return descriptor

    def release(self, worker: str) -> None:
        """Release a worker's lock: other workers may then release its rows."""
        descriptor = self._held.pop(worker, None)
        if descriptor is not None:
            self._path(worker).unlink(missing_ok=True)
            os.close(descriptor)

    def dead(self, workers: Iterable[str]) -> list[str]:
        """Return those workers whose lock nobody holds any more."""
        return [worker for worker in workers if worker not in self._held and self._is_free(worker)]

    def sweep(self) -> None:
        """Remove the lock files of dead workers without deliveries: nothing else looks for them."""
        prefix, suffix = f"{self._database.name}-", ".lock"
        for path in self._database.parent.glob(f"{glob.escape(prefix)}*{suffix}"):
            worker = path.name.removeprefix(prefix).removesuffix(suffix)
            if worker not in self._held:
                self._is_free(worker)

    def _is_there(self, worker: str, descriptor: int) -> bool:
        try:
            found = self._path(worker).stat()
        except FileNotFoundError:
            return False
        return found.st_ino == os.fstat(descriptor).st_ino

    def _is_free(self, worker: str) -> bool:
        try:
            descriptor = os.open(self._path(worker), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:  # another user's, or a read-only disk: its leases show whether it is alive
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            with contextlib.suppress(FileNotFoundError):
                self._path(worker).unlink()
            return True
        finally:
            os.close(descriptor)

    def _path(self, worker: str) -> Path:
        return self._database.with_name(f"{self._database.name}-{worker}.lock")
