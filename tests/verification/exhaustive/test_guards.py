"""Each guard of the protocol, taken out: the exhaustive check must see it.

Two are not here, because others make up for them. That a lease's begin moves the epoch, too, gives
each lease a number that operators see. That a lease is kept while a job is on its way to memory
(`_is_complete`) saves a claim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pushkit.delivery import gathering
from pushkit.outbox import changes, store
from pushkit.outbox.states import IS_IN_FLIGHT
from pushkit.queue import leases
from pushkit.queue.held import HeldQueue
from pushkit.queue.rules import Queue
from pushkit.queue.tables import UNFINISHED, QueueTables
from pushkit.storage.script import Script
from tests.verification.exhaustive import outbox
from tests.verification.exhaustive.outbox import explore
from tests.verification.exhaustive.test_outbox import GATHERING, SMALL

Patch = Callable[[pytest.MonkeyPatch], None]


def _replace(where: object, name: str, change: Callable[[Any], Any]) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(where, name, change(getattr(where, name)))

    return patch


def _handing(**pretended: Any) -> Patch:
    """Hand jobs over as if the queue's row said something else."""

    def change(appended: Any) -> Any:
        def changed(queue: Queue, *args: Any, **options: Any) -> Any:
            after, handed = appended(queue._replace(**pretended), *args, **options)
            kept = {name: getattr(queue, name) for name in pretended if name != "lease_worker"}
            return after._replace(**kept), handed

        return changed

    return _replace(outbox, "appended", change)


def _same_epoch(function: Any) -> Any:
    return lambda queue, *args, **options: function(queue, *args, **options)._replace(
        epoch=queue.epoch
    )


def _nothing(*_: Any, **__: Any) -> Script[None]:
    yield from ()


def _without_stops(advance: Any) -> Any:
    return lambda *args, **options: advance(*args, **{**options, "stops": lambda _: False})


def _takes_any(append: Any) -> Any:
    def changed(queue: HeldQueue[Any], job: Any) -> None:
        queue.tail = job.seq - 1
        append(queue, job)

    return changed


def _begins(**pretended: Any) -> Patch:
    """Begin jobs as if the memory held something else."""

    def change(may_begin: Any) -> Any:
        def changed(queue: HeldQueue[Any], now: float) -> bool:
            kept = {name: getattr(queue, name) for name in pretended}
            for name, value in pretended.items():
                setattr(queue, name, value)
            allowed = may_begin(queue, now)
            for name, value in kept.items():
                setattr(queue, name, value)
            return bool(allowed)

        return changed

    return _replace(HeldQueue, "may_begin", change)


def _under_any_epoch(renew: Any) -> Any:
    def changed(tables: QueueTables, held: Any, until: int) -> Script[set[str]]:
        queues = yield from tables.lock(list(held))
        renewed: set[str]
        renewed = yield from renew(tables, {each: queues[each].epoch for each in held}, until)
        return renewed

    return changed


GUARDS: dict[str, Patch] = {
    "settling compares the epoch": lambda _: outbox.OFF.add("settle under any epoch"),
    "only the holder is handed jobs": _handing(lease_worker=None),
    "nothing is handed over a pause": _handing(paused=0),
    "every end of a lease moves the epoch": _replace(leases, "released", _same_epoch),
    "disabling ends the lease": _replace(
        outbox, "released", lambda _: lambda queue, _: queue
    ),
    "memory appends only what is next": _replace(HeldQueue, "append", _takes_any),
    "a redriven job waits to be fetched": _replace(
        QueueTables, "hand_out", lambda _: _nothing
    ),
    "a holder that must stop gets no more": _replace(outbox, "advance", _without_stops),
    "a released queue is due when its first job is": _replace(
        leases, "schedule", lambda _: lambda *_: None
    ),
    "a paused queue is not due": _replace(
        leases, "schedule", lambda schedule: lambda queue, *args: schedule(
            queue._replace(paused=0), *args
        ),
    ),
    "what is in flight is not cancelled": _replace(
        changes, "cancel",
        lambda cancel: lambda queue, *args: cancel(
            queue._replace(lease_worker=None, sending_to=0), *args
        ),
    ),
    "a change makes the holder look": _replace(
        outbox, "reschedule", lambda *_: _nothing
    ),
    "renewing compares the epoch": _replace(QueueTables, "renew", _under_any_epoch),
    "nothing begins without lease left": _begins(until=9.0),
    "nothing begins behind a failure": _begins(must_settle=False, stops=False),
    "waits that were set in the future begin now": _replace(
        QueueTables, "after_setback", lambda _: _nothing
    ),
    "results are of this redrive": _replace(
        outbox, "store_results",
        lambda store: lambda pairs, **options: _of_any_redrive(store, pairs, options),
    ),
    "a result that is not stored makes the holder look": lambda _: outbox.OFF.add(
        "look after a dropped result"
    ),
    "look for a gap that memory knows of": _replace(
        leases, "_looks", lambda _: lambda queue, _: queue.due_at is not None
    ),
}  # fmt: skip


