"""Settles leased deliveries: stores their results, the side effects, and what is next.

Side effects are those of an attempt on its subscription and its destination. The subscription's row
is locked first, the destination's row last, so that two such transactions cannot deadlock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime, timedelta
from typing import TypedDict

from pushkit.delivery.answers import REFUSED, wait_after, works
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.route import DeliveryJob, Routes, job_of, read_subscriptions
from pushkit.errors import AddressRefusedError
from pushkit.events import (
    AttemptMade,
    BreakerClosed,
    BreakerOpened,
    Delivered,
    DeliveryDead,
    DeliveryEvent,
    Listeners,
    LocalFault,
    SubscriptionDisabled,
)
from pushkit.outbox import attempts, destinations
from pushkit.outbox import store as outbox
from pushkit.outbox.attempts import is_folded, store_results
from pushkit.outbox.destinations import destination_of
from pushkit.outbox.model import AttemptResult, Delivery
from pushkit.outbox.states import CancelledBy, Outcome
from pushkit.outbox.store import leased_deliveries
from pushkit.queue.held import Ask, Reply
from pushkit.queue.leases import advance
from pushkit.queue.rules import GroupKey, Queue, released
from pushkit.record import record
from pushkit.storage.database import Database
from pushkit.storage.script import DEFERRED, Deferred, Script, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, DisabledBy, Recipient
from pushkit.webhook import trace_id_of


@record(frozen=False, slots=True)
class SettledDeliveries:
    """The result of settling one queue."""

    at: datetime  # when, by the database's clock
    attempted: Sequence[DeliveryJob]  # what was settled
    # For each of them, whether it was still this lease's; if not, its result was dropped.
    are_ours: Sequence[bool]
    reply: Reply = Reply(kept=False)
    events: list[DeliveryEvent] = field(default_factory=list)  # the side effects, to be emitted


@record(frozen=False, slots=True)
class _Settling:
    """One queue under its holder's epoch, while it is settled."""

    ask: Ask
    current: Recipient
    queue: Queue
    settled: SettledDeliveries
    is_taken_away: bool = False  # whether it was disabled


