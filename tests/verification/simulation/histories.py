"""Histories: the same transactions, statement by statement, on the model and on a real PostgreSQL.

    python -m tests.verification.simulation.histories --count 1000 [--from N]

Three transactions at a time are drawn from `transactions`, and their statements run in a seeded
order, on both sides in step. After each statement both must have the same rows, the same waiting
transactions and the same errors; in the end they must have the same tables. When several wait for
one transaction so that their order is not defined, later differences are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeVar

import asyncpg

from pushkit.errors import PushkitError
from pushkit.outbox.schema import SENDER_MIGRATIONS
from pushkit.storage import postgres
from pushkit.storage.migrations import migrate
from pushkit.storage.postgres import PostgresDatabase
from pushkit.storage.script import Script, Statement
from receiver.inbox.schema import RECEIVER_MIGRATIONS
from tests.databases import PostgresServer as RealServer
from tests.databases import fresh
from tests.verification.simulation.loop import SimulatedLoop
from tests.verification.simulation.postgres import PostgresServer, _Transaction
from tests.verification.simulation.transactions import (
    Done,
    Memory,
    StubDatabase,
    Work,
    prepare,
    some_work,
    tables,
)

__all__ = ["BrokenError", "DifferenceError", "RealSide", "play_history"]

T = TypeVar("T")

_SLOTS = 3
_STEPS = 120
_COMPONENTS = (("outbox", SENDER_MIGRATIONS), ("inbox", RECEIVER_MIGRATIONS))
WAITS = "waits"
_MARKS = {
    "a lease that ended and left something": "SELECT id FROM pushkit_subscriptions"
    " WHERE lease_worker IS NULL AND (sending_to > 0 OR COALESCE(leased_at, lease_until) > 0)",
    "a delivery that nobody looks for": "SELECT d.id FROM pushkit_deliveries d"
    " JOIN pushkit_subscriptions s ON s.id = d.subscription_id WHERE d.state = 'pending'"
    " AND s.due_at IS NULL AND s.paused = 0"
    " AND (s.lease_worker IS NULL OR d.seq > s.sending_to OR d.waits = 1)",
    "a lease of an inbox that ended and left something": "SELECT id FROM pushkit_inbox_queues"
    " WHERE lease_worker IS NULL AND (sending_to > 0 OR COALESCE(leased_at, lease_until) > 0)",
    "a notification that nobody looks for": "SELECT i.id FROM pushkit_inbox i"
    " LEFT JOIN pushkit_inbox_queues q ON q.id = i.queue_id WHERE i.state = 'pending'"
    " AND (q.id IS NULL OR q.due_at IS NULL"
    " AND (q.lease_worker IS NULL OR i.place > q.sending_to OR i.waits = 1))",
    "a queue of an inbox without a notification": "SELECT id FROM pushkit_inbox_queues q"
    " WHERE lease_worker IS NULL AND due_at IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM pushkit_inbox i WHERE i.queue_id = q.id)",
}


class DifferenceError(Exception):
    """The model and the server differ."""


class BrokenError(Exception):
    """Both sides have the same wrong state."""


class _Side(ABC):
    _running: dict[int, tuple[asyncio.Task[Any], str]]

    @abstractmethod
    def begin(self, slot: int, *, reads: bool) -> None: ...

    @abstractmethod
    def start(self, slot: int, statement: Statement) -> None:
        """Start a statement, and wait until it is done or waits for a lock."""

    @abstractmethod
    def end(self, slot: int, *, commits: bool) -> None: ...

    @abstractmethod
    def settle(self) -> None:
        """Wait until every statement is done or waits for a lock."""

    @abstractmethod
    def table(self, name: str) -> list[str]: ...

    def found(self, slot: int) -> object:
        """Return the outcome of a statement: `WAITS`, its rows, or the name of its error."""
        return _outcome(*self._running[slot])

    def rows_of(self, slot: int) -> Any:
        """Return the rows of a statement as the side's own driver gives them."""
        task, sql = self._running[slot]
        return _in_order(task.result(), sql)


def _outcome(task: asyncio.Task[Any], sql: str) -> object:
    if not task.done():
        return WAITS
    error = task.exception()
    if isinstance(error, asyncpg.PostgresError):
        return type(error).__name__
    if error is not None:
        raise error
    return _comparable(task.result(), sql)


def _comparable(rows: Sequence[Any], sql: str) -> list[str]:
    if sql.startswith(("SELECT pg_advisory", "SELECT pushkit_wake", "SELECT pg_notify", "SET ")):
        return []
    return list(map(_text_of, _in_order(rows, sql)))


def _in_order(rows: Sequence[Any], sql: str) -> Sequence[Any]:
    """Return rows in their order with `ORDER BY`, and sorted without."""
    return rows if "ORDER BY" in sql.rpartition(")")[2] else sorted(rows, key=_text_of)


