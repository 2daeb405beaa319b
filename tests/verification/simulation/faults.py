"""Database faults: errors and crashes before a statement, in a commit, and after it.

Both simulated databases call `Faults.before` with every statement, with `COMMIT`, and with
`COMMITTED` after a commit, before its caller continues. A process may end at each of these calls.
"""

from __future__ import annotations

import contextvars
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass

import asyncpg

from tests.verification.simulation.disk import Crash, failure
from tests.verification.simulation.loop import Process
from tests.verification.simulation.world import World

__all__ = ["KINDS", "Faults"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A way to fail."""

    sqlite: tuple[int, str]  # code and text of SQLite's error
    postgres: Callable[[str], Exception]  # the error of PostgreSQL's driver
    at: tuple[str, ...] = ()  # the first words of the statements that it affects; empty for all
    chance: float = 0.3  # the probability that it affects such a statement


_IO = (sqlite3.SQLITE_IOERR, "disk I/O error")
_FULL = (sqlite3.SQLITE_FULL, "database or disk is full")
_BUSY = (sqlite3.SQLITE_BUSY, "database is locked")
_AWAY = (sqlite3.SQLITE_CANTOPEN, "unable to open database file")
_GONE = asyncpg.ConnectionDoesNotExistError
KINDS = {
    "busy": _Kind(_BUSY, asyncpg.TooManyConnectionsError, at=("BEGIN",), chance=0.7),
    "full": _Kind(_FULL, asyncpg.DiskFullError, at=("INSERT", "UPDATE", "DELETE", "COMMIT")),
    "error": _Kind(_IO, _GONE),
    "refused": _Kind(_AWAY, asyncpg.CannotConnectNowError, chance=1.0),
    "seldom": _Kind(_IO, _GONE, chance=0.03),
    # One statement fails, and those of other items in the same transaction do not.
    "hiccup": _Kind(_FULL, asyncpg.DiskFullError, at=("INSERT", "UPDATE"), chance=0.15),
    # The commit succeeds, and its caller gets an error.
    "uncertain": _Kind(_IO, _GONE, at=("COMMITTED",), chance=0.5),
}


class Faults:
    """The database faults of one world: PostgreSQL's errors, or SQLite's."""

    def __init__(self, world: World, *, is_postgres: bool) -> None:
        self._world = world
        self._is_postgres = is_postgres
        self._kind: _Kind | None = None
        self._until = 0.0
        self._victim: Process | None = None
        self._left = 0
        self._end: Callable[[], None] = lambda: None
        self._doze: Callable[[str], object] | None = None

    def fail(self, kind: str, *, lasts: float) -> None:
        """Let statements fail from now on, for so many seconds."""
        self._kind, self._until = KINDS[kind], self._world.loop.time() + lasts

    def end_at(self, process: Process, number: int, end: Callable[[], None]) -> None:
        """Let a process end at its n-th statement from now, by calling `end`."""
        self._victim, self._left, self._end, self._doze = process, number, end, None

    def doze_at(self, process: Process, number: int, doze: Callable[[str], object]) -> None:
        """Let a process freeze in the middle of its n-th statement from now, by calling `doze`."""
        self._victim, self._left, self._doze = process, number, doze

    def heal(self) -> None:
        """End all faults."""
        self._kind = self._victim = None

    def before(self, process: Process | None, what: str) -> None:
        """Let a statement fail, or its process end, if a fault affects it.

        Raises:
            Crash: The process ends at this statement.
            sqlite3.OperationalError: The simulated error of SQLite.
            asyncpg.PostgresError: The simulated error of PostgreSQL, or of its connection.
        """
        if process is None:
            return
        if process is self._victim:
            self._left -= 1
            if self._left < 0:
                self._victim = None
                if self._doze is not None:
                    self._doze(what)
                    return
                self._world.note(f"{process.name} ends at {what[:40]}")
                self._end_here()
        kind = self._kind
        if kind is None or what.startswith("ROLLBACK"):
            return
        if self._world.loop.time() > self._until:
            self._kind = None
        elif self._affects(kind, what):
            self._fail_with(kind)

    def _affects(self, kind: _Kind, what: str) -> bool:
        word = what.partition(" ")[0]
        # After "COMMITTED" the data is stored: only "uncertain" may fail there.
        is_there = word in kind.at if kind.at else word != "COMMITTED"
        return is_there and self._world.loop.random.random() < kind.chance

    def _fail_with(self, kind: _Kind) -> None:
        if self._is_postgres:
            raise kind.postgres("simulated")
        raise failure(*kind.sqlite)

    def _end_here(self) -> None:
        if self._is_postgres:
            self._end()
            raise _GONE("its process is gone")
        self._world.loop.call_soon(self._end, context=contextvars.Context())
        raise Crash
