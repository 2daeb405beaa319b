"""The cost of the outbox, compared with the bare database in the same run.

python benchmarks/outbox.py [--rows 1000000] [--postgres DSN] [--only PART …]

- enqueue: `PushSender.notify`, durable, with 1, 64 and 256 callers at once, a task each. The bare
  loop runs the same statements for the same tasks over the driver, with as many rows in a
  transaction (SQLite) or as many connections (PostgreSQL). Limit: 0.5 of the bare loop. "In a
  thread" is that loop with each transaction in a thread, as is necessary in an event loop that must
  not block while the disk is flushed: the most that `notify` could reach.
- claim: one claim of 64, and the search for the next due delivery, with a backlog of 100 rows and
  of `--rows`, in three shapes. Limit: within a factor of 2.
- blocked: claims past `--rows` queues of a destination that waits, to the one queue behind them;
  then the cost of each claim, and of the search for the next due delivery.
- memory: the growth of the process after it has delivered `--drain` rows.
- size: the bytes of a delivery on disk, with indexes, compared with its body.

The ratios are more reliable than the rates. Without `--postgres` a server is started.
"""

# ruff: noqa: S608  # the SQL is put together from constants

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import contextlib
import itertools
import json
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import asyncpg

from pushkit import (
    DeliveryState,
    KeyRing,
    PushSender,
    SenderOptions,
    StatusUpdate,
    TaskState,
    TaskStatus,
)
from pushkit.queue.leases import Claims
from pushkit.queue.rules import Leased, Room
from pushkit.storage.database import Database
from pushkit.storage.script import Script, Statement, to_micros
from pushkit.storage.sqlite import in_sqlite
from pushkit.subscriptions.model import OUTBOX
from tests.databases import PostgresServer, execute, fresh

HERE = Path(__file__).resolve().parent.parent
NOW = datetime.now(UTC)
MARK = 1_000_000_007  # the `seq` of the delivery whose statements are recorded
CALLERS = (1, 64, 256)
POOL = 8
# By what it is called: of row n, the queue, its host, and the place in the queue.
SHAPES = {
    "a delivery each, many hosts": ("n", "(n % 1000)", "1"),
    "a delivery each, one host": ("n", "0", "1"),
    "deep, ten tasks": ("(n % 10)", "(n % 10)", "n / 10 + 1"),
}
ROOM = Room(64, lambda _origin: 16)  # what a worker with default options asks for, about


def say(*columns: object) -> None:
    """Print one line of the table."""
    widths = (40, 14, 14, 14, 9)
    line = "".join(f"{column!s:<{width}}" for column, width in zip(columns, widths, strict=False))
    sys.stdout.write(line.rstrip() + "\n")
    sys.stdout.flush()


def update(task: str) -> StatusUpdate:
    """Return the update that is enqueued again and again."""
    return StatusUpdate(
        task_id=task, context_id="context-1", status=TaskStatus(state=TaskState.WORKING)
    )


@contextlib.asynccontextmanager
async def opened(location: str, *, working: bool = False) -> AsyncIterator[PushSender]:
    """Return a sender that only enqueues, or works too."""
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(NOW),
        database=location,
        allow=["127.0.0.1:*"],
        options=SenderOptions(
            max_backlog_per_subscription=10**13, max_backlog=10**9, max_backlog_per_owner=10**9
        ),
    )
    await (sender.start() if working else sender.open())
    try:
        yield sender
    finally:
        await sender.close()


def database_of(sender: PushSender) -> Database:
    """Return a sender's database."""
    return sender._database


# --- enqueue -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Recorded:
    """The statements of one `notify()`, to be run again for other deliveries and tasks."""

    statements: list[Statement]
    delivery_id: str
    task: dict[str, str]

    def again(self, number: int, task: dict[str, str]) -> Iterator[tuple[str, list[Any]]]:
        """Yield the statements of another delivery, to a subscription of another task."""
        changes: dict[Any, Any] = {self.delivery_id: f"bare_{number}", MARK: MARK + number}
        changes |= {self.task[column]: task[column] for column in task}
        for statement in self.statements:
            yield statement.sql, [changes.get(value, value) for value in statement.parameters]


