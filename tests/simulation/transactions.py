"""The transactions of histories: scripts of this project, over a few rows that they compete for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, TypeAlias

from pushkit.delivery.again import Again
from pushkit.delivery.answers import BreakerPolicy
from pushkit.delivery.job import Job, job_of
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.queues import Queues
from pushkit.delivery.registrar import SubscriptionChanges
from pushkit.delivery.route import Routes
from pushkit.delivery.settle import Settled, Settler
from pushkit.net.destination import DestinationPolicy
from pushkit.outbox.dead_letters import DeadLetters
from pushkit.outbox.model import Result, StatusMark
from pushkit.outbox.results import leased_deliveries, lose
from pushkit.outbox.retention import Purge
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.outbox.store import OutboxStore
from pushkit.queue import held
from pushkit.queue.leases import ClaimLimits, Claims
from pushkit.queue.rules import Handed, PendingJob
from pushkit.secrets.vault import Vault
from pushkit.storage.script import Script, Statement, to_micros
from pushkit.subscriptions.model import Recipient
from pushkit.subscriptions.queues import OUTBOX
from pushkit.subscriptions.store import SubscriptionStore
from receiver.inbox.model import ClaimedNotification, InboxStatus
from receiver.inbox.store import Inbox, task_lock
from receiver.replay.memory import Replay, Seen, forget_ids
from tests.receiver.storing import claim, remember, settle_one, store

__all__ = ["Memory", "StubDatabase", "Work", "prepare", "some_work", "tables"]

_START = datetime(2026, 1, 1, tzinfo=UTC)
_LEASE = timedelta(seconds=30)
_TASKS = ("task0", "task1")
_SUBSCRIPTIONS = tuple(f"sub_{n}" for n in range(4))
_WORKERS = ("w0", "w1")
_BREAKER = BreakerPolicy(failures=2, first_wait=timedelta(seconds=5))

_PROBATION_FROM = 2
_TRIED = {
    Outcome.DELIVERED: (204, None, held.Answer.ACKNOWLEDGED),
    Outcome.RETRY: (500, "status_500", held.Answer.AGAIN),
    Outcome.DEAD: (400, "rejected", held.Answer.FINISHED),
    Outcome.GONE: (410, "gone", held.Answer.FINISHED),
}


class StubDatabase:
    """The database as scripts see it, with a clock that the history moves."""

    locks = None

    def __init__(self) -> None:
        self.moment = _START

    def now(self) -> Script[datetime]:
        yield from ()
        return self.moment

    def hold(
        self, items: Sequence[str], names: Callable[[str], Sequence[str]], *, wait: bool
    ) -> Script[tuple[Sequence[str], datetime]]:
        for name in itertools.chain.from_iterable(map(names, items if wait else ())):
            yield Statement("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", (name,))
        return items, self.moment

    def wake(self) -> Script[None]:
        yield Statement("SELECT pushkit_wake()")


@dataclass(eq=False)
class Memory:
    """What the processes of one side know; generated ids differ between the two sides."""

    database: StubDatabase
    leased: dict[str, held.Memory[Job]] = field(
        default_factory=lambda: {worker: held.Memory() for worker in _WORKERS}
    )
    accepted: dict[str, list[ClaimedNotification]] = field(
        default_factory=lambda: {w: [] for w in _WORKERS}
    )


Make: TypeAlias = Callable[[Memory], Script[Callable[[], object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One transaction."""

    name: str  # its name, for readers
    make: Make  # makes the script, which returns a function to call once it is committed
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
        recipients = yield from SubscriptionStore().lock_recipients([("", task)])
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
) -> Script[list[tuple[Recipient, Handed, Job]]]:
    """Store some updates of a task; return those that were handed to a worker."""
    outbox = OutboxStore()
    queues = Queues(recipients, outbox, SubscriptionStore())
    handed = []
    for number, queue in enumerate(queues.of_task(("", task))):
        for _ in range(updates):
            new, hand = queues.add(
                queue,
                f"dlv_{queue.recipient.id}_{queue.row.last_seq + 1}{mark}",
                b"{}",
                now=now + timedelta(microseconds=number),  # no two queues are due at one moment
                status=StatusMark.BARE,
                worker=worker,
                until=to_micros(now + _LEASE),
                probation_from=_PROBATION_FROM,
            )
            if hand is not None:
                handed.append((queue.recipient, hand, job_of(new, None)))
        yield from queues.write()
        if drops:
            yield from outbox.supersede(queue.row, by_new_status=False, now=now)
    return handed


