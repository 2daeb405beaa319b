"""The transactions of histories: scripts of this project, over a few rows that they compete for."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

from tenacity import stop_after_attempt, wait_fixed

from pushkit import RetryPolicy
from pushkit.delivery.answers import BreakerPolicy
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.queues import Queues
from pushkit.delivery.registrar import change_subscriptions
from pushkit.delivery.route import DeliveryJob, Routes, job_of
from pushkit.delivery.settle import DeliverySettler
from pushkit.events import SubscriptionChange
from pushkit.net.destination import DestinationPolicy
from pushkit.outbox import changes
from pushkit.outbox import retention as outbox_retention
from pushkit.outbox import store as outbox
from pushkit.outbox.model import AttemptResult, StatusContent
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.outbox.store import leased_deliveries, lose
from pushkit.queue import held
from pushkit.queue.leases import ClaimResult, Claims
from pushkit.queue.rules import Handed, Leased, PendingJob, Room
from pushkit.queue.tables import QueueTables
from pushkit.secrets.vault import Vault
from pushkit.storage.script import Deferred, Script, Statement, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, Recipient
from receiver.accepting import Acceptance, Candidate
from receiver.callbacks.settling import Settler as InboxSettler
from receiver.inbox import inspection, retention
from receiver.inbox import model as inbox_model
from receiver.inbox import store as inbox
from receiver.inbox.model import InboxStatus
from receiver.inbox.store import INBOX
from receiver.limits import Limits
from receiver.notification import Verified
from receiver.senders import TaskPolicy
from receiver.steps import Trail

__all__ = ["Done", "Memory", "StubDatabase", "Work", "prepare", "some_work", "tables"]

_START = datetime(2026, 1, 1, tzinfo=UTC)
_LEASE = timedelta(seconds=30)
_TASKS = ("task0", "task1")
_SUBSCRIPTIONS = tuple(f"sub_{n}" for n in range(4))
_WORKERS = ("w0", "w1")
_BREAKER = BreakerPolicy(failures=2, first_wait=timedelta(seconds=5))

_PROBATION_FROM = 2
_CALLED_AGAIN = RetryPolicy(wait=wait_fixed(5), stop=stop_after_attempt(2))
_TRIED = {
    Outcome.DELIVERED: (204, None, held.Consequence.ACKNOWLEDGED),
    Outcome.RETRY: (500, "status_500", held.Consequence.RETRY),
    Outcome.DEAD: (400, "rejected", held.Consequence.FINISHED),
    Outcome.GONE: (410, "gone", held.Consequence.FINISHED),
}


class StubDatabase:
    """The database as scripts see it, with a clock that the history moves."""

    locks = None
    location = "stub.db"

    def __init__(self) -> None:
        self.moment = _START

    def now(self) -> Script[datetime]:
        yield from ()
        return self.moment

    def hold(
        self, items: Sequence[Any], names: Callable[[Any], Sequence[str]], *, wait: bool
    ) -> Script[tuple[Sequence[Any], datetime]]:
        """Hold names: it waits for them even where the code would not."""
        del wait
        for name in sorted(set(itertools.chain.from_iterable(map(names, items)))):
            yield Statement("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", (name,))
        return items, self.moment

    def wake(self) -> Script[None]:
        yield Statement("SELECT pushkit_wake()")

    def announce(self) -> Script[None]:
        yield Statement("SELECT pg_notify('pushkit_work', 'news')")


@dataclass(eq=False)
class Memory:
    """What the processes of one side know; generated ids differ between the two sides."""

    database: StubDatabase
    leased: dict[str, held.Memory[DeliveryJob]] = field(
        default_factory=lambda: {worker: held.Memory() for worker in _WORKERS}
    )
    inboxes: dict[str, held.Memory[inbox_model.NotificationJob]] = field(
        default_factory=lambda: {worker: held.Memory(most_unsettled=1) for worker in _WORKERS}
    )


# What to do once a transaction is committed.
Done: TypeAlias = Callable[[], object]
# A transaction: of a memory, the chance that decides it, and its number.
Of: TypeAlias = Callable[[Memory, random.Random, int], Script[Done | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One transaction."""

    name: str  # its name, for readers
    make: Callable[[Memory], Script[Done | None]]  # makes the script
    reads: bool = False  # whether it only reads, on one snapshot


