"""The transactions of histories: scripts of this project, over a few rows that they compete for."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from pushkit.delivery.again import Again
from pushkit.delivery.answers import BreakerPolicy
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.route import Routes
from pushkit.delivery.settle import Settler
from pushkit.delivery.slots import Claimed, DeliverySlots
from pushkit.net.destination import DestinationPolicy
from pushkit.outbox.dead_letters import DeadLetters
from pushkit.outbox.heads import clear_head, set_head
from pushkit.outbox.leases import Leases
from pushkit.outbox.model import Claim, Delivery, NewDelivery, Result, StatusMark
from pushkit.outbox.retention import Purge
from pushkit.outbox.settling import settle
from pushkit.outbox.shares import SlotLimits
from pushkit.outbox.states import CancelledBy, DeliveryState, Outcome
from pushkit.outbox.store import OutboxStore
from pushkit.secrets.vault import Vault
from pushkit.storage.script import Script, Statement, to_micros
from pushkit.subscriptions.model import Recipient
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
_ORIGINS = ("https://a.example.com", "https://b.example.com")
_WORKERS = ("w0", "w1")
_BREAKER = BreakerPolicy(failures=2, first_wait=timedelta(seconds=5))

_TRIED = {
    Outcome.DELIVERED: (204, None),
    Outcome.RETRY: (500, "status_500"),
    Outcome.DEAD: (400, "rejected"),
    Outcome.GONE: (410, "gone"),
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

    def hold_parking(self) -> Script[object]:
        return self.hold(["parking"], lambda name: [name], wait=True)

    def wake(self) -> Script[None]:
        yield Statement("SELECT pushkit_wake()")


@dataclass(eq=False)
class Memory:
    """What the processes of one side know; generated ids differ between the two sides."""

    database: StubDatabase
    leases: dict[str, Leases] = field(default_factory=dict)
    claimed: dict[str, list[Delivery]] = field(default_factory=lambda: {w: [] for w in _WORKERS})
    accepted: dict[str, list[ClaimedNotification]] = field(
        default_factory=lambda: {w: [] for w in _WORKERS}
    )

    def worker_at_the_end_of(self, recipient: Recipient) -> str | None:
        """Return the worker that has claimed the newest delivery of a queue, if one has."""
        for worker, held in self.claimed.items():
            if (recipient.id, recipient.last_seq) in {(d.subscription_id, d.seq) for d in held}:
                return worker
        return None

    def chain_of(self, worker: str) -> list[Delivery]:
        """Return what a worker has claimed of one queue, in order."""
        held = self.claimed[worker]
        chain = [each for each in held if each.subscription_id == held[0].subscription_id]
        return sorted(chain, key=lambda each: each.seq)

    def let_go(self, worker: str, settled: Sequence[Delivery]) -> None:
        """Forget settled deliveries."""
        self.claimed[worker] = [each for each in self.claimed[worker] if each not in settled]


Make: TypeAlias = Callable[[Memory], Script[Callable[[], object]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One transaction."""

    name: str  # its name, for readers
    make: Make  # makes the script, which returns a function to call once it is committed
    reads: bool = False  # whether it only reads, on one snapshot


