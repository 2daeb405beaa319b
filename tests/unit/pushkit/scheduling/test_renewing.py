"""A value that is fetched once at a time, and returned at once while it is good."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from pushkit.errors import OutboundError
from pushkit.scheduling.renewing import CachedValue, Renewing
from tests.eventually import DEADLINE, eventually

START = datetime(2026, 1, 1, tzinfo=UTC)


class Source:
    """Fetches numbers that are fresh for 10 s and good for 20; fails or waits on demand."""

    def __init__(self) -> None:
        self.now = START
        self.asked = 0
        self.fails = False
        self.go_on = asyncio.Event()
        self.go_on.set()

    def clock(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    async def fetch(self, _held: CachedValue[int] | None) -> CachedValue[int]:
        self.asked += 1
        number, since = self.asked, self.now
        await self.go_on.wait()
        if self.fails:
            raise OutboundError(f"failure {number}")
        return CachedValue(
            value=number,
            since=since,
            fresh_until=since + timedelta(seconds=10),
            good_until=since + timedelta(seconds=20),
        )


@pytest.fixture
async def source() -> Source:
    return Source()


@pytest.fixture
async def value(source: Source) -> AsyncIterator[Renewing[int]]:
    value = Renewing(source.fetch, clock=source.clock)
    yield value
    await value.close()


def test_a_fetch_that_a_closed_event_loop_left_is_made_anew(source: Source) -> None:
    value, first = Renewing(source.fetch, clock=source.clock), asyncio.new_event_loop()

    async def close_and_get() -> int | None:
        await value.close()
        source.go_on = asyncio.Event()
        source.go_on.set()
        return await value.get()

    source.go_on.clear()
    getting = first.create_task(value.get())
    first.run_until_complete(asyncio.sleep(0))
    first.run_until_complete(asyncio.sleep(0))
    first.close()
    assert asyncio.run(close_and_get()) == 2
    assert not getting.done()


async def test_a_fresh_value_is_fetched_once(source: Source, value: Renewing[int]) -> None:
    assert value.usable() is None
    for _ in range(3):
        assert await value.get() == 1
    source.advance(9.9)
    assert await value.get() == value.usable() == 1
    assert not value.is_flying


async def test_a_good_value_is_returned_while_the_next_is_fetched(
    source: Source, value: Renewing[int]
) -> None:
    await value.get()
    source.go_on.clear()
    for moment in (10, 9.9):
        source.advance(moment)
        assert [await value.get(), await value.get()] == [1, 1]
        assert value.is_flying
    source.advance(0.1)  # not good any more: callers wait for the fetch in progress
    waiting = [asyncio.create_task(value.get()) for _ in range(5)]
    await asyncio.sleep(0)
    waiting.pop().cancel()
    source.go_on.set()
    assert await asyncio.gather(*waiting) == [2] * 4
    assert source.asked == 2


async def test_after_failures_the_next_fetch_waits_longer_and_longer(
    source: Source, value: Renewing[int]
) -> None:
    source.fails = True
    tried: list[int] = []
    for second in range(70):
        assert await value.get() is None
        if source.asked > len(tried):
            tried.append(second)
            assert str(value.failure) == f"failure {source.asked}"
        source.advance(1)
    assert tried == [0, 1, 3, 7, 15, 31, 61]
    source.fails = False
    source.advance(30)
    assert (await value.get(), value.failure) == (8, None)


async def test_while_fetches_fail_the_value_is_used_while_it_is_good(
    source: Source, value: Renewing[int]
) -> None:
    await value.get()
    source.fails = True
    source.advance(10)
    assert await value.get() == 1
    assert await value.renew() is None  # the fetch that had begun
    source.advance(9.9)
    assert await value.get() == 1
    source.advance(0.1)
    assert await value.get() is None


async def test_a_clock_that_is_set_back_does_not_prolong_a_value(
    source: Source, value: Renewing[int]
) -> None:
    await value.get()
    source.advance(-10)
    assert value.usable() == 1
    source.advance(-0.1)
    assert value.usable() is None


async def test_a_wrong_value_is_replaced_once_in_thirty_seconds(
    source: Source, value: Renewing[int]
) -> None:
    await value.get()
    both = await asyncio.gather(value.renew_early(), value.renew_early())
    assert list(both) == [2, 2]
    assert await value.renew_early() is None
    source.advance(30)
    assert await value.renew_early() == 3


async def test_a_wrong_value_is_kept_while_it_cannot_be_replaced(
    source: Source, value: Renewing[int]
) -> None:
    await value.get()
    source.fails = True
    assert await value.renew_early() is None
    assert value.usable() == 1


async def test_a_failure_keeps_nothing_of_its_fetch_in_memory(source: Source) -> None:
    bodies: list[weakref.ref[set[int]]] = []

    async def fetch(_held: CachedValue[int] | None) -> CachedValue[int]:
        body = {1}
        bodies.append(weakref.ref(body))
        try:
            int("no number")
        except ValueError as exc:
            raise OutboundError("not what was expected") from exc
        raise AssertionError

    value: Renewing[int] = Renewing(fetch, clock=source.clock)
    assert await value.get() is None
    assert [body() for body in bodies] == [None]
    await value.close()


def test_a_renewing_value_continues_in_another_event_loop() -> None:
    async def fetch(_held: CachedValue[int] | None) -> CachedValue[int]:
        return CachedValue(value=1, since=START, fresh_until=START, good_until=START)

    value = Renewing(fetch, clock=lambda: START)

    async def use(*, fetches: bool) -> int | None:
        found = await value.get() if fetches else None
        await value.close()
        return found

    assert asyncio.run(use(fetches=True)) == 1
    assert asyncio.run(use(fetches=False)) is None
    assert asyncio.run(use(fetches=True)) == 1


async def test_without_unasked_it_is_not_renewed_and_close_cancels_its_fetch(
    source: Source, value: Renewing[int]
) -> None:
    await value.get()
    assert value._timer is None
    source.go_on.clear()
    source.advance(20)
    waiting = asyncio.create_task(value.get())
    await asyncio.sleep(0)
    await value.close()
    assert await waiting is None
    assert not value.is_flying


async def test_a_value_is_renewed_unasked_however_often_it_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As senders are reloaded: `receiver serve` on SIGHUP, or as files change."""
    monkeypatch.setattr("pushkit.scheduling.renewing._LEAST_PAUSE", timedelta(seconds=0.1))

    async def fetch(_held: CachedValue[int] | None) -> CachedValue[int]:
        good_until = START + timedelta(hours=1)
        return CachedValue(value=1, since=START, fresh_until=START, good_until=good_until)

    value = Renewing(fetch, clock=lambda: START, unasked=True)
    async with asyncio.timeout(DEADLINE):
        while value.fetches < 3:
            value.start()
            await asyncio.sleep(0.02)
    await value.close()


def test_a_value_is_renewed_unasked_after_an_event_loop_that_ended_without_its_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pushkit.scheduling.renewing._LEAST_PAUSE", timedelta(seconds=0.02))

    async def fetch(_held: CachedValue[int] | None) -> CachedValue[int]:
        good_until = START + timedelta(hours=1)
        return CachedValue(value=1, since=START, fresh_until=START, good_until=good_until)

    value = Renewing(fetch, clock=lambda: START, unasked=True)

    async def renewed_after_start() -> None:
        value.start()
        await eventually(lambda: value.fetches > 1)
        await value.close()

    asyncio.run(value.renew())
    asyncio.run(renewed_after_start())
