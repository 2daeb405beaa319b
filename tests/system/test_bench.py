"""`make bench`: each of its sides runs, and says what it cost. How much that is, no test says."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bench.__main__ import Scenario, Server, Sink, named, received, sent, serving
from benchmarks.bench.receiving import COMPARISONS, Arrivals, measure
from benchmarks.bench.sides import SIDES, Load, ready, store_backlog
from pushkit import KeyRing, PushSender
from pushkit.clock import utc_now
from tests.databases import fresh

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
SCENARIO = Scenario("a few", (), {"tasks": 2, "updates": 8, "backlog": 8})


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    with serving(SCENARIO) as webhooks:
        yield webhooks


@pytest.mark.parametrize("side", SIDES)
def test_a_sender_sends_what_it_was_given(side: str, sink: Sink) -> None:
    found = sent(SCENARIO, side, {}, sink, Server(None))

    assert found["per_second"] > 0


def test_a_sender_is_spread_over_processes(sink: Sink, postgres_server: str) -> None:
    special = {"database": "PostgreSQL", "workers": 2}

    found = sent(SCENARIO, "pushkit", special, sink, Server(postgres_server))

    assert found["per_second"] > 0


async def test_a_backlog_is_what_notify_leaves(tmp_path: Path) -> None:
    copied, notified = tmp_path / "copied.db", tmp_path / "notified.db"
    async with outbox(copied) as push:
        await store_backlog(push, str(copied), Load(ports=(8080,), tasks=2, backlog=8))
    async with outbox(notified) as push:
        load = Load(ports=(8080,), tasks=2, backlog=4)
        await store_backlog(push, str(notified), load)
        for task in (0, 1, 0, 1):
            await push.notify(ready(load, task))

    assert stored(copied) == stored(notified)


@contextlib.asynccontextmanager
async def outbox(path: Path) -> AsyncIterator[PushSender]:
    push = PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(utc_now()),
        database=path,
        allow=["127.0.0.1:*"],
    )
    await push.open()
    yield push
    await push.close()


def stored(path: Path) -> dict[str, list[dict[str, object]]]:
    """Return the rows that are delivered from, without names and moments of their own."""
    with closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        return {
            kind: [
                {name: value for name, value in dict(row).items() if name not in OWN}
                for row in database.execute(query)
            ]
            for kind, query in STORED.items()
        }


OWN = {
    "id",
    "subscription_id",
    "notified_at",
    "not_before",
    "scheduled_at",
    "due_at",
    "created_at",
    "updated_at",
}
STORED = {
    "subscriptions": "SELECT * FROM pushkit_subscriptions ORDER BY task_id",
    "deliveries": "SELECT *, length(id) FROM pushkit_deliveries ORDER BY task_id, seq",
    "bodies": (
        "SELECT typeof(b.body), length(b.body), b.traceparent, d.task_id, d.seq"
        " FROM pushkit_deliveries d LEFT JOIN pushkit_bodies b ON b.id = d.id"
        " ORDER BY d.task_id, d.seq"
    ),
}


def small(arrivals: Arrivals) -> Arrivals:
    """Return such a load with few notifications."""
    backlog = min(arrivals.backlog, 8)
    return replace(arrivals, number=8, tasks=2, connections=2, backlog=backlog)


# Each receiver with each load that a comparison has for it; many differ in size alone.
RECEIVERS = dict.fromkeys(
    (side, small(arrivals)) for each in COMPARISONS for side, arrivals in each.sides
)


@pytest.mark.parametrize(
    ("side", "arrivals"),
    [pytest.param(side, load, id=named(side, load)) for side, load in RECEIVERS],
)
async def test_a_receiver_answers_what_it_gets(
    side: str, arrivals: Arrivals, postgres_server: str
) -> None:
    if arrivals.database is not None:
        dsn = await asyncio.to_thread(fresh, postgres_server)
        arrivals = replace(arrivals, database=dsn)

    found = await measure(side, arrivals)

    assert found["answered"] > 0
    assert found["called"] > 0


def test_a_receiver_is_measured_in_a_process_of_its_own() -> None:
    found = received("bare PyJWT", small(Arrivals()), Server(None))

    assert found["answered"] > 0


def test_a_sender_that_fails_ends_the_bench(sink: Sink) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        sent(SCENARIO, "nobody", {}, sink, Server(None))


def test_each_script_can_be_imported() -> None:
    paths = sorted(map(str, (ROOT / "benchmarks").glob("*.py")))
    loading = f"import runpy\nfor path in {paths}: runpy.run_path(path, run_name='loaded')"
    done = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", loading], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
