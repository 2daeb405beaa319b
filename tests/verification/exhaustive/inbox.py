"""Every interleaving of two dispatchers, a sender, retention and an operator over one task's queue.

As in `outbox`, of which `explorer` has what is alike; scripts and attempts are the receiver's own
(`inbox_scripts`). A notification has two callbacks, and the
queue is deleted with its last notification.

python -m tests.verification.exhaustive.inbox --notifications 2 --operations 1 --failures 1
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

from pushkit.queue.held import Ask
from receiver.callbacks import dispatcher as dispatching
from receiver.inbox.model import Attempted, InboxStatus
from tests.verification.exhaustive import search
from tests.verification.exhaustive.explorer import Explorer as AnyExplorer
from tests.verification.exhaustive.explorer import Held as AnyHeld
from tests.verification.exhaustive.explorer import (
    Move,
    Store,
    epochs_of,
    frozen,
    less,
    more,
    older,
    ranked,
    spend,
    with_worker,
)
from tests.verification.exhaustive.explorer import State as AnyState
from tests.verification.exhaustive.explorer import Worker as AnyWorker
from tests.verification.exhaustive.inbox_scripts import (
    AHEAD,
    BEYOND,
    CALLBACKS,
    GROUP,
    OLD,
    QUEUE,
    Database,
    Job,
    Log,
    Note,
    Sql,
    View,
    continued,
)
from tests.verification.exhaustive.search import Wrong

__all__ = ["Budget", "explore"]


class Budget(NamedTuple):
    """How much may happen in one run."""

    notifications: int = 2
    operations: int = 0  # redrives
    deletions: int = 0  # by retention
    failures: int = 0  # of callbacks; put off, unreadable, wanted by none
    crashes: int = 0
    retirings: int = 0  # of a process that breaks its call off, or whose call hangs
    lost: int = 0  # replies of transactions that never arrive
    late: int = 0  # replies that arrive after other things
    expiries: int = 0  # leases that end under a live worker
    setbacks: int = 0  # of the clock
    asleep: bool = False  # whether the workers' clock stands still while they sleep
    apart: bool = False  # whether notifications are stored by a process without a dispatcher


# --- states ---------------------------------------------------------------------------------------

_FAILS: Final = ("unreadable", "unwanted", "full")
_ANSWERS: Final = dispatching._ANSWERS


Held = AnyHeld[Job]
Worker = AnyWorker[Job]


def _begun(held: Held) -> list[int]:
    """Return the notifications that were begun, and are not known to be settled."""
    jobs = (*held.answered, *held.settling, *([held.current] if held.current else []))
    return [job.id for job in jobs]


class History(NamedTuple):
    """What happened, as far as it matters; sets of notifications are bits."""

    had: int = 0  # by which callbacks
    excused: int = 0  # a call may be repeated: its worker died, was late, or broke it off
    set_back: bool = False  # whether the clock was, and no worker has noticed
    hangs: bool = False  # the call whose queue is leased under the old name


State = AnyState[Job, Database, Budget, History]


def _bits(ids: Sequence[int]) -> int:
    return sum(1 << each for each in set(ids))


def _bit_of(number: int, callback: str) -> int:
    return 1 << (2 * number + CALLBACKS.index(callback))


def _excuse(state: State, *turns: Held | None) -> State:
    bits = _bits([each for turn in turns if turn for each in _begun(turn)])
    return state._replace(history=state.history._replace(excused=state.history.excused | bits))


class Explorer(AnyExplorer[Job]):
    """The inbox's."""

    queue, group, most_unsettled = QUEUE, GROUP, 1
    fair = (
        *("hears of", "hears its", "renews", "slot taken", "records", "returns"),
        *("the hung call ends", "begins", "settles", "claims", "time passes"),
    )

    def __init__(self, budget: Budget) -> None:
        super().__init__(Sql(), budget)
        self.attempts: dict[tuple[Job, Log, View], Any] = {}

    # --- what must never happen ------------------------------------------------------------

    def checked(self, state: State, after: Database, name: str, args: tuple[Any, ...]) -> History:
        self.check(state, after, name, args)
        history = state.history
        for number in (each.id for each in state.database.jobs if each.id in after.forgotten):
            had = history.had & ~_bit_of(number, "a") & ~_bit_of(number, "b")
            history = history._replace(had=had, excused=history.excused & ~_bits([number]))
        return history

    def check(self, state: State, after: Database, name: str, args: tuple[Any, ...]) -> None:
        """Check what a transaction did."""
        before, queue = state.database, after.queue
        was = {note.id: note for note in before.jobs}
        now = {note.id: note for note in after.jobs}
        self.check_rows(after)
        for note in was.values():
            if note.id not in now and (name != "delete" or note.state == "pending"):
                raise Wrong(f"n{note.id} is lost, which was {note.state}")
        for number, note in now.items():
            old = was.get(number, note)
            if old.state == "pending" and note.state != "pending":
                self.check_finished(state, note, args)
            elif old.state != note.state and name != "redrive":
                raise Wrong(f"n{number} was {old.state}, and is {note.state}")
        had = {each for each in before.calls if each[2] and each[0] in now}
        if not had.issubset(after.calls):
            raise Wrong("a callback that had a notification is recorded as if it had not")
        if name == "give_back" and args[1] and queue != before.queue:
            raise Wrong("the queue of a call that hangs is given back")
        if name == "settle":
            self.check_settled(before, after, args[0])
        is_late = queue is not None and queue.lease_worker is None and (queue.due_at or 0) > 1
        if is_late and not state.history.set_back:  # no wait is longer
            raise Wrong("due too late")

    def check_rows(self, after: Database) -> None:
        queue, places = after.queue, [note.place for note in after.jobs]  # as accepted
        if after.stored != len(after.jobs) + len(after.forgotten):
            raise Wrong("an id was accepted, and is not known any more")
        if queue is None and places:
            raise Wrong("a notification has no queue")
        if sorted(set(places)) != places or (queue and max(places, default=0) > queue.last_seq):
            raise Wrong(f"places collide, or are beyond the last one: {places}")
        ids = {note.id for note in after.jobs}
        if any(of not in ids for of, _, _ in after.calls):
            raise Wrong("a call is recorded of a notification that was deleted")
        if queue is None or queue.lease_worker is not None:
            return
        if queue.sending_to:
            raise Wrong("sending without a lease")
        if queue.due_at is None and any(note.state == "pending" for note in after.jobs):
            raise Wrong("pending, leased by nobody, and never due: a lost wake-up")
        if not places:
            raise Wrong("an empty queue without a lease is left")

    def check_settled(self, before: Database, after: Database, ask: Ask) -> None:
        is_over = before.queue is None or ask.epoch != before.queue.epoch
        if is_over and before._replace(calls=()) != after._replace(calls=()):
            raise Wrong("a result counts under an epoch that is over")
        results = {job.id: job.redrives for job in ask.results}
        for old, new in zip(before.jobs, after.jobs, strict=True):
            is_changed = old._replace(waits=0) != new._replace(waits=0)
            if is_changed and results.get(old.id) != old.redrives:
                raise Wrong(f"a result of before lands on n{old.id}, redriven since")

    def check_finished(self, state: State, note: Note, args: tuple[Any, ...]) -> None:
        queue, ask = state.database.queue, args[0]
        if not isinstance(ask, Ask) or queue is None or ask.epoch != queue.epoch:
            raise Wrong(f"n{note.id} is finished by a transaction that may not")
        mine = [job for job in ask.results if job.id == note.id and job.redrives == note.redrives]
        if not mine:
            raise Wrong(f"n{note.id} is finished without a result")
        had = all(state.history.had & _bit_of(note.id, name) for name in CALLBACKS)
        if note.state == "done" and not note.unmatched and not had:
            raise Wrong(f"n{note.id} is done, and a callback has not had it")

    def check_call(self, state: State, number: int, held: Held, job: Job, name: str) -> None:
        queue, history = state.database.queue, state.history
        rows = {note.id: note for note in state.database.jobs}
        if any(each is False for each in held.log):
            raise Wrong(f"calls {name} with n{job.id} though it was told that its lease is over")
        if name in job.known:
            raise Wrong(f"calls {name} with n{job.id}, which was recorded as done")
        for note in rows.values():
            if note.id < job.id and note.state == "pending" and not note.redrives:
                raise Wrong(f"calls {name} with n{job.id} before n{note.id} is finished")
        if queue is None or held.epoch != queue.epoch:
            if not self.budget.asleep:
                raise Wrong(f"calls {name} with n{job.id} under a lease that it knows is over")
            self.begun_stale += 1
            return
        is_excused = history.excused & _bits([job.id])
        if history.had & _bit_of(job.id, name) and not is_excused:
            raise Wrong(f"calls {name} with n{job.id} again, and nothing explains it")
        row = rows.get(job.id)
        if row is None:
            raise Wrong(f"takes a queue that was made anew for its own, and calls with n{job.id}")
        if row.state != "pending" or row.redrives != job.redrives:
            raise Wrong(f"holds the lease, and calls with n{job.id}, which is {row.state}")
        if row.place > queue.sending_to or row.waits:
            raise Wrong(f"calls with n{job.id}, which is not shown as in progress")
        other = state.workers[1 - number].held
        if other is not None and other.epoch == queue.epoch:
            raise Wrong("two workers hold one lease")

    def check_begin(self, state: State, held: Held, job: Job) -> None:
        """Check that what was redriven comes first, once its holder knows of it."""
        queue = state.database.queue
        for note in state.database.jobs if queue and queue.epoch == held.epoch else ():
            if note.place < job.seq and note.state == "pending" and not note.waits:
                raise Wrong(f"begins n{job.id} before n{note.id}")

    # --- what can happen -------------------------------------------------------------------

    def others(self, state: State) -> tuple[Iterator[Move], ...]:
        return self._caller(state), self._operator(state), self._time(state)

    def _caller(self, state: State) -> Iterator[Move]:
        if not state.left.notifications:
            return
        name, number = None if self.budget.apart else "A", state.database.stored + 1
        after, (stored, handed) = self.transact(
            spend(state, "notifications"), "the sender", "store", name, number
        )
        if stored != number:
            raise Wrong("ids do not grow in the order of acceptance")
        if handed is None:
            yield "store", after
        else:
            yield from self.stores(after, "store", Store(stored, handed))

    def job_of(self, store: Store) -> Job:
        return Job(store.id, store.handed.seq)

    def lose(self, worker: Worker) -> Worker:
        """Forget the queue; what was begun goes on. An older attempt ends unheard then."""
        held = worker.held
        if held is not None and (held.current or held.answered):
            lost = held._replace(waiting=(), settling=(), is_settling=False, stops=True)
            worker = worker._replace(lost=lost)
        return super().lose(worker)

    def may_claim(self, state: State) -> bool:
        queue = state.database.queue
        if queue is None or state.history.set_back:
            return state.history.set_back
        if queue.lease_worker is None:
            return queue.due_at == 0
        return not queue.lease_until or (queue.lease_worker == OLD and not state.history.hangs)

    def claims_with(self, state: State) -> tuple[Any, ...]:
        return (not state.history.hangs,)

    def worker(self, state: State, number: int) -> Iterator[Move]:
        name, worker, queue = "AB"[number], state.workers[number], state.database.queue
        yield from super().worker(state, number)
        if state.left.crashes and (worker != Worker() or (queue and queue.lease_worker == name)):
            after = _excuse(spend(state, "crashes"), worker.held, worker.lost)
            yield f"{name} dies", self._ended(after, number, hangs=False)
        if state.left.retirings and worker != Worker():
            yield from self._retires(state, number)
        for held in (worker.held, worker.lost):
            if held is not None:
                yield from self._attempt(state, number, held)
                yield from self._settles(state, number, held)
        if worker.held is not None:
            yield from self._holder(state, number, worker.held)

    def _ended(self, state: State, number: int, *, hangs: bool) -> State:
        """Let a process end, or go on under a new name: its lease has the old one's."""
        database, history = state.database, state.history
        if database.queue is not None and database.queue.lease_worker == "AB"[number]:
            database = database._replace(queue=database.queue._replace(lease_worker=OLD))
            history = history._replace(hangs=hangs)
        return with_worker(state._replace(database=database, history=history), number, Worker())

    def _retires(self, state: State, number: int) -> Iterator[Move]:
        name, worker = "AB"[number], state.workers[number]
        turns = [turn for turn in (worker.held, worker.lost) if turn is not None]
        state = _excuse(spend(state, "retirings"), *turns)
        if any(turn.ask and turn.ask[0] == "call" for turn in turns):
            label = f"{name} retires, its call hangs"
            after, _ = self.transact(state, label, "give_back", name, (QUEUE,))
            yield label, self._ended(after, number, hangs=True)
        for turn in turns:
            if turn.ask and turn.ask[0] == "record":
                state, _ = self.transact(state, name, "record", turn.epoch, turn.ask[1])
        state, _ = self.transact(state, f"{name}, retiring", "give_back", name, ())
        yield f"{name} retires, and gives back", with_worker(state, number, Worker())

    def _holder(self, state: State, number: int, held: Held) -> Iterator[Move]:
        name, worker = "AB"[number], state.workers[number]
        queue, row = self.thawed(held), state.database.queue
        if queue.may_begin(now=0.2):
            job = queue.begin()
            self.check_begin(state, held, job)
            yield from self._goes_on(state, number, frozen(queue), f"{name} begins n{job.id}")
        if worker.settled is not None:
            after = self.settled(state, number, held, worker.settled)
            yield f"{name} hears its settlement", after
        is_over = row is None or held.epoch != row.epoch
        if not held.until or is_over or not (row and row.lease_until):
            after = self._renewed(state, number)
            if after != state:
                yield f"{name} renews", after

    def _renewed(self, state: State, number: int) -> Any:
        name, worker = "AB"[number], state.workers[number]
        if worker.held is None:
            return state
        after, renewed = self.transact(state, f"{name}, renewing", "renew", worker.held.epoch)
        if renewed:
            return with_worker(after, number, worker._replace(held=worker.held._replace(until=1)))
        return with_worker(after, number, self.lose(worker))

    def _attempt(  # noqa: PLR0912  # a case for each thing that it waits for
        self, state: State, number: int, held: Held
    ) -> Iterator[Move]:
        """Let an attempt go on with what it waits for."""
        name, row = "AB"[number], state.database.queue
        if held.current is None or held.ask is None:
            return
        what, job = f"{name}, n{held.current.id}", held.current
        match held.ask:
            case ("call", callback):
                of = state
                if row is None or row.epoch != held.epoch or not row.lease_until:
                    of = _excuse(state, held)
                history = of.history._replace(had=of.history.had | _bit_of(job.id, callback))
                had = of._replace(history=history)
                yield from self._goes_on(had, number, held, f"{what}: {callback} returns", None)
                if state.left.failures:
                    of = spend(state, "failures")
                    yield from self._goes_on(of, number, held, f"{what}: {callback} fails", "E")
            case ("record", call):
                after, kept = self.transact(state, what, "record", held.epoch, call)
                if kept and (row is None or row.epoch != held.epoch):
                    raise Wrong(f"{what}: its lease is over, and it is told that it holds")
                heard = held._replace(ask=("recorded", kept))
                yield f"{what}: records {call.callback}", self._put(after, number, held, heard)
                if after.left.lost:
                    yield f"{what}: records, the reply is lost", spend(after, "lost")
            case ("recorded", kept):
                yield from self._goes_on(state, number, held, f"{what}: hears its record", kept)
            case ("slot",):
                for way in ("taken", "crowded"):
                    yield from self._goes_on(state, number, held, f"{what}: slot {way}", way)
            case ("renew",):
                after = self._renewed(state, number)
                turn = after.workers[number].held
                if turn is None or turn.epoch != held.epoch:
                    turn = after.workers[number].lost
                if turn is not None and turn.epoch == held.epoch:
                    label = f"{what}: renews, to be sure"
                    yield from self._goes_on(after, number, turn, label, "renewed")

    def _goes_on(
        self, state: State, number: int, held: Held, label: str, *answers: Any
    ) -> Iterator[Move]:
        """Run an attempt up to what it waits for next, in each way that it may go."""
        job, worker = held.current, state.workers[number]
        assert job is not None
        known = worker.held
        view = known and (known.epoch == held.epoch, bool(known.until))
        key = (job, (*held.log, *answers), view)
        if key not in self.attempts:
            self.attempts[key] = continued(*key)
        for log, result in self.attempts[key]:
            failures = sum(each in _FAILS for each in log[len(held.log) :])
            if failures > state.left.failures:
                continue
            after = spend(state, "failures", failures)
            said = " ".join(each for each in log[len(held.log) :] if each in _FAILS)
            if isinstance(result, Attempted):
                queue = self.thawed(held)
                queue.current = job._replace(result=result._replace(error=None))
                queue.answer(_ANSWERS[result.outcome])
                ended = self._put(after, number, held, frozen(queue))
                yield f"{label} {said} → {result.outcome.value}", ended
                continue
            waits = held._replace(log=log, ask=result)
            if result[0] == "call":
                self.check_call(after, number, waits, job, result[1])
            yield f"{label} {said} → {result[0]}", self._put(after, number, held, waits)

    def _put(self, state: State, number: int, held: Held, changed: Held) -> State:
        """Replace what a worker remembers of a lease."""
        worker = state.workers[number]
        if worker.lost is not None and worker.lost.epoch == held.epoch:
            return with_worker(state, number, worker._replace(lost=changed))
        return with_worker(state, number, worker._replace(held=changed))

    def _settles(self, state: State, number: int, held: Held) -> Iterator[Move]:
        name, worker, queue = "AB"[number], state.workers[number], self.thawed(held)
        if not queue.wants_settlement or (held == worker.lost and not queue.answered):
            return
        ask = queue.ask()
        ask = ask._replace(results=tuple(ask.results))
        after, reply = self.transact(state, f"{name}, settling", "settle", ask)
        if held == worker.lost:
            yield (
                f"{name} settles what it lost",
                with_worker(after, number, worker._replace(lost=None)),
            )
            return
        yield from self.settles(after, number, held, queue, reply)

    def _time(self, state: State) -> Iterator[Move]:
        database, queue, history = state.database, state.database.queue, state.history
        if history.hangs:
            yield "the hung call ends", state._replace(history=history._replace(hangs=False))
        waits = [note for note in database.jobs if note.not_before or note.scheduled_at]
        if waits or (queue and (queue.lease_until or queue.due_at)):
            later = _moved(database, less)
            turns = [turn for each in state.workers for turn in (each.held, each.lost)]
            holders = [turn for turn in turns if turn and queue and turn.epoch == queue.epoch]
            is_held = bool(holders) or any(each.claimed for each in state.workers)
            is_held = is_held and queue is not None and bool(queue.lease_until)
            if not is_held or state.left.expiries:
                after = spend(state, "expiries") if is_held else state
                after = _excuse(after, *holders)
                if not self.budget.asleep:
                    aged = cast("Any", tuple(older(each) for each in after.workers))
                    after = after._replace(workers=aged)
                yield "time passes", _ranked(after._replace(database=later), to_past=True)
        if state.left.setbacks:
            after = spend(state, "setbacks")._replace(database=_moved(database, more))
            after = after._replace(history=history._replace(set_back=True))
            yield "the clock is set back", _ranked(after, to_future=True)

    def _operator(self, state: State) -> Iterator[Move]:
        for note in state.database.jobs:
            if note.state == "pending":
                continue
            is_dead = note.state == "dead"
            if state.left.operations and (is_dead or note.unmatched):
                label = f"the operator redrives n{note.id}"
                after, done = self.transact(state, label, "redrive", note.id)
                if not done:
                    raise Wrong("nothing is redriven")
                yield label, spend(after, "operations")
            if state.left.deletions:
                label, status = f"retention deletes n{note.id}", InboxStatus(note.state)
                after, _ = self.transact(state, label, "delete", note.id, status)
                yield label, spend(after, "deletions")

    # --- the search --------------------------------------------------------------------------

    def drained(self, state: State) -> bool:
        if not super().drained(state):
            return False
        stored = state.database.stored
        return bool(self.sql.run(state.database, "accepted", stored)[1] == stored)

    def ranked(self, state: State) -> State:
        return _ranked(state)


