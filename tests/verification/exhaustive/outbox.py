"""Every interleaving of two workers, a caller and an operator over one queue, on the real SQL.

The database is moved by the scripts of `pushkit.queue` and `pushkit.outbox`; `explorer` says what a
state is, and what two workers do with any queue. Every reachable state is visited; in each, what
must never happen is asserted, and that a fair schedule without more faults drains the queue.

python -m tests.verification.exhaustive.outbox --jobs 3 --operations 1 --failures 1 --lost 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final, NamedTuple

from pushkit.a2a import WireVersion
from pushkit.delivery import gathering
from pushkit.outbox import changes
from pushkit.outbox import store as outbox
from pushkit.outbox.attempts import store_results
from pushkit.outbox.model import AttemptResult, Delivery
from pushkit.outbox.schema import SCHEMA
from pushkit.outbox.states import CancelledBy, DeliveryState, Outcome
from pushkit.queue import rules
from pushkit.queue.held import Ask, Consequence, HeldQueue, Reply
from pushkit.queue.leases import Claims, advance, reschedule
from pushkit.queue.rules import Handed, appended, released
from pushkit.storage.script import EPOCH, Script, Statement, from_micros, to_micros
from pushkit.subscriptions.model import OUTBOX
from tests.verification.exhaustive import search
from tests.verification.exhaustive.explorer import Explorer as AnyExplorer
from tests.verification.exhaustive.explorer import Held as AnyHeld
from tests.verification.exhaustive.explorer import (
    Leased,
    Move,
    Store,
    Worker,
    frozen,
    less,
    more,
    older,
    spend,
    with_worker,
)
from tests.verification.exhaustive.explorer import Sql as AnySql
from tests.verification.exhaustive.explorer import State as AnyState
from tests.verification.exhaustive.search import Wrong

__all__ = ["Budget", "explore"]

LEASE = BACKOFF = 1
INTERVAL = timedelta(microseconds=1)
QUEUE = "q"
GROUP = ("", "o", "https://a")
NOW = from_micros(0)
PROBATION = 99


class Budget(NamedTuple):
    """How much may happen in one run."""

    jobs: int = 2
    operations: int = 0  # of an operator
    crashes: int = 0
    failures: int = 0  # answers that are no acknowledgement
    lost: int = 0  # replies of transactions that never arrive
    late: int = 0  # replies that arrive after other things
    expiries: int = 0  # leases that end under a live worker
    setbacks: int = 0  # of the clock
    waits: bool = False  # whether the destination may wait
    asleep: bool = False  # whether the workers' clock stands still while they sleep
    apart: bool = False  # whether the caller is in a process of its own, without a worker
    gathers: bool = False  # whether a job may be a chunk, which is gathered


# --- the database as a value ----------------------------------------------------------------------


class Row(NamedTuple):
    """The queue's row."""

    last_seq: int = 0
    due_at: int | None = None
    lease_worker: str | None = None
    lease_until: int | None = None
    epoch: int = 0
    sending_to: int = 0
    settled_to: int = 0
    abandoned: int = 0
    paused: int = 0
    active: int = 1


class JobRow(NamedTuple):
    """A job's row."""

    seq: int
    state: str
    not_before: int
    scheduled_at: int
    redrives: int
    waits: int
    first: int = 0  # of a chunk: the first job whose content it has


_QUEUE, _JOB = Row._fields, JobRow._fields[:-1]


class Database(NamedTuple):
    """All rows."""

    queue: Row
    jobs: tuple[JobRow, ...] = ()
    until: int = 0  # of the destination
    set_at: int = 0


class Job(NamedTuple):
    """A job in a worker's memory, or its result."""

    seq: int
    redrives: int
    outcome: Outcome | None = None
    size: int = 1