def prepare() -> Script[None]:
    """Add subscriptions and deliveries to empty tables.

    Each subscription has a destination of its own: of two queues that are due at the same moment,
    either may be the first of theirs.
    """
    now = to_micros(_START)
    for number, each in enumerate(_SUBSCRIPTIONS):
        origin = f"https://{each}.example.com"
        yield Statement(
            "INSERT INTO pushkit_subscriptions (tenant, task_id, owner, config_id, id, version,"
            " url, origin, token, schemes, credentials, profile, filter, created_at, updated_at)"
            " VALUES ('', $1, $2, 'c', $3, '1.0', $4, $5, NULL, '[]', NULL, 'standard', $6, $7,"
            " $7)",
            (
                _TASKS[number % 2],
                f"owner{number // 2}",
                *(each, f"{origin}/hook", origin, _EVERYTHING, now),
            ),
        )
    for task in _TASKS:
        recipients = yield from subscriptions.lock_recipients([("", task)])
        yield from _store(recipients, task, _START, "", updates=2)


_EVERYTHING = '{"states": null, "kinds": null, "last_chunk_only": false}'


def _store(
    recipients: Sequence[Recipient],
    task: str,
    now: datetime,
    mark: str,
    *,
    updates: int,
    worker: str | None = None,
    drops: bool = False,
) -> Script[list[tuple[Handed, DeliveryJob]]]:
    """Store some updates of a task; return those that were handed to a worker."""
    queues = Queues(recipients)
    handed = []
    for number, queue in enumerate(queues.of_task(("", task))):
        for _ in range(updates):
            new, hand = queues.add(
                queue,
                f"dlv_{queue.recipient.id}_{queue.row.last_seq + 1}{mark}",
                b"{}",
                now=now + timedelta(microseconds=number),  # no two queues are due at one moment
                status=StatusContent.BARE,
                worker=worker,
                until=to_micros(now + _LEASE),
                probation_from=_PROBATION_FROM,
            )
            if hand is not None:
                handed.append((hand, job_of(new, None)))
        yield from queues.write()
        if drops:
            yield from outbox.supersede(queue.row, by_new_status=False, now=now)
    return handed


def some_work(chance: random.Random, number: int) -> Work:
    """Draw a transaction."""
    [name] = chance.choices(list(_WORKS), [weight for weight, _ in _WORKS.values()])
    seed, script = chance.random(), _WORKS[name][1]
    is_impatient = name != "look" and chance.random() < 0.3

    def make(memory: Memory) -> Script[Done | None]:
        if is_impatient:
            yield Statement("SET LOCAL lock_timeout = '30ms'")
        return (yield from script(memory, random.Random(seed), number))

    said = f"{name}, impatient" if is_impatient else name
    return Work(name=said, make=make, reads=name == "look")


def _enqueue(memory: Memory, chance: random.Random, number: int) -> Script[Done]:
    task, wait, drops = chance.choice(_TASKS), chance.random() < 0.5, chance.random() < 0.3
    worker = chance.choice((*_WORKERS, None))  # in whose process it is stored
    recipients = yield from subscriptions.lock_recipients([("", task)], wait=wait)
    handed = yield from _store(
        recipients,
        task,
        memory.database.moment,
        f"_{number}",
        updates=chance.choice((1, 1, 3)),
        worker=worker,
        drops=drops,
    )
    yield from memory.database.wake()

    def done() -> None:
        for hand, job in handed:
            memory.leased[worker or ""].hand(hand, job, until=inf, seen_at=inf)

    return done