@record(frozen=True, slots=True, kw_only=True)
class DeliverySettler:
    """Settles queues, and hands out their next deliveries."""

    database: Database  # where outbox and subscriptions are stored
    clock: Callable[[], datetime]  # the worker's, aware, in UTC
    options: SenderOptions  # the sender's
    routes: Routes  # the worker's

    def script(
        self, asks: Sequence[Ask], /, *, wait: bool = True
    ) -> Script[list[SettledDeliveries | Deferred]]:
        """Settle queues, in one transaction.

        Locks the subscriptions first, in id order, and the destinations last, in order: their rows
        are the ones that many transactions update.

        Args:
            asks: What the holder says of each queue.
            wait: Whether to wait for subscriptions that another transaction has locked, or to
                defer their queues.
        """
        ids = {ask.id for ask in asks}
        current = yield from subscriptions.lock_current(list(ids), wait=wait)
        missing = [] if wait else ids.difference(current)
        deferred = (yield from OUTBOX.existing(list(missing))) if missing else ()
        now = yield from self.database.now()
        settled: dict[int, SettledDeliveries] = {}
        ours: list[_Settling] = []
        for ask in asks:
            if ask.id in deferred:
                continue
            of_ask = settled[id(ask)] = SettledDeliveries(
                now, ask.results, [False] * len(ask.results)
            )
            found = current.get(ask.id)
            if found is not None and found.queue.epoch == ask.epoch:
                ours.append(_Settling(ask, found, found.queue, of_ask))
        yield from self._store(asks, ours, settled, current, now)
        yield from self._advance(ours, now)
        return [settled.get(id(ask), DEFERRED) for ask in asks]

    def _store(
        self,
        asks: Sequence[Ask],
        ours: Sequence[_Settling],
        settled: Mapping[int, SettledDeliveries],
        current: Mapping[str, Recipient],
        now: datetime,
    ) -> Script[None]:
        """Store results with their attempts and side effects."""
        ahead = now - self.clock()
        results: dict[int, AttemptResult] = {}
        for ask in asks:
            for job in ask.results if id(ask) in settled else ():
                result = job.result
                if result is None or not is_folded(job.delivery, result):
                    result = _result_of(job, current, now, ahead)
                results[id(job)] = result
        pairs = [(job.delivery, results[id(job)]) for each in ours for job in each.ask.results]
        stored = yield from store_results(pairs, now=to_micros(now), ahead=ahead)
        for each in ours:
            each.settled.are_ours = [job.delivery.id in stored for job in each.ask.results]
            if not all(each.settled.are_ours):  # some may have to be sent once more
                each.queue = each.queue._replace(due_at=to_micros(now))
        made = [
            (delivery.id, result)
            for delivery, result in pairs
            if delivery.id in stored
            and result.started_at is not None
            and not is_folded(delivery, result)
        ]
        yield from attempts.add(made)
        late = [
            (job.delivery, _result_of(job, current, now, ahead))
            for of_ask in settled.values()
            for job, is_ours in zip(of_ask.attempted, of_ask.are_ours, strict=True)
            if not is_ours
        ]
        for delivery, result in late:
            if result.started_at is not None:
                yield from attempts.add_late(delivery, result)
        failing = yield from destinations.failing([delivery for delivery, _ in pairs])
        ours = sorted(ours, key=lambda each: each.queue.group)
        for each in ours:
            for job, is_ours in zip(each.ask.results, each.settled.are_ours, strict=True):
                if is_ours:
                    result = results[id(job)]
                    yield from self._settle_one(each, job.delivery, result, now, failing)
        for delivery, result in late:
            if result.wait_until is not None:
                # It was cancelled or removed meanwhile; its destination waits all the same.
                yield from destinations.postpone(delivery, result.wait_until, now)

    def _settle_one(
        self,
        each: _Settling,
        delivery: Delivery,
        result: AttemptResult,
        now: datetime,
        failing: dict[GroupKey, int],
    ) -> Script[None]:
        """Note what a stored result means for its queue, subscription and destination."""
        queue = each.queue
        if result.outcome not in (Outcome.RETRY, Outcome.LOCAL_FAULT):
            queue = queue._replace(settled_to=max(queue.settled_to, delivery.seq))
        each.queue = queue._replace(abandoned=0)
        # The first answer ends the failures in a row.
        failures = failing.pop(destination_of(delivery), 0) if failing else 0
        if not failures and not _has_side_effects(each.current, result):
            return
        about = _about(delivery)
        if result.outcome in {Outcome.DEAD, Outcome.GONE}:
            each.settled.events.append(DeliveryDead(at=now, error=result.error, **about))
        if result.outcome is Outcome.LOCAL_FAULT:
            each.settled.events.append(LocalFault(at=now, error=result.error, **about))
        yield from self._for_subscription(about, each, result, now)
        yield from self._for_destination(about, each, delivery, result, now, failures)

    def _advance(self, ours: Sequence[_Settling], now: datetime) -> Script[None]:
        """Keep or release the queues, and read the next deliveries of those that are kept."""
        moment = to_micros(now)
        yield from OUTBOX.write([released(each.queue, None) for each in ours if each.is_taken_away])
        left = [each for each in ours if not each.is_taken_away]
        versions = {each.ask.id: each.ask.version == each.current.revision for each in left}
        probation_from = self.options.breaker.failures
        replies = yield from advance(
            OUTBOX,
            [(each.queue, each.ask) for each in left],
            stops=lambda queue: (
                not (versions[queue.id] and queue.may_send(moment, probation_from=probation_from))
            ),
            now=moment,
        )
        ids = [job.id for reply in replies.values() for job in reply.jobs]
        deliveries = (yield from leased_deliveries(ids)) if ids else {}
        refusals = yield from attempts.count(deliveries.values(), REFUSED)
        unrouted: list[DeliveryJob] = []
        for each in left:
            reply = replies[each.ask.id]
            jobs = []
            for pending in reply.jobs:
                to = self.routes.known(each.ask.id, each.current.revision)
                jobs.append(job_of(deliveries[pending.id], to, refusals[pending.id]))
                if to is None:
                    unrouted.append(jobs[-1])
            # Of a destination on probation, other queues waited for the end of this attempt.
            was_tried = each.current.queue.failures >= probation_from
            each.settled.reply = reply._replace(jobs=jobs, is_due=reply.is_due or was_tried)
        if unrouted:
            yield from read_subscriptions(unrouted)
        for each in left:
            if each.current.ended and not (yield from outbox.has_unfinished(each.ask.id)):
                yield from subscriptions.withdraw([each.ask.id], now)

    # --- side effects --------------------------------------------------------------------------

    def _for_subscription(
        self, about: _About, each: _Settling, result: AttemptResult, now: datetime
    ) -> Script[None]:
        """Note what an attempt means for its subscription."""
        current = each.current
        reason = yield from self._reason_to_disable(current, result, now)
        if reason is not None:
            yield from subscriptions.disable(current.queue.id, now, reason)
            yield from outbox.cancel_subscription(current.queue.id, now, CancelledBy.DISABLED)
            each.settled.events.append(SubscriptionDisabled(at=now, error=reason.value, **about))
            each.is_taken_away = True
            if current.ended:
                yield from subscriptions.withdraw([current.queue.id], now)

    def _reason_to_disable(
        self, current: Recipient, result: AttemptResult, now: datetime
    ) -> Script[DisabledBy | None]:
        since = current.failing_since
        if result.outcome is Outcome.GONE:
            return DisabledBy.GONE
        if result.outcome is Outcome.DELIVERED:
            if since is not None:
                yield from subscriptions.set_failing_since(current.queue.id, None)
        elif works(result) is not None or result.error == AddressRefusedError.code:
            # The webhook did not accept it, or its name leads to a forbidden address.
            if since is None:
                yield from subscriptions.set_failing_since(current.queue.id, now)
            elif current.active and now - since >= self.options.disable_after:
                return DisabledBy.FAILING
        return None

    def _for_destination(  # noqa: PLR0917
        self,
        about: _About,
        each: _Settling,
        delivery: Delivery,
        result: AttemptResult,  # with times by the database's clock
        now: datetime,
        failures: int,  # how many failures in a row its destination had before this attempt
    ) -> Script[None]:
        """Note what an attempt means for its destination."""
        working, events = works(result), each.settled.events
        if working is True:
            if failures:
                yield from destinations.answered(delivery)
                each.queue = each.queue._replace(failures=0)
            if failures >= self.options.breaker.failures:
                events.append(BreakerClosed(at=now, **about))
        elif working is False:
            counted = yield from destinations.failed(delivery, now)
            wait = None if counted is None else wait_after(self.options.breaker, counted)
            if wait is not None:
                yield from self._postpone(each, delivery, now + wait, now)
                events.append(BreakerOpened(at=now, error=result.error, **about))
        if result.wait_until is not None:
            yield from self._postpone(each, delivery, result.wait_until, now)

    def _postpone(
        self, each: _Settling, delivery: Delivery, until: datetime, now: datetime
    ) -> Script[None]:
        yield from destinations.postpone(delivery, until, now)
        if delivery.origin == each.queue.origin:
            waits_until = max(each.queue.waits_until, to_micros(until))
            each.queue = each.queue._replace(waits_until=waits_until)