class Sql(AnySql):
    """The outbox's."""

    def __init__(self) -> None:
        super().__init__(SCHEMA, TRANSACTIONS.__getitem__)
        self.connection.execute(
            "INSERT INTO pushkit_subscriptions (id, tenant, task_id, owner, config_id, version,"
            " url, origin, schemes, profile, filter, created_at, updated_at)"
            " VALUES (?, '', 't', 'o', 'c', '1.0', 'https://a/', 'https://a', '[]', 's', '{}',"
            " 0, 0)",
            (QUEUE,),
        )

    def load(self, database: Database) -> None:
        sets = ", ".join(f"{name} = ?" for name in _QUEUE)
        execute = self.connection.execute
        execute(f"UPDATE pushkit_subscriptions SET {sets}", database.queue)
        execute("DELETE FROM pushkit_deliveries")
        execute("DELETE FROM pushkit_destinations")
        execute("DELETE FROM pushkit_bodies")
        self.connection.executemany(
            f"INSERT INTO pushkit_deliveries ({', '.join(_JOB)}, id, subscription_id, tenant,"
            " owner, task_id, config_id, origin, version, body_bytes, notified_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, 'q', '', 'o', 't', 'c', 'https://a', 'j', 1, 0)",
            [(*job[:-1], f"d{job.seq}") for job in database.jobs],
        )
        self.connection.executemany(
            "INSERT INTO pushkit_bodies (id, body) VALUES (?, ?)",
            [(f"d{job.seq}", str(job.first).encode()) for job in database.jobs if job.first],
        )
        if database.until:
            execute(
                "INSERT INTO pushkit_destinations (tenant, owner, origin, until, set_at)"
                " VALUES ('', 'o', 'https://a', ?, ?)",
                (database.until, database.set_at),
            )

    def dump(self) -> Database:
        execute = self.connection.execute
        queue = execute(f"SELECT {', '.join(_QUEUE)} FROM pushkit_subscriptions").fetchone()
        jobs = execute(
            f"SELECT {', '.join(_JOB)}, CAST(COALESCE(body, '0') AS INTEGER) AS first"
            " FROM pushkit_deliveries d LEFT JOIN pushkit_bodies b ON b.id = d.id ORDER BY seq"
        ).fetchall()
        until = execute("SELECT until, set_at FROM pushkit_destinations").fetchone() or (0, 0)
        shown = [
            JobRow(*job) if job["state"] == "pending" else JobRow(job["seq"], job["state"], 0, 0,
                                                                  job["redrives"], job["waits"],
                                                                  job["first"])
            for job in jobs
        ]  # fmt: skip
        ends = max(0, until[0])
        return Database(Row(*queue), tuple(shown), ends, max(0, until[1]) if ends else 0)


# --- the transactions: the scripts of the sender, over one queue -------------------------------


def _store(worker: str | None, is_chunk: bool = False) -> Script[Handed | None]:
    [queue] = (yield from OUTBOX.lock([QUEUE])).values()
    # All chunks are of one artifact. A body is the `seq` where its content begins.
    to = yield from gathering.place(
        queue,
        str(queue.last_seq + 1).encode(),
        (lambda _, stored: stored) if is_chunk else None,
        interval=INTERVAL,
        now=0,
    )
    queue = yield from gathering.make_way(queue, to, now=0)
    queue, handed = appended(
        queue, worker, now=0, until=LEASE, probation_from=PROBATION, not_before=to.not_before
    )
    yield Statement(
        "INSERT INTO pushkit_deliveries (id, subscription_id, tenant, owner, task_id, config_id,"
        " seq, origin, version, body_bytes, notified_at, not_before, scheduled_at, waits)"
        " VALUES ($1, 'q', '', 'o', 't', 'c', $2, 'https://a', 'j', 1, 0, $3, 0, $4)",
        (f"d{queue.last_seq}", queue.last_seq, to.not_before,
         int(to.may_be_joined and handed is None)),
    )  # fmt: skip
    if is_chunk:
        yield Statement(
            "INSERT INTO pushkit_bodies (id, body) VALUES ($1, $2)",
            (f"d{queue.last_seq}", to.body),
        )
    yield from OUTBOX.write([queue])
    return handed