def _claim(memory: Memory, chance: random.Random, _number: int) -> Script[Done]:
    worker, limit, steps = chance.choice(_WORKERS), chance.randint(1, 3), chance.choice((1, 2, 32))
    claims = Claims(
        tables=OUTBOX,
        lose=_lose,
        window=chance.choice((len(_SUBSCRIPTIONS), 16)),
        steps=steps,
        probation_from=_PROBATION_FROM,
    )
    mine = memory.leased[worker]
    result = yield from _claimed(memory, claims, worker, mine, Room(limit, lambda _: 2))
    ids = [job.id for each in result.claimed for job in each.jobs]
    deliveries = yield from leased_deliveries(ids)
    made = {name: job_of(delivery, None) for name, delivery in deliveries.items()}
    return functools.partial(_take, mine, result, made)


def _claimed(
    memory: Memory, claims: Claims, worker: str, mine: held.Memory[Any], room: Room
) -> Script[ClaimResult]:
    now = to_micros(memory.database.moment)
    yield from claims.take_over(worker, held=mine.queues, dead=lambda _: (), now=now)
    until = now + _LEASE // timedelta(microseconds=1)
    return (yield from claims.claim(worker, room, now=now, until=until))


def _take(mine: held.Memory[Any], result: ClaimResult, jobs: Mapping[Any, Any]) -> None:
    """Take what was claimed into a worker's memory."""
    for queue, found, upto in result.claimed:
        theirs = [jobs[job.id] for job in found]
        leased = Leased(queue.id, queue.group, queue.epoch, theirs, upto)
        mine.claimed(leased, until=inf, seen_at=inf)


def _lose(lost: Sequence[tuple[PendingJob, str, int]], now: int) -> Script[None]:
    for job, error, deaths in lost:
        yield from lose(job.id, error, counts=deaths > 0, retry_at=job.not_before, now=now)


def _settle(memory: Memory, chance: random.Random, _number: int) -> Script[Done | None]:
    """Work off some jobs of one or two queues, settle them together, and take the next ones."""
    worker, arrived, number = chance.choice(_WORKERS), chance.choice((0, 1, 2, 8)), chance.random()
    last = chance.choice((Outcome.DELIVERED, *_TRIED))
    wait, pause = chance.random() < 0.6, chance.choice((0, 5, 60))
    mine, now = memory.leased[worker], memory.database.moment
    asks = []
    for queue in _some(mine, number):
        for outcome in [*[Outcome.DELIVERED] * arrived, last]:
            if queue.may_begin(0.0):
                queue.begin().result = _result_of(outcome, now, pause)
                queue.answer(_TRIED[outcome][2])
        asks.append((queue, queue.ask()))
        queue.unsettled()  # until it is committed
    if not asks:
        return None
    database: Any = memory.database
    settler = DeliverySettler(
        database=database,
        clock=lambda: memory.database.moment,
        options=SenderOptions(breaker=_BREAKER, disable_after=timedelta(seconds=20)),
        routes=Routes(issuer="", policy=DestinationPolicy(), vault=Vault()),
    )
    settled = yield from settler.script([ask for _, ask in asks], wait=wait)
    return functools.partial(_hear, mine, asks, settled)


def _some(mine: held.Memory[Any], number: float) -> list[held.HeldQueue[Any]]:
    """Return one or two of a worker's queues."""
    names = sorted(mine.queues)
    return [mine.queues[name] for name in names[int(number * len(names)) :][:2]]


def _hear(
    mine: held.Memory[Any],
    asks: Sequence[tuple[held.HeldQueue[Any], held.Ask]],
    settled: Sequence[Any],
) -> None:
    """Take the replies of a settlement, once it is committed."""
    for (queue, ask), result in zip(asks, settled, strict=True):
        if isinstance(result, Deferred) or mine.queues.get(queue.id) is not queue:
            continue
        queue.answered = [job for job in queue.answered if job not in ask.results]
        queue.settled(result.reply, seen_at=inf)
        if not result.reply.kept:
            mine.forget(queue)


