"""What two workers do with one queue, of deliveries or of notifications: states, moves, the search.

The database is a value, moved by scripts on SQLite in memory; what a worker remembers is a real
`HeldQueue`. A state is a database, two memories, replies that are still on their way, and how many
faults are left. Times are relative: now is 0, what has passed is 0, too.
"""

from __future__ import annotations

import itertools
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from pushkit.queue.held import HeldQueue, Job, Reply
from pushkit.queue.rules import GroupKey, Handed
from pushkit.queue.rules import Leased as QueueLease
from pushkit.storage.script import Script
from pushkit.storage.sqlite import run_script
from tests.verification.exhaustive.search import Found, Wrong, search

__all__ = [
    "Explorer", "Held", "Leased", "Move", "Sql", "State", "Store", "Worker", "epochs_of", "frozen",
    "less", "more", "older", "ranked", "spend", "with_worker",
]  # fmt: skip

J = TypeVar("J", bound=Job)
D = TypeVar("D")  # a database as a value
B = TypeVar("B")  # a budget
H = TypeVar("H")  # a history
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


class Store(NamedTuple):
    """The reply to a caller whose job was handed over, on its way to the worker's memory."""

    id: int
    handed: Handed
    until: int = 1


class Leased(NamedTuple, Generic[J]):
    """The reply of a claim."""

    epoch: int
    jobs: tuple[J, ...]
    upto: int


class Worker(NamedTuple, Generic[J]):
    """What a worker remembers, and the replies that are on their way to it."""

    held: Held[J] | None = None
    lost: Held[J] | None = None  # not in memory any more; its attempt still runs, or is not settled
    settled: Reply | None = None
    claimed: tuple[Leased[J], int] | None = None
    stores: tuple[Store, ...] = ()


class State(NamedTuple, Generic[J, D, B, H]):
    """One state of the whole."""

    database: D
    workers: tuple[Worker[J], Worker[J]]
    left: B
    history: H


AnyScript: TypeAlias = Callable[..., Script[Any]]
Move: TypeAlias = tuple[str, Any]  # its label, and the state that it leads to


class Sql(ABC):
    """Runs scripts on databases that are values; each pair of them once."""

    def __init__(self, schema: Sequence[str], script: Callable[[str], AnyScript]) -> None:
        self.script = script  # returns the transaction of a name
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        self.connection.row_factory = sqlite3.Row
        for statement in schema:
            self.connection.execute(statement)
        self.cache: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    @abstractmethod
    def load(self, database: Any) -> None: ...

    @abstractmethod
    def dump(self) -> Any: ...

    def heard(self, reply: Any, _after: Any) -> Any:
        """Return a reply as a value."""
        return reply

    def run(self, database: Any, name: str, *args: Any) -> tuple[Any, Any]:
        key = (database, name, args)
        found = self.cache.get(key)
        if found is None:
            self.load(database)
            self.connection.execute("BEGIN")
            reply = run_script(self.connection, self.script(name)(*args))
            self.connection.execute("COMMIT")
            after = self.dump()
            found = self.cache[key] = (after, self.heard(reply, after))
        return found


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


def epochs_of(state: Any) -> set[int]:
    """Return all epochs of a state."""
    queue = state.database.queue
    epochs = {queue.epoch} if queue else set()
    for worker in state.workers:
        epochs.update(held.epoch for held in (worker.held, worker.lost) if held)
        epochs.update([worker.claimed[0].epoch] if worker.claimed else [])
        epochs.update(store.handed.epoch for store in worker.stores)
    return epochs


def ranked(state: Any, rank: Mapping[int, int]) -> Any:
    """Number the epochs anew."""
    if all(epoch == at for epoch, at in rank.items()):
        return state

    def moved(what: Any) -> Any:
        return what and what._replace(epoch=rank[what.epoch])

    workers = tuple(
        worker._replace(
            held=moved(worker.held),
            lost=moved(worker.lost),
            claimed=worker.claimed and (moved(worker.claimed[0]), worker.claimed[1]),
            stores=tuple(each._replace(handed=moved(each.handed)) for each in worker.stores),
        )
        for worker in state.workers
    )
    database = state.database._replace(queue=moved(state.database.queue))
    return state._replace(database=database, workers=workers)