def subscription_to(task: str) -> Script[dict[str, str]]:
    """Return what tells the subscription to a task from others."""
    rows = yield Statement(
        "SELECT id, task_id, owner FROM pushkit_subscriptions WHERE task_id = $1", (task,)
    )
    return {column: rows[0][column] for column in ("id", "task_id", "owner")}


async def subscribe(sender: PushSender, task: str) -> dict[str, str]:
    """Subscribe an owner of its own to a task; return what tells the subscription from others."""
    hook = {"url": "http://127.0.0.1:9/"}
    await sender.subscribe(task, hook, version="1.0", owner=f"owner of {task}")
    return await database_of(sender).read(subscription_to(task))


async def record(sender: PushSender) -> Recorded:
    """Return the statements that `notify()` runs where something is waiting already."""
    task = await subscribe(sender, "recorded")
    seen: list[Statement] = []

    def listen(script: Script[Any]) -> Script[Any]:
        yield Statement(
            f"UPDATE pushkit_subscriptions SET last_seq = {MARK - 1} WHERE task_id = 'recorded'"
        )
        rows: Any = None
        while True:
            try:
                statement = script.send(rows)
            except StopIteration as stop:
                return stop.value
            seen.append(statement)
            rows = yield statement

    database: Any = database_of(sender)
    write_together = database.write_together
    await sender.notify(update("recorded"))  # the whole backlog is counted once in a while: now
    database.write_together = lambda group, *item: write_together(
        lambda items, /, *, wait: listen(group(items, wait=wait)), *item
    )
    ids = (await sender.notify(update("recorded"))).ids
    database.write_together = write_together
    return Recorded(seen, ids[0], task)


async def notify_rate(sender: PushSender, tasks: list[str], seconds: float) -> float:
    """Return how many updates a second one caller for each task gets onto the disk."""
    count = 0
    end = time.perf_counter() + seconds

    async def call(task: str) -> None:
        nonlocal count
        while time.perf_counter() < end:
            await sender.notify(update(task))
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*map(call, tasks))
    return count / (time.perf_counter() - began)