def _lose(lost: Any, now: int) -> Script[None]:  # noqa: ARG001  # the policy is tested elsewhere
    yield from ()


def _claim(worker: str, is_held: bool, is_after_setback: bool) -> Script[Leased[Job] | None]:
    claims = Claims(tables=OUTBOX, lose=_lose, probation_from=PROBATION)
    if is_after_setback:
        yield from OUTBOX.after_setback(0, LEASE)
    held = [QUEUE] if is_held else []
    yield from claims.take_over(worker, held=held, dead=lambda _: (), now=0)
    result = yield from claims.claim(worker, rules.Room(8, lambda _: 8), now=0, until=LEASE)
    if not result.claimed:
        return None
    [claimed] = result.claimed
    return Leased(claimed.queue.epoch, _jobs(claimed.jobs), claimed.upto)


def _jobs(pending: Any) -> tuple[Job, ...]:
    return tuple(Job(job.seq, job.redrives) for job in pending)


def _settle(ask: Ask) -> Script[Reply]:
    """Settle a queue as `pushkit.delivery.settle` does."""
    [queue] = (yield from OUTBOX.lock([QUEUE])).values()
    if queue.epoch != ask.epoch and "settle under any epoch" not in OFF:
        return Reply(kept=False)
    pairs = [(_delivery(job), _result(job)) for job in ask.results]
    stored = yield from store_results(pairs, now=0, ahead=NOW - NOW)
    if len(stored) < len(pairs) and "look after a dropped result" not in OFF:
        queue = queue._replace(due_at=0)
    gone = False
    for delivery, result in pairs:
        if delivery.id not in stored:
            continue
        if result.outcome is not Outcome.RETRY:
            queue = queue._replace(settled_to=max(queue.settled_to, delivery.seq))
        queue = queue._replace(abandoned=0)
        gone |= result.outcome is Outcome.GONE
    if gone:
        yield from outbox.cancel_subscription(QUEUE, NOW, CancelledBy.DISABLED)
        yield Statement("UPDATE pushkit_subscriptions SET active = 0")
        yield from OUTBOX.write([released(queue, None)])
        return Reply(kept=False)
    replies = yield from advance(
        OUTBOX,
        [(queue, ask)],
        stops=lambda each: not each.may_send(0, probation_from=PROBATION),
        now=0,
    )
    [reply] = replies.values()
    return reply._replace(jobs=_jobs(reply.jobs), is_due=False)


def _delivery(job: Job) -> Delivery:
    return Delivery(
        id=f"d{job.seq}", subscription_id=QUEUE, tenant="", owner="o", task_id="t", config_id="c",
        seq=job.seq, origin="https://a", version=WireVersion.V1_0, body=b"", redrives=job.redrives,
        notified_at=NOW, not_before=NOW, attempts=1,
    )  # fmt: skip


def _result(job: Job) -> AttemptResult:
    assert job.outcome is not None
    retry_at = from_micros(BACKOFF) if job.outcome is Outcome.RETRY else None
    return AttemptResult(outcome=job.outcome, retry_at=retry_at, started_at=EPOCH)


def _renew(epoch: int) -> Script[bool]:
    _, extended = yield from OUTBOX.renew({QUEUE: epoch}, LEASE)
    return bool(extended)


def _cancel(seq: int) -> Script[bool]:
    [queue] = (yield from OUTBOX.lock([QUEUE])).values()
    return bool((yield from changes.cancel(queue, [f"d{seq}"], NOW)))


def _redrive(seq: int) -> Script[bool]:
    [queue] = (yield from OUTBOX.lock([QUEUE])).values()
    states = [each for each in DeliveryState if each not in ("pending", "in_flight")]
    done: list[str] = []
    for state in states:
        done += yield from changes.redrive(queue, [f"d{seq}"], states=[state], now=NOW)
    return bool(done)