def _result_of(outcome: Outcome, now: datetime, pause: int) -> AttemptResult:
    status, error, _ = _TRIED[outcome]
    until = now + timedelta(seconds=pause) if outcome is Outcome.RETRY else None
    return AttemptResult(
        outcome=outcome,
        status=status,
        error=error,
        retry_at=until,
        wait_until=until,
        started_at=now,
    )


def _renew(tables: QueueTables, of: Callable[[Memory], Mapping[str, held.Memory[Any]]]) -> Of:
    """Return a renewal of all that a worker leases."""

    def renew(memory: Memory, chance: random.Random, _number: int) -> Script[Done]:
        mine = of(memory)[chance.choice(_WORKERS)]
        epochs = {name: queue.epoch for name, queue in mine.queues.items()}
        renewed, _ = yield from tables.renew(epochs, to_micros(memory.database.moment + _LEASE))

        def done() -> None:
            for name, queue in list(mine.queues.items()):
                if name in epochs and name not in renewed:
                    mine.forget(queue)

        return done

    return renew


def _ids(chance: random.Random) -> list[str]:
    return [f"dlv_{sub}_{chance.randint(1, 2)}" for sub in chance.sample(_SUBSCRIPTIONS, 2)]


def _retry(memory: Memory, chance: random.Random, _number: int) -> Script[None]:
    database: Any = memory.database
    yield from changes.send_now(database, _ids(chance), probes_from=2)


def _redrive(memory: Memory, chance: random.Random, _number: int) -> Script[None]:
    database: Any = memory.database
    states = (DeliveryState.DEAD, DeliveryState.CANCELLED)
    yield from changes.requeue(database, _ids(chance), states)


def _change(memory: Memory, chance: random.Random, _number: int) -> Script[None]:
    """Pause, resume, disable or enable a subscription."""
    chosen = [chance.choice(_SUBSCRIPTIONS)]
    kinds = (*["paused", "resumed"] * 2, "disabled", *["enabled"] * 2)
    database: Any = memory.database
    change = SubscriptionChange(chance.choice(kinds))
    yield from change_subscriptions(database, change, chosen, resend=True)


def _cancel(memory: Memory, chance: random.Random, _number: int) -> Script[None]:
    chosen = chance.choice(_SUBSCRIPTIONS)
    queues = yield from OUTBOX.lock([chosen])
    ids = [f"dlv_{chosen}_1", f"dlv_{chosen}_2"]
    yield from changes.cancel(queues[chosen], ids, memory.database.moment)


def _purge(_memory: Memory, chance: random.Random, _number: int) -> Script[None]:
    yield from outbox_retention.delete(_ids(chance))


def _cross(_memory: Memory, chance: random.Random, number: int) -> Script[None]:
    """Lock rows in any order, as no code of this project does, to provoke deadlocks."""
    for each in chance.sample(_SUBSCRIPTIONS, 2):
        yield Statement(
            "UPDATE pushkit_subscriptions SET updated_at = updated_at + $2 WHERE id = $1"
            " RETURNING id, updated_at",
            (each, number),
        )


def _sweep(_memory: Memory, chance: random.Random, _number: int) -> Script[None]:
    """Change all rows that match a condition, which other transactions may change meanwhile."""
    yield Statement(
        "UPDATE pushkit_deliveries SET faults = faults + $2"
        " WHERE state = $1 AND attempts > 0 RETURNING id, faults, state",
        (chance.choice(("pending", "delivered", "dead")), chance.randint(1, 3)),
    )


def _look(memory: Memory, _chance: random.Random, _number: int) -> Script[None]:
    yield Statement("SELECT id, state, waits FROM pushkit_deliveries ORDER BY id")
    yield from OUTBOX.moments(to_micros(memory.database.moment))
    yield Statement("SELECT id, state, waits FROM pushkit_deliveries ORDER BY id")


# --- the receiver -----------------------------------------------------------------------------