def _text_of(row: Any) -> str:
    named = [(name, _plain(row[name])) for name in list(row.keys()) if _is_alike(name, row[name])]
    return str([("1" if name == "?column?" else name, value) for name, value in named])


def _is_alike(name: str, value: object) -> bool:
    """Return whether a column must be equal on both sides: generated ids may have gaps."""
    return not (name in {"id", "notification_id"} and isinstance(value, int))


def _plain(value: object) -> object:
    if isinstance(value, memoryview):
        return bytes(value)
    return int(value) if isinstance(value, bool | Decimal) else value


class ModelSide(_Side):
    """The simulated server, on a loop in virtual time."""

    def __init__(self, seed: int) -> None:
        self.loop = SimulatedLoop(seed, max_steps=10_000_000)
        self.server = PostgresServer(self.loop, lambda: 0)
        self.open: dict[int, _Transaction] = {}
        self._running = {}
        for component, migrations in _COMPONENTS:
            self._run_whole(_under_lock(migrate(component, migrations, "the model")))
        self._run_whole(prepare())

    def _run_whole(self, script: Script[T]) -> T:
        transaction = self.server.begin()
        try:
            statement = next(script)
            while True:
                run = self.server.run(transaction, statement.sql, statement.parameters)
                statement = script.send(self.loop.run_until_complete(run))
        except StopIteration as stop:
            self.server.commit(transaction)
            result: T = stop.value
            return result

    def begin(self, slot: int, *, reads: bool) -> None:
        self.open[slot] = self.server.begin(read_only=reads)

    def start(self, slot: int, statement: Statement) -> None:
        run = self.server.run(self.open[slot], statement.sql, statement.parameters)
        self._running[slot] = (self.loop.create_task(run), statement.sql)
        self.settle()
        task = self._running[slot][0]
        if self.open[slot].lock_timeout is not None and not task.done():
            self.loop.run_until_complete(asyncio.wait([task]))
            self.settle()

    def end(self, slot: int, *, commits: bool) -> None:
        transaction = self.open.pop(slot)
        self._running.pop(slot, None)
        if commits:
            self.server.commit(transaction)
        else:
            self.server.end(transaction)
        self.settle()

    def settle(self) -> None:
        async def some_steps() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        self.loop.run_until_complete(some_steps())

    def table(self, name: str) -> list[str]:
        return _comparable(self.server.select(f"SELECT * FROM {name}"), "")

    def leaves_open_who_is_first(self) -> bool:
        """Return whether the statements that wait for a transaction might continue in any order.

        That includes those that wait for one row that it changes: each has to find the new version,
        and on a busy server the second one may be quicker.
        """
        for each in self.open.values():
            keys = [statement.waits_for for statement in each.waiters]
            if len(keys) < 2:
                continue
            if len(set(keys)) > 1 or not self.server.is_row(keys[0]) or keys[0] in each.images:
                return True
        return False


def _under_lock(script: Script[T]) -> Script[T]:
    yield Statement("SELECT pg_advisory_xact_lock($1)", (1,))
    return (yield from script)