def some_work(chance: random.Random, number: int) -> Work:
    """Draw a transaction."""
    [name] = chance.choices(list(_WORKS), [weight for weight, _ in _WORKS.values()])
    make = _WORKS[name][1](chance, number)
    reads = name == "look"
    if reads or chance.random() < 0.7:
        return Work(name=name, make=make, reads=reads)

    def impatient(memory: Memory) -> Script[Callable[[], object]]:
        yield Statement("SET LOCAL lock_timeout = '30ms'")
        return (yield from make(memory))

    return Work(name=f"{name}, impatient", make=impatient)


def _nothing() -> None:
    pass


def _enqueue(chance: random.Random, number: int) -> Make:
    task, wait, drops = chance.choice(_TASKS), chance.random() < 0.5, chance.random() < 0.3
    worker = chance.choice((*_WORKERS, None))  # in whose process it is stored
    updates = chance.choice((1, 1, 3))

    def script(memory: Memory) -> Script[Callable[[], object]]:
        recipients = yield from SubscriptionStore().lock_recipients([("", task)], wait=wait)
        handed = yield from _store(
            recipients,
            task,
            memory.database.moment,
            f"_{number}",
            updates=updates,
            worker=worker,
            drops=drops,
        )
        yield from memory.database.wake()

        def done() -> None:
            for recipient, hand, job in handed:
                memory.leased[worker or ""].hand(
                    recipient.id,
                    recipient.queue.group,
                    hand,
                    job,
                    version=recipient.revision,
                    until=inf,
                    seen_at=inf,
                )

        return done

    return script


def _claim(chance: random.Random, _number: int) -> Make:
    worker, limit, steps = chance.choice(_WORKERS), chance.randint(1, 3), chance.choice((1, 2, 32))
    window = chance.choice((len(_SUBSCRIPTIONS), 16))

    def script(memory: Memory) -> Script[Callable[[], object]]:
        now, mine = to_micros(memory.database.moment), memory.leased[worker]
        claims = Claims(tables=OUTBOX, lose=_lose, window=window, steps=steps)
        yield from claims.take_over(worker, held=mine.queues, dead=lambda _: (), now=now)
        result = yield from claims.claim(
            worker,
            ClaimLimits(queues=limit, of_origin=lambda _: 2, probation_from=_PROBATION_FROM),
            now=now,
            until=now + _LEASE // timedelta(microseconds=1),
        )
        ids = [job.id for each in result.claimed for job in each.jobs]
        deliveries = yield from leased_deliveries(ids)

        def done() -> None:
            for queue, jobs, upto in result.claimed:
                theirs = [job_of(deliveries[job.id], None) for job in jobs]
                mine.claimed(
                    *(queue.id, queue.group, queue.epoch, theirs, upto),
                    version=0,
                    until=inf,
                    seen_at=inf,
                )

        return done

    return script


def _lose(lost: Sequence[tuple[PendingJob, str, bool]], now: int) -> Script[None]:
    for job, error, counts in lost:
        yield from lose(job.id, error, counts=counts, retry_at=job.not_before, now=now)


def _settle(chance: random.Random, _number: int) -> Make:
    """Work off some jobs of one or two queues, settle them together, and take the next ones."""
    worker, arrived, number = chance.choice(_WORKERS), chance.choice((0, 1, 2, 8)), chance.random()
    last = chance.choice((Outcome.DELIVERED, *_TRIED))
    wait, pause = chance.random() < 0.6, chance.choice((0, 5, 60))

    def script(memory: Memory) -> Script[Callable[[], object]]:
        mine, now = memory.leased[worker], memory.database.moment
        names = sorted(mine.queues)
        chosen = [mine.queues[name] for name in names[int(number * len(names)) :][:2]]
        if not chosen:
            yield from ()
            return _nothing
        asks = []
        for queue in chosen:
            for outcome in [*[Outcome.DELIVERED] * arrived, last]:
                if queue.may_begin(0.0):
                    queue.begin().result = _result_of(outcome, now, pause)
                    queue.answer(_TRIED[outcome][2])
            asks.append(queue.ask())
            queue.unsettled()  # until it is committed
        database: Any = memory.database
        settler = Settler(
            database=database,
            clock=lambda: memory.database.moment,
            options=SenderOptions(breaker=_BREAKER, disable_after=timedelta(seconds=20)),
            routes=Routes(issuer="", policy=DestinationPolicy(), vault=Vault()),
        )
        settled = yield from settler.script(asks, wait=wait)

        def done() -> None:
            for queue, ask, result in zip(chosen, asks, settled, strict=True):
                if not isinstance(result, Settled) or mine.queues.get(queue.id) is not queue:
                    continue
                queue.answered = [job for job in queue.answered if job not in ask.results]
                queue.settled(result.reply, seen_at=inf)
                if not result.reply.kept:
                    mine.forget(queue)

        return done

    return script


