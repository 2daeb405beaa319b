"""`make bench`: each of its sides runs, and says what it cost. How much that is, no test says."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.bench.__main__ import Scenario, Server, Sink, received, sent, serving
from benchmarks.bench.receiving import COMPARISONS, Arrivals
from benchmarks.bench.sides import SIDES, Load, ready, store_backlog
from pushkit import KeyRing, PushSender
from pushkit.clock import utc_now

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


AFTER_A_STOP = "receiver, after a stop"
SIDES_THAT_ANSWER = {side for each in COMPARISONS for side, _ in each.sides} - {AFTER_A_STOP}


@pytest.mark.slow
def test_a_receiver_works_off_what_was_accepted_while_it_called_nobody() -> None:
    assert received(AFTER_A_STOP, Arrivals(number=8, tasks=2), Server(None))["called"] > 0


@pytest.mark.parametrize("side", sorted(SIDES_THAT_ANSWER))
@pytest.mark.parametrize(
    "arrivals",
    [
        pytest.param(Arrivals(number=8, tasks=2, connections=2), id="accepted"),
        pytest.param(Arrivals(number=8, tasks=2, connections=2, forged=True), id="forged"),
        pytest.param(Arrivals(number=8, tasks=2, connections=2, repeated=True), id="repeated"),
        pytest.param(Arrivals(number=8, tasks=2, connections=2, processes=2), id="two processes"),
    ],
)
def test_a_receiver_answers_what_it_gets(side: str, arrivals: Arrivals) -> None:
    found = received(side, arrivals, Server(None))

    assert found["answered"] > 0


def test_a_sender_that_fails_ends_the_bench(sink: Sink) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        sent(SCENARIO, "nobody", {}, sink, Server(None))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem
)
def test_each_script_can_be_imported(path: Path) -> None:
    loading = f"import runpy; runpy.run_path({str(path)!r}, run_name='loaded')"
    command = [sys.executable, "-c", loading]
    done = subprocess.run(  # noqa: S603  # our own interpreter
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