class BareSqlite:
    """The driver alone: the recorded statements, one row for each task in a transaction."""

    def __init__(self, path: str, recorded: Recorded, tasks: list[dict[str, str]]) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA synchronous = FULL")
        self._recorded = recorded
        self._tasks = tasks
        self._sql = {s.sql: in_sqlite(s.sql) for s in recorded.statements}
        self._number = time.monotonic_ns()

    def commit_one_batch(self) -> None:
        """Store a row for each task, in one transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        for task in self._tasks:
            self._number += 1
            for text, parameters in self._recorded.again(self._number, task):
                self._connection.execute(self._sql[text], parameters).fetchall()
        self._connection.execute("COMMIT")

    def rate(self, seconds: float) -> float:
        """Return how many rows a second a loop gets onto the disk."""
        count, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            self.commit_one_batch()
            count += len(self._tasks)
        return count / (time.perf_counter() - began)

    async def rate_in_thread(self, seconds: float) -> float:
        """Return the rate with each transaction in a thread, which does not block an event loop."""
        loop, count, began = asyncio.get_running_loop(), 0, time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            while time.perf_counter() < began + seconds:
                await loop.run_in_executor(thread, self.commit_one_batch)
                count += len(self._tasks)
        return count / (time.perf_counter() - began)


async def bare_postgres_rate(
    dsn: str, recorded: Recorded, tasks: list[dict[str, str]], seconds: float
) -> float:
    """Return what asyncpg alone does, over as many connections as the pool has."""
    connections = [await asyncpg.connect(dsn) for _ in tasks[:POOL]]
    count, base = 0, time.monotonic_ns() % 10**12
    end = time.perf_counter() + seconds

    async def call(connection: asyncpg.Connection, mine: list[dict[str, str]]) -> None:
        nonlocal count
        for task in itertools.cycle(mine):
            if time.perf_counter() > end:
                return
            count += 1
            number = base + count
            async with connection.transaction():
                for text, parameters in recorded.again(number, task):
                    await connection.fetch(text, *parameters)

    began = time.perf_counter()
    await asyncio.gather(*(call(each, tasks[at::POOL]) for at, each in enumerate(connections)))
    rate = count / (time.perf_counter() - began)
    for connection in connections:
        await connection.close()
    return rate


async def measure_enqueue(name: str, location: str, seconds: float) -> None:
    """Print the rates of one database; each the median of five, taken in turns."""
    say(f"enqueue, {name}", "notify/s", "bare/s", "in a thread/s", "ratio")
    async with opened(location) as sender:
        recorded = await record(sender)
        for callers in CALLERS:
            tasks = [await subscribe(sender, f"task {n} of {callers}") for n in range(callers)]
            names = [task["task_id"] for task in tasks]
            ours, bare, in_thread = [], [], []
            for _ in range(5):
                ours.append(await notify_rate(sender, names, seconds))
                if name == "SQLite":
                    sqlite = BareSqlite(location, recorded, tasks)
                    bare.append(sqlite.rate(seconds))
                    in_thread.append(await sqlite.rate_in_thread(seconds))
                else:
                    bare.append(await bare_postgres_rate(location, recorded, tasks, seconds))
            left, right = statistics.median(ours), statistics.median(bare)
            threaded = f"{statistics.median(in_thread):.0f}" if in_thread else ""
            say(
                f"  {callers} callers",
                f"{left:.0f}",
                f"{right:.0f}",
                threaded,
                f"{left / right:.2f}",
            )


# --- claim -------------------------------------------------------------------------------------


_BODY = b'{"statusUpdate":{"taskId":"task"}}' * 16


def fill(name: str, shape: str, rows: int) -> Script[None]:
    """Put a backlog into an empty outbox."""
    queue, host, place = SHAPES[shape]
    # PostgreSQL would keep what is deleted in the way until its vacuum comes by.
    empty = "DELETE FROM" if name == "SQLite" else "TRUNCATE"
    for table in ("pushkit_deliveries", "pushkit_bodies", "pushkit_subscriptions"):
        yield Statement(f"{empty} {table}")
    numbers = (
        f"WITH RECURSIVE s (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < {rows - 1})"
    )
    now = to_micros(NOW)
    yield Statement(
        "INSERT INTO pushkit_deliveries (id, subscription_id, tenant, owner, task_id, config_id,"
        " seq, origin, version, body_bytes, notified_at, not_before, scheduled_at)"
        f" {numbers} SELECT 'dlv_' || n, 'sub_' || {queue}, '', '', 'task-' || {queue}, 'config',"
        f" {place}, 'https://host-' || {host}, '1.0', {len(_BODY)}, {now} + n,"
        f" {now} + n, {now} + n FROM s"
    )
    yield Statement(
        "INSERT INTO pushkit_subscriptions (id, tenant, task_id, owner, config_id, version, url,"
        " origin, schemes, profile, filter, created_at, updated_at, last_seq, due_at)"
        " SELECT subscription_id, '', MIN(task_id), '', 'config', '1.0', MIN(origin), MIN(origin),"
        f" 'jwt', 'standard', '{{}}', {now}, {now}, MAX(seq), MIN(not_before)"
        " FROM pushkit_deliveries GROUP BY subscription_id"
    )
    yield Statement(
        "INSERT INTO pushkit_bodies (id, body) SELECT id, $1 FROM pushkit_deliveries", (_BODY,)
    )


def claiming(claims: Claims, room: Room, now: datetime) -> Script[list[Leased]]:
    """Claim once, and return the queues."""
    until = to_micros(now + timedelta(minutes=1))
    result = yield from claims.claim("benchmark", room, now=to_micros(now), until=until)
    return list(result.claimed)


def new_claims() -> Claims:
    """Return what claims queues of the outbox; no worker has died."""

    def lose(_jobs: Any, _deaths: int) -> Script[None]:
        yield from ()

    return Claims(tables=OUTBOX, lose=lose, probation_from=5)


class Undone(Exception):  # noqa: N818  # nothing went wrong
    """Raised to take a claim back."""


async def milliseconds(run: Callable[[], Any], times: int) -> float:
    """Return the median time of a call."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await run()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1000