def _result_of(outcome: Outcome, now: datetime, pause: int) -> Result:
    status, error, _ = _TRIED[outcome]
    until = now + timedelta(seconds=pause) if outcome is Outcome.RETRY else None
    return Result(
        outcome=outcome,
        status=status,
        error=error,
        retry_at=until,
        wait_until=until,
        started_at=now,
    )


def _renew(chance: random.Random, _number: int) -> Make:
    worker = chance.choice(_WORKERS)

    def script(memory: Memory) -> Script[Callable[[], object]]:
        mine = memory.leased[worker]
        epochs = {name: queue.epoch for name, queue in mine.queues.items()}
        until = to_micros(memory.database.moment + _LEASE)
        renewed, _ = yield from OUTBOX.renew(epochs, until)

        def done() -> None:
            for name, queue in list(mine.queues.items()):
                if name in epochs and name not in renewed:
                    mine.forget(queue)

        return done

    return script


def _ids(chance: random.Random) -> list[str]:
    return [f"dlv_{sub}_{chance.randint(1, 2)}" for sub in chance.sample(_SUBSCRIPTIONS, 2)]


def _retry(chance: random.Random, _number: int) -> Make:
    ids = _ids(chance)
    return lambda memory: _again(memory, lambda again: again.retry(ids))


def _redrive(chance: random.Random, _number: int) -> Make:
    ids = _ids(chance)
    states = (DeliveryState.DEAD, DeliveryState.CANCELLED)
    return lambda memory: _again(memory, lambda again: again.redrive(ids, states))


def _again(memory: Memory, what: Callable[[Again], Script[Any]]) -> Script[Callable[[], object]]:
    database: Any = memory.database
    yield from what(Again(database=database, probes_from=2))
    return _nothing


def _change(chance: random.Random, _number: int) -> Make:
    """Pause, resume, disable or enable a subscription."""
    chosen = [chance.choice(_SUBSCRIPTIONS)]
    verb = chance.choice(("pause", "pause", "resume", "resume", "disable", "enable", "enable"))

    def script(memory: Memory) -> Script[Callable[[], object]]:
        database: Any = memory.database
        changes = SubscriptionChanges(database=database)
        if verb == "enable":
            yield from changes.enable(chosen, resend=True)
        else:
            yield from getattr(changes, verb)(chosen)
        return _nothing

    return script


def _cancel(chance: random.Random, _number: int) -> Make:
    chosen = chance.choice(_SUBSCRIPTIONS)

    def script(memory: Memory) -> Script[Callable[[], object]]:
        queues = yield from OUTBOX.lock([chosen])
        ids = [f"dlv_{chosen}_1", f"dlv_{chosen}_2"]
        yield from DeadLetters().cancel(queues[chosen], ids, memory.database.moment)
        return _nothing

    return script


def _purge(chance: random.Random, _number: int) -> Make:
    ids = _ids(chance)

    def script(_memory: Memory) -> Script[Callable[[], object]]:
        yield from Purge().delete(ids)
        return _nothing

    return script


def _cross(chance: random.Random, number: int) -> Make:
    """Lock rows in any order, as no code of this project does, to provoke deadlocks."""
    chosen = chance.sample(_SUBSCRIPTIONS, 2)

    def script(_memory: Memory) -> Script[Callable[[], object]]:
        for each in chosen:
            yield Statement(
                "UPDATE pushkit_subscriptions SET updated_at = updated_at + $2 WHERE id = $1"
                " RETURNING id, updated_at",
                (each, number),
            )
        return _nothing

    return script


def _sweep(chance: random.Random, _number: int) -> Make:
    """Change all rows that match a condition, which other transactions may change meanwhile."""
    state, by = chance.choice(("pending", "delivered", "dead")), chance.randint(1, 3)

    def script(_memory: Memory) -> Script[Callable[[], object]]:
        yield Statement(
            "UPDATE pushkit_deliveries SET faults = faults + $2"
            " WHERE state = $1 AND attempts > 0 RETURNING id, faults, state",
            (state, by),
        )
        return _nothing

    return script


