"""Callbacks from the inbox: in order for each task, retried, dead letters at last, never twice."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import sqlite3
import threading
import weakref
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import pytest

from pushkit.errors import StorageError
from pushkit.queue.rules import Handed, Room
from pushkit.queue.runner import seconds
from pushkit.scheduling import stop_after_attempt
from pushkit.scheduling.retry import RetryPolicy, next_attempt, wait_schedule
from pushkit.storage import postgres as on_postgres
from pushkit.storage.script import Script
from receiver import Notification
from receiver.admin import InboxAdmin, open_inbox
from receiver.callbacks.dispatcher import Dispatcher, callback_retry
from receiver.inbox.inspection import InboxFilter
from receiver.inbox.model import Call
from receiver.inbox.store import INBOX, group_of, queue_id_of, record_calls
from tests.eventually import DEADLINE, PATIENT, eventually
from tests.unit.receiver.callbacks.conftest import BODY, LEASE, RETRY, START, House, running
from tests.unit.receiver.storing import store

LEASED, SURE_FOR = "receiver.callbacks.dispatcher._LEASE", "receiver.callbacks.dispatcher._SURE_FOR"


# --- kinds of callables -------------------------------------------------------------------------


async def test_a_plain_function_runs_beside_the_loop(house: House) -> None:
    threads: list[int] = []

    def plain(_: Notification) -> None:
        threads.append(threading.get_ident())

    house.registry.add(plain)
    await house.store()
    await house.run_once()

    assert len(threads) == 1
    assert threads[0] != threading.get_ident()
    assert await house.counts() == {"done": 1}


async def test_an_object_with_an_asynchronous_call_is_awaited(house: House) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.called = 0

        async def __call__(self, _: Notification) -> None:
            await asyncio.sleep(0)
            self.called += 1

    recorder = Recorder()
    house.registry.add(recorder)
    await house.store()
    await house.run_once()

    assert recorder.called == 1


async def test_an_unmatched_notification_can_be_redriven(house: House) -> None:
    house.registry.add(forget, states=["completed"], name="completed")
    for number in (1, 2):
        await house.store(number)
        await house.run_once()
    await house.store(1, None, body=b'{"message":{"messageId":"m"}}')
    await house.run_once()
    admin = InboxAdmin(house.database)
    stats, unmatched = await admin.stats(), InboxFilter(unmatched=True)
    kept = await admin.find(unmatched)

    house.record("later")
    redriven = await admin.redrive(unmatched)
    while await house.run_once():
        continue

    assert [each.unmatched for each in stats.senders] == [3]
    assert [each.delivery_id for each in kept] == ["task-1#1", "task-1#2", "None#1"]
    assert redriven.ids == tuple(each.id for each in kept)
    assert sorted(house.called) == ["later:None#1", "later:task-1#1", "later:task-1#2"]
    assert await admin.find(unmatched) == []


async def test_a_redrive_of_dead_letters_leaves_unmatched_notifications(house: House) -> None:
    await house.store()
    await house.run_once()
    admin = InboxAdmin(house.database)

    assert (await admin.redrive(InboxFilter())).ids == ()
    assert (await admin.redrive([1])).ids == (1,)


async def forget(_: Notification) -> None:
    """Do nothing with it."""


# --- order --------------------------------------------------------------------------------------


async def test_tasks_run_beside_each_other(house: House) -> None:
    meeting = asyncio.Barrier(3)  # none passes unless all three run at once

    async def meet(_: Notification) -> None:
        async with asyncio.timeout(DEADLINE):
            await meeting.wait()

    house.registry.add(meet)
    for task in ("task-1", "task-2", "task-3"):
        await house.store(1, task)
    await house.run_once()

    assert await house.counts() == {"done": 3}


async def test_no_more_callbacks_run_at_once_than_the_concurrency(house: House) -> None:
    running, most = 0, 0

    async def count(_: Notification) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    house.registry.add(count)
    for number in range(10):
        await house.store(1, f"task-{number}")
    dispatcher = house.another_dispatcher(concurrency=3)
    while await dispatcher.run_once():
        continue

    assert most == 3
    assert await house.counts() == {"done": 10}


async def test_a_failing_task_does_not_delay_another(house: House) -> None:
    house.record("record", failures=1)
    await house.store(1, "task-1")
    await house.run_once()
    await house.store(2, "task-1")
    await house.store(1, "task-2")

    started = await house.run_once()

    assert started == 1
    assert house.called == ["record:task-1#1", "record:task-2#1"]


async def test_large_bodies_are_decoded_in_turns(house: House, decoded_in: list[int]) -> None:
    house.record("first")
    for number in range(5):
        await house.store(1, f"task-{number}", body=(BODY % number + " " * 20_000).encode())

    await house.run_once()

    *rounds, _ = decoded_in
    assert len(rounds) == len(set(rounds)) == 5
    assert await house.counts() == {"done": 5}


# --- failure ------------------------------------------------------------------------------------


async def test_a_failing_callback_is_called_again_by_schedule(house: House) -> None:
    house.record("record", failures=2)
    await house.store()
    seconds_of_calls = []
    for second in range(40):
        house.now = START + timedelta(seconds=second)
        if await house.run_once():
            seconds_of_calls.append(second)

    assert seconds_of_calls == [0, 10, 30]
    assert await house.counts() == {"done": 1}


async def test_a_callback_that_keeps_failing_is_a_dead_letter_and_its_task_continues(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.record("record", failures=3)
    await house.store(1)
    await house.store(2)
    for second in (0, 10, 30):
        house.now = START + timedelta(seconds=second)
        await house.run_once()

    assert house.called == ["record:task-1#1"] * 3 + ["record:task-1#2"]
    assert await house.counts() == {"dead": 1, "done": 1}
    assert "dead letter: record: RuntimeError" in caplog.text


async def test_failures_alike_are_lines_with_one_traceback(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.record("record", failures=3)
    for number in range(3):
        await house.store(task_id=f"task-{number}")
    await house.run_once()

    failed = [each for each in caplog.records if "callback record failed" in each.message]
    assert [each.message.endswith(": RuntimeError") for each in failed] == [True] * 3
    assert [each.exc_info is not None for each in failed] == [True, False, False]


@pytest.mark.parametrize(
    ("attempts", "called"),
    [
        pytest.param(1, ["a:task-1#1", "a:task-1#2"], id="the-next-of-its-task"),
        pytest.param(2, ["a:task-1#1", "a:task-1#1", "a:task-1#2"], id="its-own-retry"),
    ],
)
async def test_the_notification_after_a_failure_does_not_wait_for_the_poll(
    house: House, monkeypatch: pytest.MonkeyPatch, attempts: int, called: list[str]
) -> None:
    monkeypatch.setattr(LEASED, 4 * PATIENT)
    monkeypatch.setattr(SURE_FOR, 2 * PATIENT)
    monkeypatch.setattr("receiver.callbacks.dispatcher.POLL_INTERVAL", 2 * PATIENT)
    at_once = RetryPolicy(wait=wait_schedule((0,)), stop=stop_after_attempt(attempts))
    dispatcher = house.another_dispatcher(retry=at_once)

    async def fail_first(notification: Notification) -> None:
        house.called.append(f"a:{notification.delivery_id}")
        if len(house.called) <= attempts:
            raise RuntimeError

    house.registry.add(fail_first, name="a")
    await house.store(1)
    await house.store(2)
    async with running(dispatcher):
        await eventually(lambda: house.called == called)


async def test_a_callback_that_succeeded_is_not_repeated_for_one_that_fails(house: House) -> None:
    house.record("first")
    house.record("failing", failures=1)
    house.record("last")
    await house.store()
    await house.run_once()
    house.now += timedelta(seconds=10)
    await house.another_dispatcher().run_once()  # as after a restart

    assert house.called == [
        "first:task-1#1",
        "failing:task-1#1",
        "last:task-1#1",
        "failing:task-1#1",
    ]


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(StopIteration, id="StopIteration"),
        pytest.param(StopAsyncIteration, id="StopAsyncIteration"),
        pytest.param(asyncio.CancelledError, id="CancelledError"),
        pytest.param(TimeoutError, id="TimeoutError"),
        pytest.param(RecursionError, id="RecursionError"),
        pytest.param(SystemExit, id="SystemExit"),
        pytest.param(BaseException, id="BaseException"),  # as time-outs of some libraries
    ],
)
@pytest.mark.parametrize("plain", [pytest.param(True, id="plain"), pytest.param(False, id="async")])
async def test_whatever_a_callback_raises_is_a_failure(
    house: House, error: type[BaseException], plain: bool
) -> None:
    def fail_plainly(_: Notification) -> None:
        raise error

    async def fail(_: Notification) -> None:
        raise error

    house.registry.add(fail_plainly if plain else fail, name="failing")
    await house.store()
    async with asyncio.timeout(DEADLINE):
        for second in (0, 10, 30):
            house.now = START + timedelta(seconds=second)
            await house.run_once()

    assert await house.counts() == {"dead": 1}


async def test_a_notification_that_cannot_be_read_does_not_delay_its_task(house: House) -> None:
    house.record("record")
    await house.store(1, body=b"of another code")
    await house.store(2)
    rounds = [await house.run_once() for _ in range(2)]

    assert rounds == [2, 0]
    assert house.called == ["record:task-1#2"]
    assert await house.counts() == {"dead": 1, "done": 1}


def test_the_default_schedule_gives_up_after_ten_attempts_in_about_two_hours() -> None:
    now, attempts = START, 1
    while retry_at := next_attempt(callback_retry(), attempts=attempts, since=START, now=now):
        now, attempts = retry_at, attempts + 1

    assert attempts == 10
    assert timedelta(hours=1.5) < now - START < timedelta(hours=3)


# --- leases -------------------------------------------------------------------------------------


async def test_a_worker_suspended_in_a_claim_calls_nothing_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.record("record")
    await house.store()
    slept, sleeps = [0.0], [0.0]

    def clock() -> datetime:
        slept[:] = sleeps
        return house.now

    let_time_leap(slept, monkeypatch)
    database = open_inbox(house.location, clock=clock)
    await database.open()
    dispatcher = Dispatcher(database, house.registry, retry=RETRY, concurrency=16)
    sleeps[:] = [LEASE.total_seconds()]
    assert await dispatcher.run_once() == 0
    assert house.called == []
    assert await house.counts() == {"in_progress": 1}  # until its lease ends

    house.now += LEASE
    await dispatcher.run_once()
    await database.close()
    assert house.called == ["record:task-1#1"]


async def test_a_lease_that_may_have_ended_is_asked_for_before_the_next_call(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    @house.registry.add
    async def first(_: Notification) -> None:
        for queue in house.dispatcher.runner.memory.queues.values():
            queue.until = 0  # as after a sleep of this machine

    house.record("record")
    await house.store()
    await house.run_once()

    assert "its lease may have ended" not in caplog.text
    assert house.called == ["record:task-1#1"]
    assert await house.counts() == {"done": 1}


def let_time_leap(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process measure so many more seconds than it was awake."""

    def measured() -> float:
        return seconds() + slept[0]

    for module in ("pushkit.queue.runner", "receiver.callbacks.dispatcher"):
        monkeypatch.setattr(f"{module}.seconds", measured)