def _gathers(condition: str) -> Patch:
    """Gather deliveries that meet another condition than that they were never begun."""
    return _replace(store, "_NEVER_BEGUN", lambda _: f"{UNFINISHED} AND {condition}")


def _over_others(newest: Any) -> Any:
    """Gather with a chunk that others stand behind."""

    def changed(queue: Queue, *, since: int) -> Script[Any]:
        found = None
        for seq in range(queue.last_seq, 0, -1):
            earlier = yield from newest(queue._replace(last_seq=seq), since=since)
            found = earlier if earlier is not None and earlier.is_waiting else found
        return found

    return changed


GUARDS |= {
    "what a worker has, or had, is not gathered": _gathers("redrives = 0"),
    "what a worker had is not gathered, whatever is counted": _gathers(
        f"redrives = 0 AND attempts = 0 AND NOT {IS_IN_FLIGHT}"
    ),
    "what is sent again is not gathered": _gathers("waits = 1"),
    "nothing is gathered over what stands between": _replace(store, "newest", _over_others),
    "what is not gathered ends the wait of a chunk": _replace(store, "hurry", lambda _: _nothing),
    "a wait that was set in the future is shortened": _replace(
        gathering, "make_way",
        lambda make_way: lambda queue, to, *, now: make_way(
            queue, to._replace(hurries=to.hurries and to.replaces is None), now=now
        ),
    ),
}  # fmt: skip


def _of_any_redrive(store: Any, pairs: Any, options: Any) -> Script[set[str]]:
    stored = set[str]()
    for redrives in (0, 1):
        some = [(replace(delivery, redrives=redrives), result)
                for delivery, result in pairs]  # fmt: skip
        stored |= yield from store(some, **options)
    return stored


# The smallest budget that sees it; of those that are not here, two jobs and an operator.
SEEN_BY = {
    "settling compares the epoch": "an operator beside replies that are lost",
    "every end of a lease moves the epoch": "an operator beside replies that are lost",
    "memory appends only what is next": "replies that are lost or late",
    "a released queue is due when its first job is": "a clock that is set back",
    "renewing compares the epoch": "an operator beside failures",
    "nothing begins without lease left": "an operator beside failures",
    "nothing begins behind a failure": "a destination that waits",
    "waits that were set in the future begin now": "a clock that is set back",
    "look for a gap that memory knows of": "an operator beside replies that are lost",
    "what a worker has, or had, is not gathered": "chunks that fail",
    "what a worker had is not gathered, whatever is counted": "chunks that fail",
    "what is sent again is not gathered": "chunks and two operators",
    "nothing is gathered over what stands between": "chunks and two operators",
    "what is not gathered ends the wait of a chunk": "chunks and two operators",
    "a wait that was set in the future is shortened": "chunks while the clock is set back",
}


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.slow
def test_the_check_sees_that_a_guard_is_missing(
    guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    GUARDS[guard](monkeypatch)
    budget = SEEN_BY.get(guard, "an operator")
    try:
        assert explore((SMALL | GATHERING)[budget]).wrong
    finally:
        outbox.OFF.clear()
