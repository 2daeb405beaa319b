"""The simulated disk: uncommitted writes are invisible to other processes, and lost in a crash."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from pushkit.errors import StorageError
from pushkit.storage.migrations import Migration
from pushkit.storage.script import Script, Statement
from tests.verification.simulation.disk import Crash, Disk, DiskDatabase
from tests.verification.simulation.loop import PROCESS, Process, SimulatedLoop

_THINGS = Migration(1, ("CREATE TABLE things (name TEXT PRIMARY KEY)",))
_AT = datetime(2026, 1, 1, tzinfo=UTC)


def _stored(names: Sequence[str], *, wait: bool) -> Script[Sequence[str]]:
    del wait
    for name in names:
        yield Statement("INSERT INTO things VALUES ($1)", (name,))
    return names


class _Stage:
    """Two processes on a disk; a timer is always due, so that the clock does not leap."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(0)
        self.disk = Disk(self.loop)
        self.one, self.other = (Process(name, "198.51.100.1") for name in ("one", "other"))
        self.answers: dict[str, Any] = {}
        self._databases = {
            each: DiskDatabase(
                self.disk, each, component="test", migrations=[_THINGS], clock=lambda: _AT
            )
            for each in (self.one, self.other)
        }
        for database in self._databases.values():
            self.loop.run_until_complete(database.open())
        self._tick()

    def store(self, process: Process, name: str) -> None:
        """Let a process store a row: its statement runs at once, and its commit later."""
        context = contextvars.Context()
        context.run(PROCESS.set, process)
        ended = functools.partial(self.answers.__setitem__, name)
        write = functools.partial(self._databases[process].write_together, _stored, name, ended)
        self.loop.call_soon(write, context=context)
        self.pass_time(0.0001)

    def pass_time(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()

    def things(self) -> list[str]:
        """Return the committed rows."""
        return [row["name"] for row in self.disk.select("SELECT name FROM things ORDER BY name")]

    def _tick(self) -> None:
        self.loop.call_later(0.0002, self._tick)


@pytest.fixture
def stage() -> Iterator[_Stage]:
    stage = _Stage()
    yield stage
    stage.disk.connection.close()
    stage.loop.close()


def test_statements_that_ran_in_the_loop_are_seen_from_their_commit_on(stage: _Stage) -> None:
    stage.store(stage.one, "a")
    assert stage.disk.connection.in_transaction
    assert stage.things() == []
    assert stage.answers == {}
    stage.pass_time(0.01)
    assert stage.things() == ["a"]
    assert stage.answers == {"a": "a"}


def test_a_process_that_dies_before_its_commit_has_stored_nothing(stage: _Stage) -> None:
    stage.store(stage.one, "a")
    stage.loop.kill(stage.one)
    stage.pass_time(0.01)
    stage.store(stage.other, "b")
    stage.pass_time(0.01)
    assert stage.things() == ["b"]
    assert stage.answers == {"b": "b"}


def test_two_processes_write_one_after_the_other(stage: _Stage) -> None:
    stage.store(stage.one, "a")
    stage.store(stage.other, "b")
    assert stage.disk.is_held_from(stage.other)
    stage.pass_time(0.1)
    assert stage.things() == ["a", "b"]
    assert stage.answers == {"a": "a", "b": "b"}


def test_a_process_frozen_before_its_commit_blocks_others_until_they_give_up(stage: _Stage) -> None:
    stage.store(stage.one, "a")
    stage.loop.freeze(stage.one, 6.0)
    stage.store(stage.other, "b")
    stage.pass_time(5.9)
    assert isinstance(stage.answers["b"], StorageError)
    stage.pass_time(0.2)
    assert stage.things() == ["a"]
    assert stage.answers["a"] == "a"


@pytest.mark.parametrize(
    "moment", ["INSERT OR FAIL INTO things VALUES (?1)", "COMMIT", "COMMITTED"]
)
def test_a_process_ends_at_every_statement(stage: _Stage, moment: str) -> None:

    def end(_: Process, sql: str) -> None:
        if sql == moment:
            raise Crash

    stage.disk.fault = end
    stage.store(stage.one, "a")
    stage.pass_time(0.01)
    assert not stage.one.alive
    assert stage.answers == {}
    stage.disk.fault = None
    stage.store(stage.other, "b")
    stage.pass_time(0.01)
    assert stage.things() == (["a", "b"] if moment == "COMMITTED" else ["b"])