async def measure_claim(name: str, sender: PushSender, rows: int, times: int) -> None:
    """Print what a claim costs with a short and with a long backlog."""
    claims, database = new_claims(), database_of(sender)
    later = NOW + timedelta(hours=1)

    def claim_and_undo() -> Script[None]:
        assert (yield from claiming(claims, ROOM, later))  # noqa: S101  # else nothing is measured
        raise Undone

    async def claim() -> None:
        with contextlib.suppress(Undone):
            await database.write(claim_and_undo())

    async def moments() -> None:
        await database.read(OUTBOX.moments(to_micros(later)))

    say(f"claim, {name}, ms", "100 rows", f"{rows} rows", "", "ratio")
    for shape in SHAPES:
        found: dict[str, list[float]] = {"claim": [], "next due": []}
        for size in (100, rows):
            await database.write(fill(name, shape, size))
            await analyse(database, name)
            for what, call in (("claim", claim), ("next due", moments)):
                await milliseconds(call, 3)
                found[what].append(await milliseconds(call, times))
        for what, (short, long) in found.items():
            say(f"  {what}: {shape}", f"{short:.2f}", f"{long:.2f}", "", f"{long / short:.2f}")


async def measure_blocked(name: str, sender: PushSender, rows: int) -> None:
    """Print what claims cost behind a destination that waits with a backlog."""
    claims, database = new_claims(), database_of(sender)
    later = NOW + timedelta(hours=1)

    async def claim() -> list[Leased]:
        return await database.write(claiming(claims, ROOM._replace(queues=1), later))

    def block() -> Script[None]:
        yield Statement("DELETE FROM pushkit_destinations")
        yield Statement(
            "INSERT INTO pushkit_destinations (tenant, owner, origin, until)"
            " VALUES ('', '', 'https://host-0', $1)",
            (to_micros(later + timedelta(hours=1)),),
        )
        yield Statement(
            "UPDATE pushkit_subscriptions SET origin = 'https://free', owner = 'another',"
            " due_at = due_at + 1000000000 WHERE id = 'sub_7'"
        )

    say(f"claim behind a wait, {name}", "claims until", "ms until", "ms each", "next due")
    for size in (100, rows):
        await database.write(fill(name, "a delivery each, one host", size))
        await database.write(block())
        await analyse(database, name)
        tries, began = 1, time.perf_counter()
        while not await claim():
            tries += 1
        until = (time.perf_counter() - began) * 1000
        each = await milliseconds(claim, 100)
        due = await milliseconds(lambda: database.read(OUTBOX.moments(to_micros(later))), 100)
        say(f"  {size} queues", tries, f"{until:.0f}", f"{each:.2f}", f"{due:.2f}")


async def analyse(database: Database, name: str) -> None:
    """Update PostgreSQL's statistics, as its autovacuum does in time."""

    def script() -> Script[None]:
        yield Statement("ANALYZE pushkit_deliveries")
        yield Statement("ANALYZE pushkit_subscriptions")

    if name == "PostgreSQL":
        await database.write(script())


# --- memory ------------------------------------------------------------------------------------