def _look(_chance: random.Random, _number: int) -> Make:
    def script(memory: Memory) -> Script[Callable[[], object]]:
        yield Statement("SELECT id, state, waits FROM pushkit_deliveries ORDER BY id")
        yield from OUTBOX.moments(to_micros(memory.database.moment))
        yield Statement("SELECT id, state, waits FROM pushkit_deliveries ORDER BY id")
        return _nothing

    return script


# --- the receiver -----------------------------------------------------------------------------


def _accept(chance: random.Random, _number: int) -> Make:
    task, seq, body = chance.choice(_TASKS), chance.randint(1, 6), chance.choice((b"1", b"1", b"2"))
    remembers = chance.random() < 0.8

    def script(memory: Memory) -> Script[Callable[[], object]]:
        now, delivery_id = memory.database.moment, f"{task}#{seq}"
        yield from memory.database.hold([task], _locks, wait=True)
        if remembers:
            seen = Seen(sender="agent", delivery_id=delivery_id, body_sha256=body.hex())
            found = yield from remember(seen, now)
            if found is Replay.DUPLICATE:
                return _nothing
        yield from store(task, seq, body=body, now=now)
        yield from memory.database.wake()
        return _nothing

    return script


def _locks(task: str) -> list[str]:
    return [task_lock("agent", task)]


def _hurry(chance: random.Random, _number: int) -> Make:
    """Remember an id without locking its task: two inserts of one id wait for each other."""
    seen = Seen(sender="agent", delivery_id=f"task0#{chance.randint(1, 3)}", body_sha256="31")

    def script(memory: Memory) -> Script[Callable[[], object]]:
        yield from remember(seen, memory.database.moment)
        return _nothing

    return script


def _forget(_chance: random.Random, _number: int) -> Make:
    def script(memory: Memory) -> Script[Callable[[], object]]:
        yield from forget_ids(memory.database.moment - timedelta(seconds=10), limit=100)
        return _nothing

    return script


def _claim_notifications(chance: random.Random, _number: int) -> Make:
    worker, limit = chance.choice(_WORKERS), chance.randint(1, 3)

    def script(memory: Memory) -> Script[Callable[[], object]]:
        now = memory.database.moment
        claimed = yield from claim(worker, limit=limit, now=now, until=now + _LEASE)
        return lambda: memory.accepted[worker].extend(claimed)

    return script


def _settle_notification(chance: random.Random, _number: int) -> Make:
    worker = chance.choice(_WORKERS)
    status = chance.choice((InboxStatus.DONE, InboxStatus.DONE, InboxStatus.RECEIVED))
    keeps = chance.random() < 0.3

    def script(memory: Memory) -> Script[Callable[[], object]]:
        held, now = memory.accepted[worker], memory.database.moment
        if not held:
            yield from ()
            return _nothing
        claimed = held[0]
        if keeps:
            yield from Inbox().keep_leases([claimed.stored.id], worker, now + _LEASE)
            return _nothing
        yield from memory.database.hold([claimed.stored.task_id or ""], _locks, wait=True)
        yield from Inbox().record_calls([(claimed.stored.id, "client", None)], now=now)
        retry_in = 5 if status is InboxStatus.RECEIVED else None
        yield from settle_one(claimed, worker, status, now=now, retry_in=retry_in)
        return lambda: held.remove(claimed)

    return script


_WORKS: dict[str, tuple[int, Callable[[random.Random, int], Make]]] = {
    "enqueue": (7, _enqueue),
    "claim": (6, _claim),
    "settle": (12, _settle),
    "renew": (2, _renew),
    "retry": (2, _retry),
    "redrive": (2, _redrive),
    "change": (3, _change),
    "cancel": (1, _cancel),
    "purge": (1, _purge),
    "cross": (4, _cross),
    "sweep": (2, _sweep),
    "look": (1, _look),
    "accept": (4, _accept),
    "hurry": (2, _hurry),
    "forget": (1, _forget),
    "claim notifications": (3, _claim_notifications),
    "settle a notification": (3, _settle_notification),
}


def tables() -> Sequence[str]:
    """Return the tables that must be equal on both sides."""
    names = ("subscriptions", "deliveries", "bodies", "attempts", "destinations")
    more = ("replay", "inbox", "callbacks", "sequences")
    return tuple(f"pushkit_{name}" for name in (*names, *more))