def _recover(seq: int) -> Script[None]:
    """Send a job in flight once more, as `pushkit.outbox.clients` does."""
    yield from OUTBOX.lock([QUEUE])
    yield from changes.send_once_more([f"d{seq}"])


def _retry_now() -> Script[None]:
    [queue] = (yield from OUTBOX.lock([QUEUE])).values()
    yield from changes._make_due([f"d{seq}" for seq in range(1, queue.last_seq + 1)], NOW)
    yield from reschedule(OUTBOX, [queue], to_micros(NOW))
    others = yield from OUTBOX.lock((yield from OUTBOX.due_later([GROUP], 0)))
    yield from OUTBOX.look_again([*others.values()], 0)
    yield Statement("UPDATE pushkit_destinations SET until = 0, set_at = 0")


def _pause(paused: int) -> Script[None]:
    yield Statement("UPDATE pushkit_subscriptions SET paused = $1", (paused,))
    [queue] = (yield from OUTBOX.lock([QUEUE])).values()
    yield from reschedule(OUTBOX, [queue], to_micros(NOW))


def _disable() -> Script[None]:
    yield from outbox.cancel_subscription(QUEUE, NOW, CancelledBy.DISABLED)
    yield Statement("UPDATE pushkit_subscriptions SET active = 0")
    [queue] = (yield from OUTBOX.lock([QUEUE])).values()
    yield from OUTBOX.write([released(queue, None)])


def _enable() -> Script[None]:
    yield Statement("UPDATE pushkit_subscriptions SET active = 1")


def _wait() -> Script[None]:
    yield Statement(
        "INSERT INTO pushkit_destinations (tenant, owner, origin, until, set_at)"
        " VALUES ('', 'o', 'https://a', 1, 0)"
        " ON CONFLICT (tenant, owner, origin) DO UPDATE SET until = 1, set_at = 0"
    )


def _supersede() -> Script[bool]:
    yield Statement("UPDATE pushkit_deliveries SET status = 'bare'")
    [queue] = (yield from OUTBOX.lock([QUEUE])).values()
    done = yield from outbox.supersede(queue, by_new_status=False, now=NOW)
    if done and queue.lease_worker is None:
        yield from reschedule(OUTBOX, [queue], to_micros(NOW))
    return bool(done)


TRANSACTIONS: Final[dict[str, Callable[..., Script[Any]]]] = {
    "store": _store, "claim": _claim, "settle": _settle, "renew": _renew, "cancel": _cancel,
    "recover": _recover, "redrive": _redrive, "retry": _retry_now, "pause": _pause,
    "disable": _disable, "enable": _enable, "wait": _wait, "supersede": _supersede,
}  # fmt: skip
OFF: set[str] = set()


# --- states ---------------------------------------------------------------------------------------


Held = AnyHeld[Job]


class History(NamedTuple):
    """What happened, as far as it matters; sets of `seq` are bits."""

    arrived: int = 0
    owed: int = 0  # redriven, and not arrived since
    redriven: int = 0
    paused_at: int = 0  # `sending_to` when it was paused
    set_back: bool = False  # whether the clock was, and no worker has noticed
    taken: bool = False  # whether an operator took a lease away: its holder hears of it later
    begun: int = 0  # chunks that a worker began, whatever is stored of that


State = AnyState[Job, Database, Budget, History]


def _bit(seq: int) -> int:
    return 1 << seq


_ANSWERS = {
    Outcome.DELIVERED: Consequence.ACKNOWLEDGED,
    Outcome.RETRY: Consequence.RETRY,
    Outcome.DEAD: Consequence.FINISHED,
    Outcome.GONE: Consequence.FINISHED,
}