def resident_mib() -> float:
    """Return how much memory the process holds now."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


async def measure_memory(location: str, rows: int) -> None:
    """Print what the process holds before and after a backlog is delivered."""
    webhook = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.bench.sink", stdout=asyncio.subprocess.PIPE, cwd=HERE
    )
    assert webhook.stdout is not None  # noqa: S101
    [port] = json.loads(await webhook.stdout.readline())
    async with opened(location) as sender:
        for task in range(64):
            url = f"http://127.0.0.1:{port}/"
            await sender.subscribe(f"m{task}", {"url": url}, version="1.0")
        for _ in range(rows // 64):
            await asyncio.gather(*(sender.notify(update(f"m{task}")) for task in range(64)))
    began, before, peak = time.perf_counter(), resident_mib(), 0.0
    async with opened(location, working=True) as sender:
        early = 0.0
        while (await sender.outbox.stats()).states.get(DeliveryState.PENDING):
            await asyncio.sleep(0.2)
            peak = max(peak, resident_mib())
            if not early and time.perf_counter() > began + 2:
                early = resident_mib()
    taken = time.perf_counter() - began
    webhook.kill()
    await webhook.wait()
    say(f"memory over {rows} deliveries, MiB", "before", "after 2 s", "peak", "rows/s")
    say("  SQLite", f"{before:.0f}", f"{early:.0f}", f"{peak:.0f}", f"{rows / taken:.0f}")


# --- size --------------------------------------------------------------------------------------

SIZED = 20_000


def size_of(name: str) -> Script[int]:
    """Return the bytes of the deliveries, their bodies, and the indexes of both."""
    if name == "SQLite":
        pages = yield Statement(
            "SELECT SUM(pgsize) AS n FROM dbstat"
            " WHERE name LIKE '%deliveries%' OR name LIKE '%bodies%'"
        )
    else:
        pages = yield Statement(
            "SELECT pg_total_relation_size('pushkit_deliveries')"
            " + pg_total_relation_size('pushkit_bodies') AS n"
        )
    return int(pages[0]["n"])


async def measure_size(name: str, sender: PushSender) -> None:
    """Print what a pending delivery takes."""
    database = database_of(sender)
    await database.write(fill(name, "deep, ten tasks", SIZED))
    body = len(_BODY)
    taken = await database.read(size_of(name)) / SIZED
    say(f"  {name}", f"{body}", f"{taken:.0f}", "", f"{taken - body:.0f}")


# --- all of it ---------------------------------------------------------------------------------


async def run(arguments: argparse.Namespace, folder: Path, server: str) -> None:
    """Measure what was asked for."""

    async def locations(part: str) -> AsyncIterator[tuple[str, str]]:
        yield "SQLite", str(folder / f"{part}.db")
        dsn = await asyncio.to_thread(fresh, server)
        yield "PostgreSQL", dsn
        await asyncio.to_thread(execute, server, f"DROP SCHEMA {dsn.rpartition('=')[2]} CASCADE")

    if "enqueue" in arguments.only:
        async for name, location in locations("enqueue"):
            await measure_enqueue(name, location, arguments.seconds)
    if "claim" in arguments.only:
        async for name, location in locations("claim"):
            async with opened(location) as sender:
                await measure_claim(name, sender, arguments.rows, 30)
    if "blocked" in arguments.only:
        async for name, location in locations("blocked"):
            async with opened(location) as sender:
                await measure_blocked(name, sender, arguments.rows)
    if "size" in arguments.only:
        say("a pending delivery, bytes", "body", "on disk", "", "beside it")
        async for name, location in locations("size"):
            async with opened(location) as sender:
                await measure_size(name, sender)
    if "memory" in arguments.only:
        await measure_memory(str(folder / "memory.db"), arguments.drain)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--drain", type=int, default=64_000)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--postgres", help="A DSN; schemas are made there.")
    parts = ["enqueue", "claim", "blocked", "memory", "size"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        server = arguments.postgres
        if server is None:
            own = PostgresServer()
            stack.callback(own.remove)
            server = own.dsn
        asyncio.run(run(arguments, Path(folder), server))


if __name__ == "__main__":
    main()