def _moved(database: Database, move: Callable[[Any], Any]) -> Database:
    queue = database.queue
    if queue is not None:
        queue = queue._replace(due_at=move(queue.due_at), lease_until=move(queue.lease_until))
    jobs = tuple(
        note._replace(not_before=move(note.not_before), scheduled_at=move(note.scheduled_at))
        if note.state == "pending"
        else note
        for note in database.jobs
    )
    return database._replace(queue=queue, jobs=jobs)


def _ranked(state: State, *, to_past: bool = False, to_future: bool = False) -> State:
    """Number the epochs anew: only their order matters, and which are after a new queue's."""
    epochs = epochs_of(state)
    row = state.database.queue.epoch if state.database.queue else max(epochs, default=0)
    rank = {}
    for at, epoch in enumerate(sorted(epochs), 1):
        is_ahead = (epoch >= AHEAD and not to_past) or to_future
        # The row's epoch grows by one: it does not reach those of a time before the setback.
        rank[epoch] = at + (AHEAD if is_ahead else BEYOND if epoch > row else 0)
    moved: State = ranked(state, rank)
    return moved


def explore(budget: Budget, *, most: int = 5_000_000, shortest: bool = False) -> search.Found:
    """Visit every state; stop at the first that breaks a promise."""
    explorer = Explorer(budget)
    start: State = AnyState(Database(), (Worker(), Worker()), budget, History())
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        return explorer.explore(start, most=most, shortest=shortest)
    finally:
        logging.disable(disabled)


if __name__ == "__main__":
    search.run(explore, Budget, __doc__)