def prepare() -> Script[None]:
    """Add subscriptions and deliveries to empty tables."""
    now = to_micros(_START)
    for number, each in enumerate(_SUBSCRIPTIONS):
        task, owner = _TASKS[number % 2], f"owner{number // 2}"
        origin = _ORIGINS[number // 2]
        yield Statement(
            "INSERT INTO pushkit_subscriptions (tenant, task_id, owner, config_id, id, version,"
            " url, origin, token, schemes, credentials, profile, filter, last_seq, created_at,"
            " updated_at) VALUES ('', $1, $2, 'c', $3, '1.0', $4, $5, NULL, '[]', NULL,"
            " 'standard', $6, 2, $7, $7)",
            (task, owner, each, f"{origin}/hook", origin, _EVERYTHING, now),
        )
        yield from OutboxStore().add(
            [_new(each, task, owner, origin, seq, seq == 1, _START, "") for seq in (1, 2)]
        )


_EVERYTHING = '{"states": null, "kinds": null, "last_chunk_only": false}'


def _new(
    subscription: str,
    task: str,
    owner: str,
    origin: str,
    seq: int,
    head: bool,
    now: datetime,
    by: str,
    claim: Claim | None = None,
) -> NewDelivery:
    moment = now + timedelta(microseconds=seq * 10 + int(subscription[-1]))
    return NewDelivery(
        id=f"dlv_{subscription}_{seq}{by}",
        subscription_id=subscription,
        tenant="",
        owner=owner,
        task_id=task,
        config_id="c",
        seq=seq,
        origin=origin,
        content_type="application/json",
        body=b"{}",
        notified_at=moment,
        not_before=moment,
        head=head,
        status=StatusMark.BARE,
        claim=claim,
        state=DeliveryState.IN_FLIGHT if claim else DeliveryState.PENDING,
        claims=int(claim is not None),
        fruitless_claims=int(claim is not None and head),
    )


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
    # The storing process may be a worker with a free slot; or the worker that has the chain.
    worker, joins, updates = (
        chance.choice((*_WORKERS, None)),
        chance.random() < 0.8,
        chance.choice((1, 1, 3)),
    )

    def script(memory: Memory) -> Script[Callable[[], object]]:
        store, outbox = SubscriptionStore(), OutboxStore()
        now, new = memory.database.moment, list[NewDelivery]()
        held = yield from store.lock_recipients([("", task)], wait=wait)
        if held:
            oldest = yield from outbox.oldest([each.id for each in held])
            yield from store.take_seqs({each.id: updates for each in held})
            for each in held:
                is_free = oldest.get(each.id) is None and not each.paused
                by = memory.worker_at_the_end_of(each) if joins and not each.paused else None
                by = worker if is_free else by
                claim = None if by is None else Claim(worker=by, until=now + _LEASE)
                for n in range(1, updates + 1):
                    seq, head = each.last_seq + n, is_free and n == 1
                    mark = f"_{number}"
                    new.append(
                        _new(each.id, task, each.owner, each.origin, seq, head, now, mark, claim)
                    )
            yield from outbox.add(new)
            if drops:
                yield from outbox.supersede(held[0].id, by_new_status=False, now=now)
        yield from memory.database.wake()

        def done() -> None:
            for each in new:
                if each.claim is not None:
                    memory.claimed[each.claim.worker].append(each)

        return done

    return script


def _claim(chance: random.Random, _number: int) -> Make:
    worker, limit = chance.choice(_WORKERS), chance.randint(1, 3)
    window, destinations = chance.choice(((1, 1), (2, 2), (16, 32)))

    def script(memory: Memory) -> Script[Callable[[], object]]:
        now = yield from memory.database.now()
        leases = Leases(memory.database.hold_parking, window=window, destinations=destinations)
        claimed = yield from leases.claim(
            Claim(worker=worker, until=now + _LEASE),
            SlotLimits(slots=limit, reserved=0, per_origin=2, probation_from=2),
            now=now,
        )
        return lambda: memory.claimed[worker].extend(claimed.deliveries)

    return script


def _settle(chance: random.Random, _number: int) -> Make:
    worker, together = chance.choice(_WORKERS), chance.random() < 0.4
    outcome = Outcome.DELIVERED if together else chance.choice(list(_TRIED))
    wait, pause = not together or chance.random() < 0.3, chance.choice((0, 5, 60))

    def script(memory: Memory) -> Script[Callable[[], object]]:
        held, now = memory.claimed[worker], memory.database.moment
        chosen = held[: 3 if together else 1]
        if not chosen:
            yield from ()
            return _nothing
        result = _result_of(outcome, now)
        if outcome is Outcome.RETRY:
            until = now + timedelta(seconds=pause)
            result = replace(result, retry_at=until, wait_until=until)
        database: Any = memory.database
        settler = Settler(
            database=database,
            worker=worker,
            clock=lambda: memory.database.moment,
            options=SenderOptions(breaker=_BREAKER, disable_after=timedelta(seconds=20)),
            slots=DeliverySlots(1, per_origin=1),  # not open: nothing is claimed
            routes=Routes(issuer="", policy=DestinationPolicy(), vault=Vault()),
            lease=_LEASE,
        )
        yield from settler.script(
            [[Claimed(each, None, 0.0, result=result)] for each in chosen], wait=wait
        )
        return lambda: memory.let_go(worker, chosen)

    return script


def _settle_chain(chance: random.Random, _number: int) -> Make:
    """Settle the front of a chain; put back what follows a failure, or else claim the next."""
    worker, arrived, goes_on = (
        chance.choice(_WORKERS),
        chance.choice((0, 1, 2, 9)),
        chance.random() < 0.7,
    )
    failed = chance.choice((Outcome.RETRY, Outcome.DEAD, Outcome.NOT_BEGUN))

    def script(memory: Memory) -> Script[Callable[[], object]]:
        now = memory.database.moment
        if not memory.claimed[worker]:
            yield from ()
            return _nothing
        chain = memory.chain_of(worker)
        settled = [(each, _result_of(Outcome.DELIVERED, now)) for each in chain[:arrived]]
        if not goes_on or not settled:
            settled += [(each, _result_of(failed, now)) for each in chain[arrived : arrived + 1]]
            behind = chain[arrived + 1 :]
            settled += [(each, _result_of(Outcome.NOT_BEGUN, now)) for each in behind]
        yield from SubscriptionStore().lock_current([chain[0].subscription_id], wait=True)
        passed = yield from settle(
            settled,
            worker,
            now,
            may_follow=lambda _, result: result.outcome is Outcome.DELIVERED,
            until=now + _LEASE,
        )

        def done() -> None:
            memory.let_go(worker, [each for each, _ in settled])
            memory.claimed[worker].extend(passed.claimed)

        return done

    return script


def _result_of(outcome: Outcome, now: datetime) -> Result:
    if outcome is Outcome.NOT_BEGUN:
        return Result(outcome=outcome)
    status, error = _TRIED[outcome]
    retry_at = now + timedelta(seconds=5) if outcome is Outcome.RETRY else None
    return Result(outcome=outcome, status=status, error=error, retry_at=retry_at, started_at=now)


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


def _pause(chance: random.Random, _number: int) -> Make:
    chosen, paused = chance.choice(_SUBSCRIPTIONS), chance.random() < 0.5

    def script(memory: Memory) -> Script[Callable[[], object]]:
        store = SubscriptionStore()
        yield from store.lock_all([chosen])
        yield from store.set_paused(chosen, memory.database.moment, paused=paused)
        yield from clear_head(chosen) if paused else set_head(chosen)
        return _nothing

    return script


def _cancel(chance: random.Random, _number: int) -> Make:
    chosen, whole = chance.choice(_SUBSCRIPTIONS), chance.random() < 0.3

    def script(memory: Memory) -> Script[Callable[[], object]]:
        now = memory.database.moment
        yield from SubscriptionStore().lock(chosen)
        if whole:
            yield from OutboxStore().cancel_subscription(chosen, now, CancelledBy.REMOVED)
        else:
            yield from DeadLetters().cancel(chosen, [f"dlv_{chosen}_1", f"dlv_{chosen}_2"], now)
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
    state, by = chance.choice(("pending", "in_flight", "dead")), chance.randint(1, 3)

    def script(_memory: Memory) -> Script[Callable[[], object]]:
        yield Statement(
            "UPDATE pushkit_deliveries SET fruitless_claims = fruitless_claims + $2"
            " WHERE state = $1 AND head > 0 RETURNING id, fruitless_claims, state",
            (state, by),
        )
        return _nothing

    return script


def _look(_chance: random.Random, _number: int) -> Make:
    def script(memory: Memory) -> Script[Callable[[], object]]:
        yield Statement("SELECT id, state, head FROM pushkit_deliveries ORDER BY id")
        yield from Leases().next_due(memory.database.moment)
        yield Statement("SELECT id, state, head FROM pushkit_deliveries ORDER BY id")
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
    "settle": (4, _settle),
    "settle a chain": (9, _settle_chain),
    "retry": (2, _retry),
    "redrive": (2, _redrive),
    "pause": (2, _pause),
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
    names = ("subscriptions", "deliveries", "bodies", "attempts", "destinations", "parked")
    more = ("replay", "inbox", "callbacks", "sequences")
    return tuple(f"pushkit_{name}" for name in (*names, *more))
