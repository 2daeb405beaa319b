"""Limits per owner of subscriptions and backlog, and the rate of requests per origin."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web

from pushkit import PushSender, SenderOptions
from pushkit.delivery.attempt import OriginRateLimiter
from pushkit.errors import ConfigError, TooManySubscriptionsError
from pushkit.net.destination import DestinationPolicy
from pushkit.storage import sqlite
from pushkit.storage.quota import Quota
from pushkit.storage.script import Rows, Script
from tests.clock import Clock
from tests.eventually import eventually
from tests.internet import HOOKS, Internet
from tests.unit.pushkit.delivery.conftest import HOOK, Senders, enqueue, status

ORIGIN = "https://client.example.com:443"


@pytest.fixture
async def either(location: str, clock: Clock) -> AsyncIterator[Senders]:
    """Return senders on SQLite or PostgreSQL: the test runs on both."""
    senders = Senders(location, clock)
    yield senders
    await senders.close()


def test_the_further_from_its_limit_the_less_often_a_holder_is_counted() -> None:
    counted: list[int] = []
    stored = 500_000

    def count(_: None, limit: int) -> Script[int]:
        yield from ()
        counted.append(limit)
        return stored

    def left(quota: Quota[None], second: int) -> int:
        script = quota.left(None, datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second))
        with pytest.raises(StopIteration) as ended:
            next(script)
        found: int = ended.value.value
        return found

    quota = Quota(1_000_000, count)
    assert [left(quota, second) for second in (0, 1, 2, 49)] == [500_000] * 4
    assert len(counted) == 1
    quota.add(None, 495_000)  # from now on, others might exceed the limit within a second
    assert left(quota, 49) == 500_000
    assert len(counted) == 2
    stored = 1_000_000
    assert [left(quota, second) for second in (99, 99, 100, 101)] == [0] * 4
    assert len(counted) == 5
    assert left(Quota(10**30, count), 0) > 0
    small = Quota(500_001, count)
    stored = 500_000
    assert [left(small, second) for second in (0, 1, 2)] == [1] * 3
    assert len(counted) == 9


# --- subscriptions -------------------------------------------------------------------------------


async def test_an_owner_has_at_most_max_subscriptions_per_owner(either: Senders) -> None:
    sender = await either.open(max_subscriptions_per_owner=2)
    for number in range(2):
        await sender.subscribe(f"task-{number}", HOOK, version="1.0", owner="alice")
    with pytest.raises(TooManySubscriptionsError, match="'alice' has 2 subscriptions") as caught:
        await sender.subscribe("task-2", HOOK, version="1.0", owner="alice")
    assert caught.value.code == "too_many_subscriptions"
    assert "max_" not in str(caught.value)  # clients read it
    assert await sender.subscriptions("task-2", owner="alice") == []
    # The limit does not affect other owners, in any tenant; alice has one limit for all tenants.
    assert await sender.subscribe("task-2", HOOK, version="1.0", owner="bob")
    with pytest.raises(TooManySubscriptionsError):
        await sender.subscribe("task-2", HOOK, version="1.0", owner="alice", tenant="acme")
    assert await sender.subscribe("task-2", HOOK, version="1.0", owner="bob", tenant="acme")


async def test_an_owner_at_its_limit_may_change_and_replace_a_subscription(
    either: Senders, clock: Clock
) -> None:
    sender = await either.open(max_subscriptions_per_owner=1)
    first = await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    changed = await sender.subscribe(
        "task-1", {"url": "https://other.example.com/"}, version="1.0", owner="alice"
    )
    assert (changed.id, changed.config.url) == (first.id, "https://other.example.com/")
    await sender.unsubscribe("task-1", owner="alice")
    clock.advance(1)  # counts are up to a second old; PostgreSQL uses the server's clock

    async def registered() -> bool:
        with suppress(TooManySubscriptionsError):
            await sender.subscribe("task-2", HOOK, version="1.0", owner="alice")
            return True
        return False

    assert await eventually(registered)


async def test_the_limit_of_subscriptions_applies_across_processes(either: Senders) -> None:
    for number in range(2):
        sender = await either.open(max_subscriptions_per_owner=2)
        await sender.subscribe(f"task-{number}", HOOK, version="1.0", owner="alice")
    another = await either.open(max_subscriptions_per_owner=2)
    with pytest.raises(TooManySubscriptionsError):
        await another.subscribe("task-2", HOOK, version="1.0", owner="alice")


# --- backlog -------------------------------------------------------------------------------------


async def test_an_owner_has_at_most_max_backlog_per_owner(either: Senders) -> None:
    sender = await either.open(max_backlog_per_owner=3)
    for number in range(2):
        await sender.subscribe(f"task-{number}", HOOK, version="1.0", owner="alice")
    await sender.subscribe("bobs", HOOK, version="1.0", owner="bob")
    for task_id in ("task-0", "task-1", "task-0"):
        await sender.notify(status(task_id=task_id))
    [refused] = (await sender.notify(status(task_id="task-1"))).refused
    assert refused.code == "backlog_full"
    assert re.search(r"'alice' .*max_backlog_per_owner", refused.message)
    assert len(await sender.deliveries("task-1")) == 1
    assert (await sender.notify(status(task_id="bobs"))).ids


async def test_tenants_do_not_raise_the_backlog_limit_of_an_owner(either: Senders) -> None:
    sender = await either.open(max_backlog_per_owner=2)
    for tenant in ("", "acme", "globex"):
        await sender.subscribe("task-1", HOOK, version="1.0", owner="alice", tenant=tenant)
    results = [await sender.notify(status(), tenant=tenant) for tenant in ("", "acme", "globex")]
    assert [len(each.ids) for each in results] == [1, 1, 0]
    assert [each.code for each in results[2].refused] == ["backlog_full"]


async def test_an_update_is_stored_for_as_many_subscriptions_as_the_quota_allows(
    either: Senders,
) -> None:
    sender = await either.open(max_backlog_per_owner=2)
    for number in range(3):
        config = HOOK | {"id": f"config-{number}"}
        await sender.subscribe("task-1", config, version="1.0", owner="alice")
    result = await sender.notify(status())
    assert len(result.deliveries) == 2
    assert [each.code for each in result.refused] == ["backlog_full"]
    assert len(await sender.deliveries("task-1")) == 2


# --- rate ----------------------------------------------------------------------------------------


class Seconds:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_second_of_requests_is_sent_at_once_and_the_rest_at_the_rate() -> None:
    clock = Seconds()
    pace = OriginRateLimiter(DestinationPolicy(), 4, clock=clock)
    assert [pace.take(ORIGIN) for _ in range(7)] == [0, 0, 0, 0, 0, 0.25, 0.25]
    clock.now = 0.25
    assert [pace.take(ORIGIN) for _ in range(2)] == [0, 0.25]
    clock.now = 100
    assert [pace.take(ORIGIN) for _ in range(6)] == [0, 0, 0, 0, 0, 0.25]


def test_origins_do_not_wait_for_each_other() -> None:
    pace = OriginRateLimiter(DestinationPolicy(), 1, clock=Seconds())
    assert [pace.take(ORIGIN) for _ in range(4)] == [0, 0, 1, 1]
    assert pace.take("https://other.example.com:443") == 0


@pytest.mark.parametrize(
    ("policy", "per_second"),
    [(DestinationPolicy(["client.example.com:*"]), 1.0), (DestinationPolicy(), None)],
)
def test_allowed_origins_and_origins_without_a_rate_never_wait(
    policy: DestinationPolicy, per_second: float | None
) -> None:
    pace = OriginRateLimiter(policy, per_second, clock=Seconds())
    assert {pace.take(ORIGIN) for _ in range(100)} == {0}


@pytest.mark.slow
def test_origins_that_no_longer_wait_are_forgotten() -> None:
    clock = Seconds()
    pace = OriginRateLimiter(DestinationPolicy(), 1, clock=clock)
    for number in range(25_000):
        clock.now = number
        pace.take(f"https://h{number}.example.com:443")
    assert len(pace._due) <= 10_000


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_of_nothing_is_a_configuration_error(rate: float) -> None:
    with pytest.raises(ConfigError, match="rate_per_origin"):
        SenderOptions(rate_per_origin=rate)
    assert SenderOptions(rate_per_origin=0.1)
    assert SenderOptions(rate_per_origin=None)


async def test_the_rate_per_origin_is_shared_by_all_owners(
    public: Internet, senders: Senders
) -> None:
    arrived: list[str] = []

    async def accept(request: web.Request) -> web.Response:
        arrived.append(request.path)
        return web.Response()

    await public.serve(accept)
    sender: PushSender = await senders.open(
        allow=(), ca_file=public.ca_file, rate_per_origin=2, concurrency_per_host=8
    )
    sender._attempt.rate_limiter._clock = seconds = Seconds()
    for number in range(6):
        url = f"https://{HOOKS}/of-{number}"
        await enqueue(sender, url, f"task-{number}", owner=f"o-{number}")
    runner = sender.worker.runner
    running = asyncio.create_task(sender.worker.run_once())
    for at_once in (3, 4, 5, 6):  # a burst of a second, then the rate
        await eventually(lambda: len(arrived) == at_once and not runner._turns)  # noqa: B023
        seconds.now += 0.5
    assert await running == 6


async def test_no_backlog_is_counted_on_the_thread_of_the_event_loop(
    senders: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted_on: list[threading.Thread] = []
    execute = sqlite._execute

    def noting(connection: sqlite3.Connection, sql: str, parameters: tuple[object, ...]) -> Rows:
        if sql.startswith("SELECT COUNT(*)"):
            counted_on.append(threading.current_thread())
        return execute(connection, sql, parameters)

    monkeypatch.setattr(sqlite, "_execute", noting)
    sender = await senders.open(max_backlog=5, max_backlog_per_owner=4)
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    counted_on.clear()
    for _ in range(3):  # so near to the limits that they are counted anew each second
        senders.clock.advance(2)
        await sender.notify(status())
    assert len(counted_on) == 6
    assert threading.current_thread() not in counted_on