def _accept(memory: Memory, chance: random.Random, _number: int) -> Script[Done]:
    """Accept some notifications; two tasks may have one id, whose inserts wait for each other."""
    worker, wait = chance.choice((*_WORKERS, None)), chance.random() < 0.6
    drawn = [
        (chance.choice((*_TASKS, *_TASKS, None)), chance.randint(1, 9), chance.choice("1112"))
        for _ in range(chance.choice((1, 1, 2, 4)))
    ]
    of_any_task = chance.random() < 0.3
    database, dispatcher, verified = cast("Any", memory.database), _holder(worker), []
    acceptance = Acceptance(database, Limits(), dispatcher, lambda *_: None)
    for task, seq, body in drawn:
        delivery_id = f"id{seq}" if of_any_task else f"{task}#{seq}"
        verified.append(_candidate(task, seq, delivery_id, body.encode()))
    yield from acceptance.store(verified, wait=wait)

    def done() -> None:
        for each in verified:
            new, handed = each.stored, each.handed
            if new is None or handed is None or not isinstance(each.result, int):
                continue
            job = inbox_model.NotificationJob(
                notification=_stored(new, each.result),
                queue_id=new.queue_id,
                seq=handed.seq,
                epoch=handed.epoch,
                since=each.stored_at,
            )
            memory.inboxes[worker or ""].hand(handed, job, until=inf, seen_at=inf)

    return done


def _holder(worker: str | None) -> Any:
    """Return what storing needs of a dispatcher."""
    return SimpleNamespace(
        name=worker,
        has_room=lambda *_: worker is not None,
        lease_until=lambda now: to_micros(now + _LEASE),
    )


def _candidate(task: str | None, seq: int, delivery_id: str, body: bytes) -> Candidate:
    notification = SimpleNamespace(
        sender="agent",
        delivery_id=delivery_id,
        task_id=task,
        config_id="c",
        seq=seq,
        kid="k",
        issued_at=_START,
        body_sha256=body.hex(),
        update=SimpleNamespace(generation=seq, origin="1.0"),
    )
    trusted = SimpleNamespace(name="agent", tasks=TaskPolicy.ANY)
    verified = Verified(cast("Any", trusted), None, cast("Any", notification), body)
    return Candidate(verified, Trail(), None)


def _stored(new: inbox_model.NewNotification, number: int) -> inbox_model.StoredNotification:
    return inbox_model.StoredNotification(
        id=number,
        sender=new.sender,
        kid=new.kid,
        delivery_id=new.delivery_id,
        task_id=new.task_id,
        config_id=new.config_id,
        seq=new.seq,
        missing=new.missing,
        late=bool(new.late),
        version=new.version,
        generation_before=new.generation_before,
        issued_at=_START,
        received_at=_START,
        body=new.body,
    )


def _claim_notifications(memory: Memory, chance: random.Random, _number: int) -> Script[Done]:
    worker, limit = chance.choice(_WORKERS), chance.randint(1, 3)
    claims, mine = Claims(tables=INBOX, lose=_lose_notifications), memory.inboxes[worker]
    result = yield from _claimed(memory, claims, worker, mine, Room(limit, lambda _: limit))
    jobs = yield from inbox.jobs_of([(each.queue, each.jobs) for each in result.claimed])
    return functools.partial(_take, mine, result, jobs)


def _lose_notifications(lost: Sequence[tuple[PendingJob, str, int]], now: int) -> Script[None]:
    for job, error, deaths in lost:
        due = now + deaths * 1_000_000 if deaths else None
        yield from inbox.note_death(job.id, error, due, now=now)


_CALLED = {
    inbox_model.CallbackOutcome.DONE: held.Consequence.ACKNOWLEDGED,
    inbox_model.CallbackOutcome.UNMATCHED: held.Consequence.ACKNOWLEDGED,
    inbox_model.CallbackOutcome.FAILED: held.Consequence.RETRY,
    inbox_model.CallbackOutcome.PUT_OFF: held.Consequence.RETRY,
    inbox_model.CallbackOutcome.DEAD: held.Consequence.FINISHED,
}


