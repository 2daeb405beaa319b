"""The locks that show which workers are alive."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pushkit.errors import StorageError
from pushkit.storage.database import RecentFault
from pushkit.storage.migrations import Migration
from pushkit.storage.sqlite import SqliteDatabase
from pushkit.storage.worker_locks import WorkerLocks

HOLD = """
import sys
from pathlib import Path
from pushkit.storage.worker_locks import WorkerLocks
locks = WorkerLocks(Path(sys.argv[1]), print)
locks.hold("theirs")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


def lock_files(database: Path) -> list[str]:
    return sorted(path.name for path in database.parent.glob("*.lock"))


def test_the_lock_of_a_living_worker_is_kept_and_of_a_dead_one_swept(database: Path) -> None:
    ours = WorkerLocks(database, print)
    ours.hold("ours")
    with subprocess.Popen(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", HOLD, str(database)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        ours.sweep()
        assert lock_files(database) == ["outbox.db-ours.lock", "outbox.db-theirs.lock"]
        assert ours.dead(["theirs"]) == []
        process.kill()
    ours.sweep()
    assert lock_files(database) == ["outbox.db-ours.lock"]
    assert ours.dead(["theirs"]) == ["theirs"]
    ours.release("ours")


def test_a_worker_whose_lock_was_removed_is_alive_again_with_its_next_claim(
    database: Path,
) -> None:
    ours, theirs = WorkerLocks(database, print), WorkerLocks(database, print)
    ours.hold("ours")
    for path in database.parent.glob("*.lock"):
        path.unlink()
    ours.hold("ours")
    assert theirs.dead(["ours"]) == []
    ours.release("ours")
    assert theirs.dead(["ours"]) == ["ours"]


def test_a_lock_that_was_swept_away_before_it_was_held_is_taken_again(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl  # the one that is patched

    sweeper, worker = WorkerLocks(database, print), WorkerLocks(database, print)
    lock = fcntl.flock
    swept: list[int] = []

    def swept_first(descriptor: int, operation: int) -> None:
        if not swept and operation == fcntl.LOCK_EX:
            swept.append(descriptor)
            sweeper.sweep()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", swept_first)
    worker.hold("worker")
    monkeypatch.undo()
    assert swept
    assert sweeper.dead(["worker"]) == []
    worker.release("worker")


def test_a_worker_is_alive_when_seen_through_a_symbolic_link(database: Path) -> None:
    database.touch()
    link = database.parent / "app" / "link.db"
    link.parent.mkdir()
    link.symlink_to(database)
    worker = WorkerLocks(database, print)
    worker.hold("worker")

    assert WorkerLocks(link, print).dead(["worker"]) == []
    worker.release("worker")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS], ids=["anothers", "read-only"])
def test_a_worker_whose_lock_cannot_be_opened_is_left_to_its_leases(
    database: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    open_file = os.open
    database.with_name("outbox.db-roots.lock").touch(mode=0o600)

    def refused(path: Path, flags: int, mode: int = 0o777) -> int:
        if path.name == "outbox.db-roots.lock":
            raise OSError(code, os.strerror(code))
        return open_file(path, flags, mode)

    monkeypatch.setattr(os, "open", refused)
    locks = WorkerLocks(database, print)
    locks.sweep()

    assert locks.dead(["roots", "gone"]) == ["gone"]


def test_other_files_than_locks_of_this_database_stay(database: Path) -> None:
    other = database.with_name("other.db-worker.lock")
    other.touch()
    WorkerLocks(database, print).sweep()
    assert other.exists()


async def test_opening_a_database_sweeps(database: Path) -> None:
    stale = database.with_name("outbox.db-dead.lock")
    stale.touch()
    opened = SqliteDatabase(
        database, component="test", migrations=(Migration(1, ("CREATE TABLE t (a INTEGER)",)),)
    )
    await opened.open()
    await opened.close()
    assert not stale.exists()


@pytest.mark.parametrize("refusing", ["open", "flock"])
def test_a_lock_that_cannot_be_held_is_a_fault_of_the_storage(
    database: Path, monkeypatch: pytest.MonkeyPatch, refusing: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    fault, files = RecentFault(), len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os if refusing == "open" else fcntl, refusing, refuse)
    with pytest.raises(StorageError, match=r"outbox\.db-ours\.lock: cannot be locked"):
        WorkerLocks(database, fault.note).hold("ours")
    assert fault.reason() is not None
    assert len(list(Path("/proc/self/fd").iterdir())) == files
