"""Every interleaving of the inbox within small budgets, and each of its guards, taken out.

Some guards are not among these, because others make up for them:
- that a queue which is leased is not deleted: its holder releases it as it settles the last one;
- that nothing begins behind a failure, or a stop: at most one result is not settled;
- that nothing begins without lease left: its first call asks for that again;
- that a lease's begin moves the epoch: its end does.

python -m tests.verification.exhaustive.inbox --notifications 2 --operations 1 --failures 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pushkit.queue import leases
from pushkit.queue.held import HeldQueue
from pushkit.queue.rules import Queue
from pushkit.queue.runner import seconds
from pushkit.queue.tables import QueueTables
from pushkit.storage.script import Script, Statement
from receiver import accepting
from receiver.callbacks import dispatcher, settling
from receiver.callbacks.dispatcher import Dispatcher
from receiver.callbacks.settling import Settler
from receiver.inbox import inspection, retention
from receiver.inbox.store import INBOX
from tests.long_runs import LONG
from tests.verification.exhaustive.inbox import Budget, explore
from tests.verification.exhaustive.test_guards import _nothing, _same_epoch, _takes_any

SMALL = {
    "everything once": Budget(
        notifications=1, operations=1, deletions=1, failures=1, crashes=1, lost=1
    ),
    "an operator beside failures": Budget(operations=1, failures=2),
    "replies that are lost or late": Budget(lost=1, late=1),
    "failures whose replies are lost": Budget(operations=1, failures=1, lost=1),
    "leases that end": Budget(failures=1, expiries=1),
    "processes that die": Budget(crashes=1, failures=1, operations=1),
    "processes that retire": Budget(retirings=1, failures=1),
    "queues that are deleted": Budget(deletions=2, expiries=1, late=1),
    "a clock that is set back": Budget(setbacks=1, failures=1),
    "processes that sleep": Budget(expiries=1, failures=1, asleep=True),
    "a sender at a process without callbacks": Budget(operations=1, failures=1, apart=True),
}
LARGE = {
    "two leases that end": Budget(failures=1, expiries=2),
    "two leases that end while processes sleep": Budget(failures=1, expiries=2, asleep=True),
    "three notifications and a lease that ends": Budget(
        notifications=3, operations=1, deletions=3, failures=1, expiries=1
    ),
    "an operator beside late replies and a lease that ends": Budget(
        operations=1, failures=1, late=1, expiries=1
    ),
    "a process that retires and a lease that ends": Budget(retirings=1, failures=1, expiries=1),
    "queues that are deleted while the clock is set back": Budget(
        deletions=2, failures=1, expiries=1, setbacks=1
    ),
    "queues that are deleted beside lost and late replies": Budget(
        deletions=2, expiries=1, setbacks=1, lost=1, late=1
    ),
    "queues that are deleted while processes sleep": Budget(
        deletions=2, failures=1, expiries=1, late=1, asleep=True
    ),
}


@pytest.mark.parametrize("budget", SMALL.values(), ids=SMALL)
@pytest.mark.slow
def test_no_interleaving_breaks_a_promise(budget: Budget) -> None:
    found = explore(budget)
    assert found.wrong is None, "\n".join((found.wrong, *found.trace))
    assert found.states > 100


@pytest.mark.skipif(not LONG, reason="for a night: make test-long")
@pytest.mark.parametrize("budget", LARGE.values(), ids=LARGE)
def test_no_longer_interleaving_breaks_a_promise(budget: Budget) -> None:
    found = explore(budget, most=20_000_000)
    assert found.wrong is None, "\n".join((found.wrong, *found.trace))


# --- guards ---------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def _replace(change: Callable[[Any], Any], name: str, *where: object) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for each in where:
            monkeypatch.setattr(each, name, change(getattr(each, name)))

    return patch


def _settling_any_epoch(script: Any) -> Any:
    def changed(settler: Settler, asks: Sequence[Any]) -> Script[Any]:
        queues = yield from INBOX.lock([ask.id for ask in asks])
        asks = [ask._replace(epoch=queues[ask.id].epoch if ask.id in queues else 0) for ask in asks]
        return (yield from script(settler, asks))

    return changed


def _renewing_any_epoch(renew: Any) -> Any:
    def changed(tables: QueueTables, held: Any, until: int) -> Script[Any]:
        queues = yield from tables.lock(list(held))
        return (yield from renew(tables, {each: queues[each].epoch for each in queues}, until))

    return changed


def _of_any_redrive(store_results: Any) -> Any:
    def changed(changes: Any, **options: Any) -> Script[set[int]]:
        stored = set[int]()
        for redrives in (0, 1, 2):
            some = [(job._replace(redrives=redrives), change) for job, change in changes]
            stored |= yield from store_results(some, **options)
        return stored

    return changed


def _calls_change(record_calls: Any) -> Any:
    def changed(calls: Sequence[Any], **options: Any) -> Script[None]:
        yield from record_calls(calls, **options)
        for each in calls:
            done = int(each.error is None)
            sql = "UPDATE pushkit_callbacks SET done = $1 WHERE notification_id = $2"
            yield Statement(f"{sql} AND callback = $3", (done, *each[:2]))

    return changed


def _without_calls(jobs_of: Any) -> Any:
    """Read the calls only of notifications whose row says that there were some."""

    def changed(leased: Any) -> Script[Any]:
        jobs = yield from jobs_of(leased)
        for job in jobs.values():
            if not (job.attempts or job.redrives or job.broken_off):
                job.callbacks = {}
        return jobs

    return changed


def _handing_to_anyone(appended: Any) -> Any:
    def changed(queue: Queue, *args: Any, **options: Any) -> Any:
        return appended(queue._replace(lease_worker=None), *args, **options)

    return changed


def _sure_of_any_epoch(_: Any) -> Any:
    def changed(self: Dispatcher, job: Any) -> bool:
        queue = self.runner.memory.queues.get(job.queue_id)
        return queue is not None and seconds() < queue.until

    return changed


def _says_yes(recording: Any) -> Any:
    def changed(*args: Any) -> Script[bool]:
        yield from recording(*args)
        return True

    return changed


def _also(sql: str) -> Callable[[Any], Any]:
    def change(delete_finished: Any) -> Any:
        def changed(*args: Any) -> Script[Any]:
            deleted = yield from delete_finished(*args)
            yield Statement(sql)
            return deleted

        return changed

    return change


async def _yes(*_: Any) -> bool:
    return True


# By what it says: within which budget it is missed, and how it is taken out.
GUARDS: dict[str, tuple[str, Patch]] = {
    "settling compares the epoch": (
        "leases that end", _replace(_settling_any_epoch, "script", Settler)
    ),
    "renewing compares the epoch": (
        "leases that end", _replace(_renewing_any_epoch, "renew", QueueTables)
    ),
    "a call is recorded before the next one": (
        "everything once", _replace(lambda _: _yes, "_record", Dispatcher)
    ),
    "each call asks whether the lease holds": (
        "leases that end", _replace(lambda _: _yes, "_is_leased", Dispatcher)
    ),
    "it asks for the lease of its own epoch": (
        "leases that end", _replace(_sure_of_any_epoch, "_is_sure", Dispatcher)
    ),
    "after a record it listens whether the lease holds": (
        "processes that sleep", _replace(_says_yes, "_recording", Dispatcher)
    ),
    "a callback that had it stays so": (
        "leases that end", _replace(_calls_change, "record_calls", dispatcher, settling)
    ),
    "the last call is recorded as it is settled": (
        "everything once", _replace(lambda _: _nothing, "record_calls", settling)
    ),
    "the calls of every one are read": (
        "processes that retire", _replace(_without_calls, "jobs_of", dispatcher, settling)
    ),
    "results are of this redrive": (
        "failures whose replies are lost",
        _replace(_of_any_redrive, "store_results", settling),
    ),
    "the next one begins when this one is settled": (
        "an operator beside failures",
        _replace(lambda _: property(lambda _: False), "is_full", HeldQueue),
    ),
    "a new queue's epoch is after those of the one before": (
        "queues that are deleted",
        _replace(lambda new: lambda *args: new(*args)._replace(epoch=0), "new_queue", accepting),
    ),
    "only an empty queue is deleted": (
        "queues that are deleted",
        _replace(
            _also("DELETE FROM pushkit_inbox_queues WHERE lease_worker IS NULL"),
            "delete_finished", retention,
        ),
    ),
    "ids of what is deleted are remembered": (
        "queues that are deleted",
        _replace(_also("DELETE FROM pushkit_forgotten"), "delete_finished", retention),
    ),
    "every end of a lease moves the epoch": (
        "everything once", _replace(_same_epoch, "released", leases)
    ),
    "only the holder is handed notifications": (
        "an operator beside failures", _replace(_handing_to_anyone, "appended", accepting)
    ),
    "memory appends only what is next": (
        "replies that are lost or late", _replace(_takes_any, "append", HeldQueue)
    ),
    "a redriven one waits to be fetched": (
        "an operator beside failures", _replace(lambda _: _nothing, "hand_out", QueueTables)
    ),
    "a redrive makes the holder look": (
        "an operator beside failures", _replace(lambda _: _nothing, "reschedule", inspection)
    ),
    "a released queue is due when its first one is": (
        "everything once", _replace(lambda _: lambda *_: None, "schedule", leases)
    ),
    "the queue of a call that hangs is kept": (
        "processes that retire",
        _replace(
            lambda give_back: lambda *args, **_: give_back(*args, but=()), "give_back", dispatcher
        ),
    ),
    "waits that were set in the future begin now": (
        "a clock that is set back", _replace(lambda _: _nothing, "after_setback", QueueTables)
    ),
    "look for a gap that memory knows of": (
        "replies that are lost or late",
        _replace(lambda _: lambda queue, _: queue.due_at is not None, "_looks", leases),
    ),
}  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.slow
def test_the_check_sees_that_a_guard_is_missing(
    guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, take_out = GUARDS[guard]
    take_out(monkeypatch)
    assert explore(SMALL[budget]).wrong is not None
