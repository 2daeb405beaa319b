"""What a worker remembers as a value, and how time passes for it; for states of any queue."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

from pushkit.queue.held import HeldQueue, Job
from pushkit.queue.rules import GroupKey, Leased

__all__ = ["Held", "frozen", "less", "more", "older", "spend", "thawed", "with_worker"]

J = TypeVar("J", bound=Job)
S = TypeVar("S", bound=Any)  # the tuple of a state, or of a worker


class Held(NamedTuple, Generic[J]):
    """A `HeldQueue` as a value; `until` is 1 while its lease is known to be valid."""

    epoch: int
    waiting: tuple[J, ...]
    current: J | None
    answered: tuple[J, ...]
    settling: tuple[J, ...]
    is_settling: bool
    tail: int
    gap: bool
    must_settle: bool
    stops: bool
    until: int
    # Of an attempt that is run anew up to where it waits: the answers that it got, and what it
    # waits for.
    log: tuple[Any, ...] = ()
    ask: tuple[Any, ...] | None = None


def thawed(held: Held[J], name: str, group: GroupKey, most_unsettled: int) -> HeldQueue[J]:
    """Return the queue that a value describes."""
    queue = HeldQueue[J](
        Leased(name, group, held.epoch, held.waiting, held.tail),
        until=float(held.until),
        seen_at=0.0,
        most_unsettled=most_unsettled,
    )
    queue.current = held.current
    queue.answered = list(held.answered)
    queue.settling = held.settling
    queue.is_settling = held.is_settling
    queue.gap, queue.must_settle, queue.stops = held.gap, held.must_settle, held.stops
    return queue


def frozen(queue: HeldQueue[J], of: Held[J] | None = None) -> Held[J]:
    """Return a queue as a value; its attempt goes on as that of an earlier value."""
    log, ask = (of.log, of.ask) if of and queue.current else ((), None)
    return Held(
        queue.epoch, tuple(queue.waiting), queue.current, tuple(queue.answered),
        tuple(queue.settling), queue.is_settling, queue.tail, queue.gap, queue.must_settle,
        queue.stops, int(queue.until), log, ask,
    )  # fmt: skip


def spend(state: S, name: str, by: int = 1) -> S:
    """Take from what may happen."""
    left = state.left._replace(**{name: getattr(state.left, name) - by})
    return state._replace(left=left)  # type: ignore[no-any-return]


def with_worker(state: S, number: int, worker: Any) -> S:
    """Replace one of the two workers."""
    workers = (worker, state.workers[1]) if number == 0 else (state.workers[0], worker)
    return state._replace(workers=workers)  # type: ignore[no-any-return]


def less(moment: Any) -> Any:
    """Return a moment once time has passed; what is over stays so."""
    return moment - 1 if moment else moment


def more(moment: Any) -> Any:
    """Return a moment once the clock was set back."""
    return None if moment is None else moment + 1


def older(worker: S) -> S:
    """Let time pass for what a worker remembers, and for replies on their way to it."""
    held, claimed = worker.held, worker.claimed
    return worker._replace(  # type: ignore[no-any-return]
        held=held and held._replace(until=less(held.until)),
        claimed=claimed and (claimed[0], less(claimed[1])),
        stores=tuple(store._replace(until=less(store.until)) for store in worker.stores),
    )