class _About(TypedDict):
    tenant: str
    owner: str
    task_id: str
    subscription_id: str
    delivery_id: str
    origin: str


def _about(delivery: Delivery) -> _About:
    """Return the members that all events of a delivery have."""
    return _About(
        tenant=delivery.tenant,
        owner=delivery.owner,
        task_id=delivery.task_id,
        subscription_id=delivery.subscription_id,
        delivery_id=delivery.id,
        origin=delivery.origin,
    )


def emit_settled(events: Listeners, settled: SettledDeliveries) -> None:
    """Emit the events of settled attempts, and of their side effects."""
    wants_successes = events.wants(logging.INFO)
    for each, is_ours in zip(settled.attempted, settled.are_ours, strict=True):
        delivery, result = each.delivery, each.result
        assert result is not None  # noqa: S101
        if not (wants_successes if result.error is None else events.wants(logging.WARNING)):
            continue
        if result.started_at is not None:
            events.emit(
                AttemptMade(
                    at=settled.at,
                    seq=delivery.seq,
                    attempt=delivery.attempts + 1,
                    outcome=result.outcome.value,
                    status=result.status,
                    error=result.error,
                    took=result.duration,
                    retry_in=_retry_in(result) if is_ours else None,
                    trace_id=trace_id_of(delivery.traceparent),
                    **_about(delivery),
                )
            )
        is_delivered = result.outcome is Outcome.DELIVERED and is_ours
        if is_delivered and events.wants(logging.NOTSET):
            events.emit(
                Delivered(
                    at=settled.at,
                    attempts=delivery.attempts + 1,
                    waited=settled.at - delivery.age_from,
                    **_about(delivery),
                )
            )
    for event in settled.events:
        events.emit(event)


def _retry_in(result: AttemptResult) -> timedelta | None:
    """Return how long after the end of an attempt the next one is due."""
    if result.retry_at is None or result.started_at is None:
        return None
    return max(result.retry_at - result.started_at - result.duration, timedelta(0))


def _has_side_effects(current: Recipient, result: AttemptResult) -> bool:
    """Return whether an attempt has side effects, if its destination had no failure before."""
    return (
        result.outcome is not Outcome.DELIVERED
        or result.wait_until is not None
        or current.failing_since is not None
    )


def _result_of(
    attempted: DeliveryJob, current: Mapping[str, Recipient], now: datetime, ahead: timedelta
) -> AttemptResult:
    """Return the result to be stored: its times by the database's clock, `ahead` of the worker's.

    A 410 of a URL that was changed meanwhile is retried: the new URL is not gone.
    """
    result = attempted.result
    assert result is not None  # noqa: S101  # what is settled was attempted
    result = replace(
        result,
        started_at=result.started_at + ahead if result.started_at else None,
        retry_at=result.retry_at + ahead if result.retry_at else None,
        wait_until=result.wait_until + ahead if result.wait_until else None,
    )
    if result.outcome is Outcome.GONE:
        to, subscription = attempted.to, current.get(attempted.delivery.subscription_id)
        if to and subscription and subscription.url != to.subscription.config.url:
            return replace(result, outcome=Outcome.RETRY, retry_at=now)
    return result