class RealSide(_Side):
    """A real server, with a connection for each transaction, and one for observation."""

    def __init__(self, dsn: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._dsn = fresh(dsn)
        self._connections: list[asyncpg.Connection] = []
        self._transactions: dict[int, Any] = {}
        self._running = {}
        self._impatient: set[int] = set()
        self._run(self._connect())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    async def _connect(self) -> None:
        for component, migrations in _COMPONENTS:
            database = PostgresDatabase(self._dsn, component=component, migrations=migrations)
            await database.open()
            await database.close()
        self._connections = [await self._new_connection() for _ in range(_SLOTS)]
        self._looker = await self._new_connection()
        self._slot_of = {each.get_server_pid(): n for n, each in enumerate(self._connections)}

    def clear(self) -> None:
        """Reset the tables to the rows of `prepare`."""
        self._running.clear()

        async def clear() -> None:
            await self._looker.execute(f"TRUNCATE {', '.join(tables())} RESTART IDENTITY")
            async with self._looker.transaction():
                await postgres.run_script(self._looker, prepare())

        self._run(clear())

    def abandon(self) -> None:
        """End the transactions that still run."""

        async def abandon() -> None:
            for slot in self._transactions:
                self._connections[slot].terminate()
                if slot in self._running:
                    await asyncio.wait([self._running[slot][0]])
                    self._running[slot][0].exception()
                self._connections[slot] = await self._new_connection()
            self._slot_of = {each.get_server_pid(): n for n, each in enumerate(self._connections)}

        self._run(abandon())
        self._transactions.clear()

    async def _new_connection(self) -> asyncpg.Connection:
        connection = await asyncpg.connect(self._dsn)
        await connection.execute("SET synchronous_commit = off; SET deadlock_timeout = '1ms'")
        return connection

    def close(self) -> None:
        async def close() -> None:
            for each in (*self._connections, self._looker):
                await each.close(timeout=5)

        self._run(close())
        self._loop.close()

    def begin(self, slot: int, *, reads: bool) -> None:
        isolation: Any = "repeatable_read" if reads else "read_committed"
        transaction = self._connections[slot].transaction(isolation=isolation, readonly=reads)
        self._run(transaction.start())
        self._transactions[slot] = transaction
        self._impatient.discard(slot)

    def start(self, slot: int, statement: Statement) -> None:
        if statement.sql.startswith("SET LOCAL lock_timeout"):
            self._impatient.add(slot)
        sql = postgres._in_postgres(statement.sql)
        fetch = self._connections[slot].fetch(sql, *statement.parameters)
        task = self._loop.create_task(fetch)
        self._running[slot] = (task, statement.sql)
        if slot in self._impatient:
            self._run(_all_of([task]))
        self.settle()

    def end(self, slot: int, *, commits: bool) -> None:
        transaction = self._transactions.pop(slot)
        self._running.pop(slot, None)
        self._run(transaction.commit() if commits else transaction.rollback())
        self.settle()

    def settle(self) -> None:
        self._run(self._settled())

    async def _settled(self) -> None:
        before: object = None
        while True:
            waiting = [slot for slot, (task, _) in self._running.items() if not task.done()]
            if not waiting:
                return
            await asyncio.wait([self._running[slot][0] for slot in waiting], timeout=0.002)
            blockers = await self._blockers(waiting)
            is_stuck = all(blockers.values()) and not _has_circle(blockers)
            now = (blockers, [self._running[slot][0].done() for slot in waiting])
            if is_stuck and now == before:
                return
            before = now

    async def _blockers(self, slots: Sequence[int]) -> dict[int, tuple[int, ...]]:
        pids = [self._connections[slot].get_server_pid() for slot in slots]
        rows = await self._looker.fetch(
            "SELECT pid, pg_blocking_pids(pid) AS by FROM unnest($1::int[]) pid", pids
        )
        found = {row["pid"]: row["by"] for row in rows}
        return {
            # Any other blocker, such as the vacuum, ends soon.
            self._slot_of[pid]: tuple(sorted(self._slot_of[each] for each in by))
            if set(by) <= set(self._slot_of)
            else ()
            for pid, by in found.items()
        }

    def table(self, name: str) -> list[str]:
        rows = self._run(self._looker.fetch(f"SELECT * FROM {name}"))
        return _comparable(rows, "")


async def _all_of(tasks: Sequence[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)


def _has_circle(blockers: dict[int, tuple[int, ...]]) -> bool:
    def leads_back(slot: int, start: int, seen: set[int]) -> bool:
        for each in blockers.get(slot, ()):
            if each == start or (each not in seen and leads_back(each, start, seen | {each})):
                return True
        return False

    return any(leads_back(slot, slot, set()) for slot in blockers)


@dataclass(eq=False)
class _Running:
    """A transaction in progress on both sides."""

    work: Work
    scripts: tuple[Script[Done | None], Script[Done | None]]
    has_begun: bool = False
    done: list[Done | None] | None = None  # what to do once it is committed
    has_failed: bool = False
    waits: bool = False


class _History:
    def __init__(self, seed: int, real: RealSide) -> None:
        self.chance = random.Random(f"history {seed}")
        self.database = StubDatabase()
        self.model = ModelSide(seed)
        self.sides: tuple[_Side, _Side] = (self.model, real)
        self.memories = (Memory(self.database), Memory(self.database))
        self.slots: dict[int, _Running] = {}
        self.log: list[str] = []
        self.seen: Counter[str] = Counter()
        self.is_open = False  # an order was undefined: from then on both sides may differ
        self._numbers = iter(range(1, 1_000_000))

    def play(self) -> None:
        for _ in range(_STEPS):
            self._step(begins=True)
        while self.slots:
            self._step(begins=False)
        for name in tables():
            self._same(name, [side.table(name) for side in self.sides])

    def check(self) -> None:
        """Check that somebody looks for each delivery, and for each notification.

        Raises:
            BrokenError: It is not so.
        """
        for what, sql in _MARKS.items():
            if found := [tuple(row) for row in self.model.server.select(sql)]:
                tail = "\n  ".join(self.log[-40:])
                raise BrokenError(f"{what}: {found}\n  {tail}")

    def _step(self, *, begins: bool) -> None:
        slots = range(_SLOTS) if begins else sorted(self.slots)
        slot = self.chance.choice(
            [s for s in slots if s not in self.slots or not self.slots[s].waits]
        )
        running = self.slots.get(slot)
        self.database.moment += timedelta(milliseconds=1)  # no two rows have the same time
        if self.model.leaves_open_who_is_first():
            self.is_open = True
        if running is None:
            self._begin(slot)
        elif running.has_failed:
            self._end(slot, commits=False)
        elif running.done is not None:
            self._end(slot, commits=self.chance.random() < 0.9)
        else:
            self._go_on(slot)

    def _begin(self, slot: int) -> None:
        if self.chance.random() < 0.3:
            self.database.moment += timedelta(seconds=self.chance.choice((1, 7, 31)))
        work = some_work(self.chance, next(self._numbers))
        first, second = (work.make(memory) for memory in self.memories)
        self.log.append(f"{slot} begins: {work.name}")
        self.seen[work.name] += 1
        for side in self.sides:
            side.begin(slot, reads=work.reads)
        self.slots[slot] = _Running(work, (first, second))

    def _go_on(self, slot: int) -> None:
        running = self.slots[slot]
        asked = [
            _next_of(script, side.rows_of(slot) if running.has_begun else None)
            for script, side in zip(running.scripts, self.sides, strict=True)
        ]
        self._same("asks", [_brief(each) for each in asked])
        first, second = asked
        if isinstance(first, Statement) and isinstance(second, Statement):
            self.log.append(f"{slot} {_brief(first)}")
            running.has_begun = True
            for side, statement in zip(self.sides, (first, second), strict=True):
                side.start(slot, statement)
        elif isinstance(first, PushkitError):
            running.has_failed = True
            return
        else:
            running.done = asked
            return
        self._look()

    def _end(self, slot: int, *, commits: bool) -> None:
        running = self.slots.pop(slot)
        self.log.append(f"{slot} {'commits' if commits else 'rolls back'}: {running.work.name}")
        for script in running.scripts:
            script.close()
        for side in self.sides:
            side.end(slot, commits=commits)
        if commits:
            for call in filter(None, running.done or ()):
                call()
        self._look()
        self.check()

    def _look(self) -> None:
        """Compare the outcomes of all statements that ran or waited."""
        for slot, running in self.slots.items():
            if running.done is not None or running.has_failed or not running.has_begun:
                continue
            found = [side.found(slot) for side in self.sides]
            self._same(f"{slot} {running.work.name}", found)
            running.waits = found[0] == WAITS
            if running.waits:
                self.seen[WAITS] += 1
            if isinstance(found[0], str) and not running.waits:
                running.has_failed = True
                self.log.append(f"{slot} gets {found[0]}")
                self.seen[found[0]] += 1

    def _same(self, what: str, found: Sequence[object]) -> None:
        if found[0] != found[1]:
            tail = "\n  ".join(self.log[-25:])
            raise DifferenceError(f"{what}\n  model: {found[0]}\n  real:  {found[1]}\n  {tail}")


def _next_of(script: Script[T], rows: Any) -> Any:
    try:
        return next(script) if rows is None else script.send(rows)
    except StopIteration as stop:
        return stop.value
    except PushkitError as exc:
        return exc


def _brief(asked: object) -> str:
    if isinstance(asked, Statement):
        has_ids = "inbox" in asked.sql or "callbacks" in asked.sql
        return f"{asked.sql} {'' if has_ids else asked.parameters}"
    return type(asked).__name__


def play_history(seed: int, real: RealSide) -> tuple[Counter[str], bool]:
    """Play a history; return counts of what happened, and whether it was compared to its end.

    Raises:
        DifferenceError: The model and the server differ.
        BrokenError: Both have the same wrong state.
    """
    real.clear()
    history = _History(seed, real)
    try:
        history.play()
    except DifferenceError:
        if not (history.is_open or history.model.server.closed_on_waking):
            raise
        return history.seen, False
    finally:
        for slot in list(history.slots):
            for script in history.slots[slot].scripts:
                script.close()
        real.abandon()
        history.model.loop.close()
    return history.seen, True


def main() -> int:
    """Play many histories, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.verification.simulation.histories")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N")
    parser.add_argument("--count", type=int, default=100, metavar="M")
    parser.add_argument("--dsn", help="a server; by default one is started")
    args = parser.parse_args()
    server = None if args.dsn else RealServer()
    real = RealSide(args.dsn or server.dsn)  # type: ignore[union-attr]
    seen: Counter[str] = Counter()
    differing, open_ends = 0, 0
    for seed in range(args.first, args.first + args.count):
        try:
            found, is_whole = play_history(seed, real)
        except (DifferenceError, BrokenError) as exc:
            differing += 1
            print(f"history {seed}: {exc}")
        else:
            seen += found
            open_ends += not is_whole
    real.close()
    if server is not None:
        server.remove()
    print(*(f"{times:8} {what}" for what, times in sorted(seen.items())), sep="\n")
    print(f"{args.count} histories from {args.first}: {differing} differ; {open_ends} left open")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