class Explorer(AnyExplorer[Job]):
    """The outbox's."""

    queue, group, most_unsettled = QUEUE, GROUP, rules.QUANTUM
    fair = (
        *("hears of", "hears its", "hears that", "resumes", "renews", "answered: delivered"),
        *("begins", "settles", "claims", "time passes"),
    )

    # --- what must never happen ------------------------------------------------------------

    def checked(self, state: State, after: Database, _name: str, _args: tuple[Any, ...]) -> History:
        before, history = state.database, state.history
        queue, was = after.queue, {job.seq: job for job in before.jobs}
        owed, redriven = history.owed, history.redriven
        if len(after.jobs) < len(before.jobs):
            raise Wrong("a job is lost")
        for job in after.jobs:
            old = was.get(job.seq)
            if old is None:
                self.check_gathered(job, before, after, history)
                continue
            if old.state == "pending" and job.state == "delivered":
                if not history.arrived & _bit(job.seq) or owed & _bit(job.seq):
                    raise Wrong(f"job {job.seq} is called delivered, and was not sent")
            elif job.state == "pending" and (old.state != "pending" or job.redrives > old.redrives):
                owed, redriven = owed | _bit(job.seq), redriven | _bit(job.seq)
            elif old.state not in ("pending", job.state):
                raise Wrong(f"job {job.seq} is finished twice")
        first = next((job for job in after.jobs if job.state == "pending"), None)
        if queue.lease_worker is None:
            if queue.sending_to:
                raise Wrong("sending without a lease")
            if first and queue.active and not queue.paused and queue.due_at is None:
                raise Wrong("pending, leased by nobody, and never due: a lost wake-up")
            # No wait is longer than this, also after the clock was set back.
            if (queue.due_at or 0) > BACKOFF and not history.set_back:
                raise Wrong("due too late")
        if first and not queue.active:
            raise Wrong("pending in a disabled queue")
        paused_at = history.paused_at if queue.paused else 0
        if queue.paused and not before.queue.paused:
            paused_at = queue.sending_to
        elif queue.paused and queue.lease_worker and queue.sending_to > paused_at:
            raise Wrong("handed out while paused")
        return history._replace(owed=owed, redriven=redriven, paused_at=paused_at)

    def check_gathered(
        self, job: JobRow, before: Database, after: Database, history: History
    ) -> None:
        """Check what a job that was just stored did to those before it."""
        was = {each.seq: each.state for each in before.jobs}
        for each in after.jobs[:-1]:
            is_within = job.first and job.first <= each.seq
            if is_within and each.state != "cancelled" and not history.redriven & _bit(each.seq):
                raise Wrong(f"gathered over job {each.seq}")
            if each.state != was[each.seq] and not is_within:
                raise Wrong(f"the content of job {each.seq} is lost")
            if each.state != was[each.seq] and history.begun & _bit(each.seq):
                raise Wrong(f"the content of job {each.seq} may arrive twice")
            if (
                each.state == "pending"
                and each.waits
                and not each.redrives
                and each.not_before > each.scheduled_at
            ):
                raise Wrong(f"job {job.seq} waits for the interval of job {each.seq}")

    def check_begin(self, state: State, number: int, held: Held, job: Job) -> None:
        queue = state.database.queue
        if held.epoch != queue.epoch:
            if not self.budget.asleep and not state.history.taken:
                raise Wrong(f"begins {job.seq} under a lease that it should know is over")
            self.begun_stale += 1
            return
        row = next(each for each in state.database.jobs if each.seq == job.seq)
        if row.state != "pending":  # of before a redrive, it is not stored
            raise Wrong(f"holds the lease, and begins job {job.seq}, which is {row.state}")
        if job.seq > queue.sending_to or row.waits:
            raise Wrong(f"begins {job.seq}, which is not shown as in flight")
        if queue.paused and job.seq > state.history.paused_at:
            raise Wrong(f"begins {job.seq} though it is paused")
        other = state.workers[1 - number].held
        if other is not None and other.epoch == queue.epoch:
            raise Wrong("two workers hold one lease")

    def arrival(self, state: State, held: Held, seq: int) -> History:
        """Check an acknowledged job against the order; return the history afterwards."""
        history = state.history
        if not (history.arrived | history.redriven) & _bit(seq):
            for job in state.database.jobs:
                if history.redriven & _bit(job.seq):
                    continue
                has_arrived = history.arrived & _bit(job.seq)
                if job.seq < seq and not has_arrived and job.state in ("pending", "delivered"):
                    raise Wrong(f"job {seq} arrives before job {job.seq}, which is {job.state}")
                if job.seq > seq and has_arrived:
                    if held.epoch == state.database.queue.epoch:
                        raise Wrong(f"job {seq} arrives first after job {job.seq}")
                    self.arrived_late += 1  # it was given up or cancelled: the page says so
        bits = _bit(seq)
        return history._replace(arrived=history.arrived | bits, owed=history.owed & ~bits)

    # --- what can happen -------------------------------------------------------------------

    def others(self, state: State) -> tuple[Iterator[Move], ...]:
        return self._caller(state), self._operator(state), self._time(state)

    def _caller(self, state: State) -> Iterator[Move]:
        if not state.left.jobs or not state.database.queue.active:
            return
        name = None if self.budget.apart else "A"
        for kind in ("store", "store a chunk") if self.budget.gathers else ("store",):
            args = (name, kind != "store") if self.budget.gathers else (name,)
            after, handed = self.transact(spend(state, "jobs"), "a caller", "store", *args)
            if handed is None:
                yield kind, after
            else:
                yield from self.stores(after, kind, Store(handed.seq, handed))

    def job_of(self, store: Store) -> Job:
        return Job(store.handed.seq, 0)

    def may_claim(self, state: State) -> bool:
        queue = state.database.queue
        is_over = queue.lease_worker is not None and not queue.lease_until
        is_due = queue.lease_worker is None and queue.due_at == 0
        return is_due or is_over or state.history.set_back

    def worker(self, state: State, number: int) -> Iterator[Move]:
        name, worker = "AB"[number], state.workers[number]
        yield from super().worker(state, number)
        if state.left.crashes and worker != Worker():
            yield f"{name} dies", with_worker(spend(state, "crashes"), number, Worker())
        if worker.held is not None:
            yield from self._holder(state, number, worker.held)

    def _holder(self, state: State, number: int, held: Held) -> Iterator[Move]:
        name, worker = "AB"[number], state.workers[number]

        def then(queue: HeldQueue[Job], of: State = state) -> State:
            return with_worker(of, number, worker._replace(held=frozen(queue)))

        queue = self.thawed(held)
        queue.until = 1.0 if self.budget.asleep else queue.until
        if queue.may_begin(now=0.2):
            job = queue.begin()
            queue.until = float(held.until)
            self.check_begin(state, number, held, job)
            history = state.history
            if any(each.first for each in state.database.jobs if each.seq == job.seq):
                history = history._replace(begun=history.begun | _bit(job.seq))
            yield f"{name} begins {job.seq}", then(queue, state._replace(history=history))
        if held.current is not None:
            seq = held.current.seq
            outcomes = [Outcome.DELIVERED]
            if state.left.failures:
                outcomes += [Outcome.RETRY, Outcome.DEAD, Outcome.GONE]
            for outcome in outcomes:
                queue, of = self.thawed(held), state
                queue.current = held.current._replace(outcome=outcome)
                queue.answer(_ANSWERS[outcome])
                if outcome is Outcome.DELIVERED:
                    of = state._replace(history=self.arrival(state, held, seq))
                else:
                    of = spend(state, "failures")
                yield f"{name}: {seq} is answered: {outcome.value}", then(queue, of)
        if worker.settled is not None:
            yield f"{name} hears its settlement", self.settled(state, number, held, worker.settled)
        elif self.thawed(held).wants_settlement:
            queue = self.thawed(held)
            ask = queue.ask()
            ask = ask._replace(results=tuple(ask.results))
            after, reply = self.transact(state, f"{name}, settling", "settle", ask)
            if held.epoch != state.database.queue.epoch and reply.kept:
                raise Wrong("a settlement under an old epoch was heard")
            yield from self.settles(after, number, held, queue, reply)
        is_over = held.epoch != state.database.queue.epoch
        if not held.until or is_over or not state.database.queue.lease_until:
            after, renewed = self.transact(state, f"{name}, renewing", "renew", held.epoch)
            if renewed:
                yield f"{name} renews", then(self.thawed(held._replace(until=1)), after)
            elif not held.current:
                to = with_worker(after, number, self.lose(worker))
                yield f"{name} hears that its lease is over", to

    def _time(self, state: State) -> Iterator[Move]:
        database, queue = state.database, state.database.queue
        waits = [job for job in database.jobs if job.not_before or job.scheduled_at]
        if queue.lease_until or queue.due_at or database.until or waits:
            later = database._replace(
                queue=_moved(queue, less),
                jobs=tuple(
                    job._replace(
                        not_before=less(job.not_before), scheduled_at=less(job.scheduled_at)
                    )
                    for job in database.jobs
                ),
                until=less(database.until),
                set_at=less(database.set_at),
            )  # fmt: skip
            workers = state.workers
            if not self.budget.asleep:
                workers = tuple(older(each) for each in workers)  # type: ignore[assignment]
            ends = bool(queue.lease_until) and any(
                (each.held is not None and each.held.epoch == queue.epoch) or each.claimed
                for each in state.workers
            )
            if not ends or state.left.expiries:
                after = spend(state, "expiries") if ends else state
                yield "time passes", after._replace(database=later, workers=workers)
        if state.left.setbacks:
            back = database._replace(
                queue=_moved(queue, more),
                jobs=tuple(
                    job._replace(not_before=job.not_before + 1, scheduled_at=1)
                    if job.state == "pending" else job
                    for job in database.jobs
                ),
                until=database.until + 1 if database.until else 0,
                set_at=1 if database.until else 0,
            )  # fmt: skip
            history = state.history._replace(set_back=True)
            yield (
                "the clock is set back",
                spend(state, "setbacks")._replace(database=back, history=history),
            )

    def _operator(self, state: State) -> Iterator[Move]:
        database, queue = state.database, state.database.queue
        if queue.paused:
            yield "an operator resumes", self.transact(state, "an operator", "pause", 0)[0]
        if not state.left.operations:
            return
        wanted: list[tuple[Any, ...]] = []
        if queue.active:
            wanted += [("disable",), ("supersede",)]
            if not queue.paused:
                wanted.append(("pause", 1))
            if self.budget.waits and not database.until:
                wanted.append(("wait",))
            if database.until or any(job.not_before for job in database.jobs):
                wanted.append(("retry",))
        else:
            wanted.append(("enable",))
        for job in database.jobs:
            is_held = queue.lease_worker and job.seq <= queue.sending_to and not job.waits
            if job.state == "pending" and is_held and job.redrives < 1:
                wanted.append(("recover", job.seq))
            if job.state == "pending":
                wanted.append(("cancel", job.seq))
            elif queue.active and job.redrives < 1:
                wanted.append(("redrive", job.seq))
        for name, *args in wanted:
            after, done = self.transact(state, f"an operator, {name}", name, *args)
            if name == "disable":
                after = after._replace(history=after.history._replace(taken=True))
            if done is not False:
                yield f"an operator: {name} {args or ''}", spend(after, "operations")


def _moved(queue: Row, move: Callable[[Any], Any]) -> Row:
    return queue._replace(due_at=move(queue.due_at), lease_until=move(queue.lease_until))


def explore(budget: Budget, *, most: int = 5_000_000, shortest: bool = False) -> search.Found:
    """Visit every state; stop at the first that breaks a promise."""
    start: State = AnyState(Database(Row()), (Worker(), Worker()), budget, History())
    return Explorer(Sql(), budget).explore(start, most=most, shortest=shortest)


if __name__ == "__main__":
    search.run(explore, Budget, __doc__)