class Explorer(ABC, Generic[J]):
    """Visits every state within a budget.

    Attributes:
        begun_stale: What began under a lease that was over, as its worker could not know.
        arrived_late: What was given up or cancelled, and arrived all the same.
    """

    queue: str  # the name of the queue
    group: GroupKey
    most_unsettled: int
    # A fair schedule in which nothing more goes wrong: the first of these that is possible.
    fair: Sequence[str]

    def __init__(self, sql: Sql, budget: Any) -> None:
        self.sql = sql
        self.budget = budget
        self.begun_stale = self.arrived_late = 0

    def explore(self, start: Any, *, most: int, shortest: bool) -> Found:
        """Visit every state; stop at the first that breaks a promise."""
        found = search(
            start,
            moves=lambda state: [(label, self.ranked(after)) for label, after in self.moves(state)],
            is_drained=self.drained,
            fair=self._fair_move,
            most=most,
            breadth_first=shortest,
        )
        return replace(
            found,
            transactions=len(self.sql.cache),
            begun_stale=self.begun_stale,
            arrived_late=self.arrived_late,
        )

    def _fair_move(self, state: Any, moves: Sequence[Move]) -> Any:
        best: tuple[int, Any] | None = None
        for label, after in moves:
            rank = next((at for at, word in enumerate(self.fair) if word in label), None)
            if rank is None or after == state or after.left != state.left:
                continue
            if best is None or rank < best[0]:
                best = (rank, after)
        return best and best[1]

    # --- what differs --------------------------------------------------------------------------

    @abstractmethod
    def checked(self, state: Any, after: Any, name: str, args: tuple[Any, ...]) -> Any:
        """Check what a transaction did; return the history afterwards."""

    @abstractmethod
    def job_of(self, store: Store) -> J:
        """Return a job that was handed over."""

    @abstractmethod
    def may_claim(self, state: Any) -> bool:
        """Return whether a worker looks for the queue."""

    @abstractmethod
    def others(self, state: Any) -> tuple[Iterator[Move], ...]:
        """Return what those may do who store jobs, and operators; and how time may pass."""

    def ranked(self, state: Any) -> Any:
        """Number the epochs anew: only their order matters."""
        return ranked(state, {epoch: at for at, epoch in enumerate(sorted(epochs_of(state)), 1)})

    def drained(self, state: Any) -> bool:
        """Return whether nothing is left to do."""
        queue = state.database.queue
        return (
            all(each == Worker() for each in state.workers)
            and (queue is None or queue.lease_worker is None)
            and all(job.state != "pending" for job in state.database.jobs)
        )

    def claims_with(self, _state: Any) -> tuple[Any, ...]:
        """Return what else a claim is told."""
        return ()

    def lose(self, worker: Worker[J]) -> Worker[J]:
        """Forget the queue."""
        return worker._replace(held=None, settled=None)

    # --- what can happen -----------------------------------------------------------------------

    def moves(self, state: Any) -> Iterator[Move]:
        workers = (self.worker(state, number) for number in (0, 1))
        return itertools.chain(*self.others(state), *workers)

    def transact(self, state: Any, label: str, name: str, *args: Any) -> tuple[Any, Any]:
        after, reply = self.sql.run(state.database, name, *args)
        try:
            history = self.checked(state, after, name, args)
        except Wrong as exc:
            raise Wrong(f"{exc} [by {label}]") from None
        return state._replace(database=after, history=history), reply

    def memory(self, leased: Leased[J], until: float) -> HeldQueue[J]:
        return HeldQueue[J](
            QueueLease(self.queue, self.group, leased.epoch, leased.jobs, leased.upto),
            until=float(until),
            seen_at=0.0,
            most_unsettled=self.most_unsettled,
        )

    def thawed(self, held: Held[J]) -> HeldQueue[J]:
        """Return the queue that a value describes."""
        queue = self.memory(Leased(held.epoch, held.waiting, held.tail), held.until)
        queue.current = held.current
        queue.answered = list(held.answered)
        queue.settling = held.settling
        queue.is_settling = held.is_settling
        queue.gap, queue.must_settle, queue.stops = held.gap, held.must_settle, held.stops
        return queue

    def stores(self, after: Any, kind: str, store: Store) -> Iterator[Move]:
        """Yield how the first worker may hear of a job that was handed over."""
        yield f"{kind}, handed over", self._handed(after, 0, store)
        if after.left.late:
            worker = after.workers[0]
            late = worker._replace(stores=tuple(sorted((*worker.stores, store))))
            yield f"{kind}, handed over later", with_worker(spend(after, "late"), 0, late)
        if after.left.lost:
            yield f"{kind}, the reply is lost", spend(after, "lost")

    def _handed(self, state: Any, number: int, store: Store) -> Any:
        worker, handed = state.workers[number], store.handed
        held = worker.held
        if held is None or held.epoch < handed.epoch:
            if not handed.took:
                return state
            queue = self.memory(Leased(handed.epoch, (), handed.seq - 1), store.until)
            worker = self.lose(worker)
        elif held.epoch > handed.epoch:
            return state
        else:
            queue = self.thawed(held)
        queue.append(self.job_of(store))
        return with_worker(state, number, worker._replace(held=frozen(queue, worker.held)))

    def worker(self, state: Any, number: int) -> Iterator[Move]:
        """Yield what a worker may hear, or claim."""
        name, worker = "AB"[number], state.workers[number]
        for at, store in enumerate(worker.stores):
            rest = worker._replace(stores=worker.stores[:at] + worker.stores[at + 1 :])
            after = self._handed(with_worker(state, number, rest), number, store)
            yield f"{name} hears of job {store.id}", after
        if worker.claimed is not None:
            rest = worker._replace(claimed=None)
            after = self._claimed(with_worker(state, number, rest), number, *worker.claimed)
            yield f"{name} hears its claim", after
        elif self.may_claim(state):
            yield from self._claim(state, number)

    def _claim(self, state: Any, number: int) -> Iterator[Move]:
        name, worker, history = "AB"[number], state.workers[number], state.history
        noticed = state._replace(history=history._replace(set_back=False))
        is_held, others = worker.held is not None, self.claims_with(state)
        after, leased = self.transact(
            noticed, f"{name}, claiming", "claim", name, is_held, history.set_back, *others
        )
        if leased is None:
            # It takes no lease that is over, whosever it is, while its memory has the queue.
            if after.database == state.database and not (is_held or history.set_back):
                raise Wrong(f"{name} claims nothing, and would again and again")
            yield f"{name} claims nothing", after
            return
        yield f"{name} claims", self._claimed(after, number, leased, 1)
        if after.left.late:
            late = worker._replace(claimed=(leased, 1))
            to = with_worker(spend(after, "late"), number, late)
            yield f"{name} claims, and hears it later", to
        if after.left.lost:
            yield f"{name} claims, the reply is lost", spend(after, "lost")

    def _claimed(self, state: Any, number: int, leased: Leased[J], until: int) -> Any:
        worker = state.workers[number]
        if worker.held is not None and worker.held.epoch >= leased.epoch:
            return state
        held = frozen(self.memory(leased, until))
        return with_worker(state, number, self.lose(worker)._replace(held=held))

    def settles(
        self, after: Any, number: int, held: Held[J], queue: HeldQueue[J], reply: Reply
    ) -> Iterator[Move]:
        """Yield how a worker may hear of the settlement that a queue, held before, asked for."""
        name, worker, asked = "AB"[number], after.workers[number], frozen(queue, held)
        yield f"{name} settles", self.settled(after, number, asked, reply)
        if after.left.late:
            late = worker._replace(held=asked, settled=reply)
            to = with_worker(spend(after, "late"), number, late)
            yield f"{name} settles, and hears it later", to
        if after.left.lost:
            queue.unsettled()
            to = with_worker(
                spend(after, "lost"), number, worker._replace(held=frozen(queue, held))
            )
            yield f"{name} settles, the reply is lost", to

    def settled(self, state: Any, number: int, held: Held[J], reply: Reply) -> Any:
        """Let a worker hear of a settlement."""
        worker, queue = state.workers[number], self.thawed(held)
        queue.settled(reply, seen_at=0.0)
        worker = worker._replace(held=frozen(queue, held), settled=None)
        return with_worker(state, number, worker if reply.kept else self.lose(worker))