async def break_off(house: House) -> None:
    """Claim what is due, as a process that dies before it settles; another process notices."""
    dying, other = house.another_dispatcher(), house.another_dispatcher()
    claims = await dying.claim(Room(64, lambda _: 64), ())
    assert claims.claimed
    house.locks.release(dying.name)
    await other.claim(Room(0, lambda _: 0), ())


async def test_a_notification_that_keeps_ending_its_process_is_a_dead_letter(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    house.record("deadly")
    house.record("also")
    await house.store(1)
    await house.store(2)
    for second in (0, 0, 1):  # the policy's attempts
        house.now = START + timedelta(seconds=second)
        await break_off(house)
    assert await house.run_once() == 0

    house.now += timedelta(seconds=2)
    await house.run_once()

    assert house.called == ["deadly:task-1#2", "also:task-1#2"]
    assert await house.counts() == {"dead": 1, "done": 1}
    assert "the process ended 3 times in the middle of: deadly, also" in caplog.text


async def test_a_notification_broken_off_more_often_waits_a_little_and_goes_alone(
    house: House,
) -> None:
    house.record("record")
    for number in (1, 2):
        await house.store(number)
    await house.store(1, "task-2")
    for _ in range(2):
        await break_off(house)
    assert await house.run_once() == 0

    house.now += timedelta(seconds=1)
    again = await house.another_dispatcher().claim(Room(64, lambda _: 64), ())
    report = await house.report()

    assert [[job.seq for job in each.jobs] for each in again.claimed] == [[1], [1]]
    assert report.notification.attempts == 2


async def test_the_deaths_of_a_queue_are_forgotten_once_a_notification_of_it_has_ended(
    house: House,
) -> None:
    house.record("record")
    for number in range(1, 4):
        await house.store(number)
        await break_off(house)
        await house.run_once()

    assert house.called == ["record:task-1#1", "record:task-1#2", "record:task-1#3"]


async def test_a_dispatcher_that_ends_gives_back_what_it_broke_off(house: House) -> None:
    started = asyncio.Event()

    async def endless(_: Notification) -> None:
        started.set()
        await asyncio.Event().wait()

    house.record("first")
    house.registry.add(endless, name="endless")
    await house.store()
    await house.dispatcher.runner.fill()
    await started.wait()
    await house.dispatcher.finish(timedelta(0))
    await house.dispatcher.retire()
    queue_id = queue_id_of("agent", "task-1", "")
    queues = await house.database.read(INBOX.read([queue_id]))
    [claimed] = await house.claim("next")

    assert queues[queue_id].abandoned == 0  # that was no death
    assert (claimed.attempts, claimed.broken_off) == (0, False)
    assert (claimed.had_by("first"), claimed.had_by("endless")) == (True, False)
    assert house.locks.dead([house.dispatcher.name]) == [house.dispatcher.name]


def _itself(name: str) -> list[str]:
    return [name]


async def test_a_dispatcher_that_ends_gives_back_what_is_just_being_stored(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("receiver.callbacks.dispatcher._LAST_WRITES", DEADLINE)
    house = House(postgres_dsn)  # its transactions run concurrently

    def store_in_hand(ids: Sequence[str], /, *, wait: bool) -> Script[list[None]]:  # noqa: ARG001
        yield from store(
            "task-1",
            body=b"{}",
            now=house.now,
            delivery_id=ids[0],
            worker=house.dispatcher.name,
            until=house.now + LEASE,
        )
        yield from house.database.hold(["in the way"], _itself, wait=True)
        return [None]

    async def it_waits() -> bool:
        return bool(await own.fetchval("SELECT COUNT(*) FROM pg_locks WHERE NOT granted"))

    await house.database.open()
    own = await asyncpg.connect(postgres_dsn)
    transaction = own.transaction()
    await transaction.start()
    await on_postgres.run_script(own, house.database.hold(["in the way"], _itself, wait=True))
    storing = house.database.write_together(store_in_hand, "delivery-1")
    await eventually(it_waits)
    retiring = asyncio.create_task(house.dispatcher.retire())
    await asyncio.wait([retiring], timeout=0.2)  # until it has to wait
    await transaction.rollback()
    await asyncio.gather(storing, retiring)
    counts = await house.counts()
    await own.close()
    await house.database.close()

    assert counts == {"received": 1}


@pytest.mark.parametrize("fails", [False, True], ids=["ends-well", "raises"])
async def test_a_call_is_recorded_even_if_the_end_breaks_that_off(
    postgres_dsn: str, fails: bool
) -> None:
    house = House(postgres_dsn)  # its statements can be cancelled while they run

    async def first(_: Notification) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)  # right after this call
        if fails:
            raise RuntimeError

    house.registry.add(first, name="first")
    if not fails:
        house.record("second")
    await house.database.open()
    try:
        await house.store()
        await house.run_once()
        report = await house.report()
    finally:
        await house.database.close()

    assert [(each.callback, each.done) for each in report.callbacks] == [("first", not fails)]
    assert report.notification.status.value == ("received" if fails else "in_progress")
    assert house.called == []


async def test_a_notification_handed_over_after_the_end_is_not_called_back_and_keeps_no_permit(
    house: House,
) -> None:
    house.record("record")
    await house.store()
    dispatcher = house.another_dispatcher(concurrency=1)
    for _ in range(2):
        running = asyncio.create_task(dispatcher.run())
        await eventually(lambda: dispatcher.has_room("new", 1))
        running.cancel()
        await asyncio.wait([running])
        await dispatcher.finish(within=timedelta(0))
        called = len(house.called)
        await house.store(len(house.called) + 1, "late")
        [job] = await house.claim(dispatcher.name)
        now = seconds()
        handed = Handed(job.queue_id, group_of("agent"), job.epoch, job.seq, True, version=0)
        dispatcher.runner.hand(handed, job, since=now, seen_at=now)
        await eventually(lambda: dispatcher.usage() == (0, 1))
        await dispatcher.retire()
        assert len(house.called) == called
        house.dispatcher = house.another_dispatcher()
        await house.run_once()

    assert await house.counts() == {"done": 3}


async def test_a_fault_of_the_database_before_a_call_is_not_taken_for_a_death(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.record("record")
    await house.store()
    await break_off(house)
    read, faults = house.database.read, [StorageError("the database refused")]

    async def fail_once(script: Script[Any]) -> Any:
        if faults:
            raise faults.pop()
        return await read(script)

    monkeypatch.setattr(house.database, "read", fail_once)
    await house.run_once()
    report = await house.report()

    assert not faults
    assert house.called == ["record:task-1#1"]
    assert report.notification.attempts == 2  # the death before, and this one


@pytest.mark.parametrize("names", [("lose",), ("lose", "record")], ids=["one", "several"])
async def test_no_call_is_repeated_however_long_the_database_is_away(
    house: House,
    names: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(SURE_FOR, timedelta(0))
    slept, tries = [0.0], 0
    let_time_leap(slept, monkeypatch)

    def count(calls: Sequence[Call], *, now: datetime) -> Script[None]:
        nonlocal tries
        tries += len(calls)
        yield from record_calls(calls, now=now)

    for module in ("dispatcher", "settling"):
        monkeypatch.setattr(f"receiver.callbacks.{module}.record_calls", count)

    async def lose(_: Notification) -> None:
        house.called.append("lose")
        execute(house.location, "ALTER TABLE pushkit_callbacks RENAME TO away")

    async def record(_: Notification) -> None:
        house.called.append("record")

    for name in names:
        house.registry.add({"lose": lose, "record": record}[name], name=name)
    await house.store()
    running = asyncio.create_task(house.run_once())

    await eventually(lambda: tries > 1)
    slept[:] = [10 * LEASE.total_seconds()]
    before = tries
    await eventually(lambda: tries > before + 1)
    assert re.search("cannot be (settled|recorded); trying again", caplog.text)
    execute(house.location, "ALTER TABLE away RENAME TO pushkit_callbacks")
    await running

    assert house.called == [*names]
    assert await house.counts() == {"done": 1}


@pytest.mark.parametrize("again", [False, True], ids=["while it runs", "before it starts again"])
async def test_what_failed_while_the_clock_was_ahead_is_called_again_in_time(
    house: House, *, again: bool
) -> None:
    ahead = timedelta(hours=8)
    house.now += ahead
    house.record("bad", failures=1)
    for number in (1, 2):
        await house.store(number)
    await house.run_once()
    house.now -= ahead
    if again:
        house.dispatcher = house.another_dispatcher()
    await house.run_once()
    house.now += timedelta(seconds=9)
    await house.run_once()
    assert house.called == ["bad:task-1#1"]
    house.now += timedelta(seconds=1)
    while await house.run_once():
        pass
    assert house.called == ["bad:task-1#1", "bad:task-1#1", "bad:task-1#2"]


async def test_an_outage_longer_than_a_lease_is_not_taken_for_the_death_of_others(
    house: House,
) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def slow(notification: Notification) -> None:
        house.called.append(notification.delivery_id)
        started.set()
        if len(house.called) == 1:
            await go_on.wait()

    house.registry.add(slow)
    await house.store()
    other = house.another_dispatcher()
    running = asyncio.create_task(house.run_once())
    await started.wait()
    execute(house.location, "ALTER TABLE pushkit_inbox_queues RENAME TO away")
    with pytest.raises(StorageError):
        await other.run_once()
    house.now += LEASE
    execute(house.location, "ALTER TABLE away RENAME TO pushkit_inbox_queues")

    assert await other.run_once() == 0
    go_on.set()
    await running
    assert house.called == ["task-1#1"]
    assert await house.counts() == {"done": 1}


async def test_the_notifications_of_a_worker_that_died_in_an_outage_are_taken_over_a_moment_later(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pushkit.queue.worker._SPARED_FOR", 0.0)
    house.locks.hold("gone")
    house.record("record")
    await house.store()
    await house.claim("gone")
    execute(house.location, "ALTER TABLE pushkit_inbox_queues RENAME TO away")
    with pytest.raises(StorageError):
        await house.run_once()
    house.now += LEASE
    execute(house.location, "ALTER TABLE away RENAME TO pushkit_inbox_queues")
    await house.run_once()

    assert house.called == ["record:task-1#1"]


def execute(location: str, sql: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(location)) as connection, connection:
        return connection.execute(sql).fetchall()


async def test_the_message_of_an_exception_is_not_stored(house: House) -> None:
    house.record("bad", failures=1)
    await house.store()
    await house.run_once()
    report = await house.report()

    assert report.notification.last_error == "bad: RuntimeError"
    assert "private" not in repr(report)


@pytest.mark.parametrize("is_plain", [False, True], ids=["coroutine", "plain"])
async def test_the_error_of_a_callback_is_freed_without_the_garbage_collector(
    house: House, caplog: pytest.LogCaptureFixture, *, is_plain: bool
) -> None:
    errors: list[weakref.ref[Exception]] = []

    class FailedError(Exception):
        def __init__(self) -> None:
            errors.append(weakref.ref(self))

    def plain(_: Notification) -> None:
        if not errors:
            raise FailedError

    async def coroutine(notification: Notification) -> None:
        plain(notification)

    house.registry.add(plain if is_plain else coroutine)
    caplog.set_level(logging.CRITICAL, logger="receiver")  # a captured record keeps its error
    gc.disable()
    try:
        for task_id in ("task-1", "task-2"):  # the thread takes the second call after the first
            await house.store(task_id=task_id)
            await house.run_once()
        freed = [error() is None for error in errors]
    finally:
        gc.enable()
    assert freed == [True]


# --- sequence -----------------------------------------------------------------------------------


async def test_every_subscription_has_its_own_sequence(house: House) -> None:
    seen: list[tuple[str | None, int, bool]] = []

    async def look(notification: Notification) -> None:
        seen.append((notification.config_id, notification.missing, notification.late))

    house.registry.add(look)
    await house.store(3, config_id="a")
    await house.store(1, config_id="b")
    await house.store(1, "task-2", config_id="a")
    while await house.run_once():
        continue

    assert sorted(seen, key=str) == [("a", 0, False), ("a", 2, False), ("b", 0, False)]


async def test_a_notification_that_fails_before_its_callbacks_becomes_a_dead_letter(
    house: House,
) -> None:
    house.record("note")
    await house.store()

    async def fail(notification: Notification) -> Notification:
        raise ArithmeticError(str(notification.id))

    failing = house.another_dispatcher(prepare=fail)
    for _ in range(12):
        await failing.run_once()
        house.now += LEASE + timedelta(seconds=1)
    assert await house.counts() == {"dead": 1}
    assert house.called == []


async def test_a_retry_waits_for_its_time_although_the_clock_was_set_back(house: House) -> None:
    house.record("other", failures=1)
    await house.store()
    await house.run_once()
    house.now -= timedelta(seconds=1)

    assert await house.run_once() == 0
    house.now += timedelta(seconds=12)
    assert await house.run_once() == 1