def _settle_notifications(
    memory: Memory, chance: random.Random, _number: int
) -> Script[Done | None]:
    """Call back with the first of some queues, settle them together, and take the next ones."""
    worker, number, wait = chance.choice(_WORKERS), chance.random(), chance.random() < 0.6
    outcome = chance.choice((*[inbox_model.CallbackOutcome.DONE] * 5, *_CALLED))
    arrives, mine = chance.random() < 0.9, memory.inboxes[worker]
    asks = []
    for queue in _some(mine, number):
        if arrives and queue.may_begin(0.0):
            job = queue.begin()
            job.result = _outcome_of(outcome, job.notification.id)
            queue.answer(_CALLED[outcome])
        asks.append((queue, queue.ask()))
        queue.unsettled()  # until it is committed
    if not asks:
        return None
    settler = InboxSettler(cast("Any", memory.database), _CALLED_AGAIN)
    settled = yield from settler.script([ask for _, ask in asks], wait=wait)
    return functools.partial(_hear, mine, asks, settled)


def _outcome_of(
    outcome: inbox_model.CallbackOutcome, notification_id: int
) -> inbox_model.Attempted:
    error = "ValueError" if outcome is inbox_model.CallbackOutcome.FAILED else None
    call = inbox_model.Call(notification_id, "client", error)
    is_called = outcome in (inbox_model.CallbackOutcome.DONE, inbox_model.CallbackOutcome.FAILED)
    return inbox_model.Attempted(
        outcome,
        call if is_called else None,
        None if error is None else f"client: {error}",
        pause=5.0 if outcome is inbox_model.CallbackOutcome.PUT_OFF else 0.0,
    )


def _redrive_notifications(memory: Memory, chance: random.Random, _number: int) -> Script[None]:
    rows = yield Statement(
        "SELECT id FROM pushkit_inbox WHERE state = 'dead' OR unmatched = 1"
        f" ORDER BY id LIMIT {chance.randint(1, 3)}"
    )
    yield from inspection.redrive([row["id"] for row in rows], memory.database.moment)
    yield from memory.database.wake()


def _purge_notifications(memory: Memory, chance: random.Random, _number: int) -> Script[None]:
    status = chance.choice((InboxStatus.DONE, InboxStatus.DONE, InboxStatus.DEAD))
    end = (to_micros(memory.database.moment), 0)
    ids = yield from retention.finished_before(status, end, limit=100)
    if ids:
        yield from retention.delete_finished(ids, status)


def _forget(memory: Memory, _chance: random.Random, _number: int) -> Script[None]:
    yield from retention.forget_ids(memory.database.moment - timedelta(seconds=10), limit=100)


_WORKS: dict[str, tuple[int, Of]] = {
    "enqueue": (7, _enqueue),
    "claim": (6, _claim),
    "settle": (12, _settle),
    "renew": (2, _renew(OUTBOX, lambda memory: memory.leased)),
    "retry": (2, _retry),
    "redrive": (2, _redrive),
    "change": (3, _change),
    "cancel": (1, _cancel),
    "purge": (1, _purge),
    "cross": (4, _cross),
    "sweep": (2, _sweep),
    "look": (1, _look),
    "accept": (7, _accept),
    "claim notifications": (4, _claim_notifications),
    "settle notifications": (8, _settle_notifications),
    "renew notifications": (1, _renew(INBOX, lambda memory: memory.inboxes)),
    "redrive notifications": (1, _redrive_notifications),
    "purge notifications": (1, _purge_notifications),
    "forget": (1, _forget),
}


def tables() -> Sequence[str]:
    """Return the tables that must be equal on both sides."""
    names = ("subscriptions", "deliveries", "bodies", "attempts", "destinations")
    more = ("inbox", "inbox_queues", "callbacks", "sequences", "forgotten")
    return tuple(f"pushkit_{name}" for name in (*names, *more))
