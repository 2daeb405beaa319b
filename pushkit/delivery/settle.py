"""Settles attempted deliveries: stores their results, their side effects, and what is next.

Side effects are those of an attempt on its subscription and its destination. The subscription's row
is locked first, the destination's row last, so that two such transactions cannot deadlock.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime, timedelta
from typing import TypedDict

from pushkit.delivery.answers import wait_after, works
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.route import Routes
from pushkit.delivery.slots import Claimed, DeliverySlots, read_subscriptions
from pushkit.errors import AddressRefusedError
from pushkit.events.listeners import Listeners
from pushkit.events.sender import (
    AttemptMade,
    BreakerClosed,
    BreakerOpened,
    Delivered,
    DeliveryDead,
    DeliveryEvent,
    LocalFault,
    SubscriptionDisabled,
)
from pushkit.outbox.attempts import AttemptLog, is_folded
from pushkit.outbox.destinations import DestinationKey, DestinationStore, destination_of
from pushkit.outbox.model import Delivery, Result
from pushkit.outbox.settling import settle
from pushkit.outbox.states import CancelledBy, Outcome
from pushkit.outbox.store import OutboxStore
from pushkit.record import record
from pushkit.storage.database import Database
from pushkit.storage.script import DEFERRED, Deferred, Script, alone
from pushkit.subscriptions.model import Current, DisabledBy
from pushkit.subscriptions.store import SubscriptionStore
from pushkit.traceparent import trace_id_of


def _destination_of(batch: Sequence[Claimed]) -> DestinationKey:
    return destination_of(batch[0].delivery)


@record(frozen=False, slots=True)
class Settled:
    """The result of settling deliveries of one queue."""

    at: datetime  # when, by the database's clock
    # For each delivery, whether this worker still had its claim; if not, its result was dropped.
    are_ours: Sequence[bool]
    events: list[DeliveryEvent] = field(default_factory=list)  # the side effects, to be emitted
    # The next deliveries of the queue, claimed, which take over its slot.
    following: Sequence[Claimed] = ()
    some_wait: bool = False  # whether the next one waits for a claim
    may_continue: bool = False  # whether its chain may begin the deliveries already in flight


@record(frozen=True, slots=True, kw_only=True)
class Settler:
    """Settles deliveries, and claims the next ones of their queues."""

    database: Database  # where outbox and subscriptions are stored
    worker: str
    clock: Callable[[], datetime]  # the worker's, aware, in UTC
    options: SenderOptions  # the sender's
    slots: DeliverySlots  # the worker's
    routes: Routes  # the worker's, too
    lease: timedelta  # of the next deliveries
    attempts: AttemptLog = field(default_factory=AttemptLog)
    outbox: OutboxStore = field(default_factory=OutboxStore)
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)
    destinations: DestinationStore = field(default_factory=DestinationStore)

    def settle(self, attempted: Sequence[Claimed]) -> Awaitable[Settled]:
        """Settle deliveries of one queue, in order and in one transaction.

        Raises:
            StorageError: The database refused; nothing was settled.
        """
        # Only the last attempt can have failed: no delivery behind a failure begins.
        if attempted[-1].result.outcome is Outcome.DELIVERED:
            return self.database.write_together(self.script, attempted)
        # Failures are settled one after another: the last of them opens the breaker.
        return self.database.write_patiently(lambda: alone(self.script, attempted))

    def script(
        self, batches: Sequence[Sequence[Claimed]], /, *, wait: bool = True
    ) -> Script[list[Settled | Deferred]]:
        """Settle batches of deliveries, each of one queue and in order.

        Locks the subscriptions first, in id order, and the destinations last, in order: their rows
        are the ones that many transactions update.

        Args:
            batches: The deliveries of each queue.
            wait: Whether to wait for subscriptions that another transaction has locked, or to
                defer their batches.
        """
        ids = {batch[0].delivery.subscription_id for batch in batches}
        current = yield from self.subscriptions.lock_current(list(ids), wait=wait)
        missing = [] if wait else ids.difference(current)
        deferred = (yield from self.subscriptions.existing(list(missing))) if missing else ()
        since = time.perf_counter()
        now = yield from self.database.now()
        locked = [each for each in batches if each[0].delivery.subscription_id not in deferred]
        locked.sort(key=_destination_of)
        settled = yield from self._settle(locked, current, now, since)
        return [settled.get(id(batch), DEFERRED) for batch in batches]

    def _settle(
        self,
        batches: Sequence[Sequence[Claimed]],
        current: Mapping[str, Current],
        now: datetime,
        since: float,
    ) -> Script[dict[int, Settled]]:
        """Settle batches whose subscriptions are locked; return their results by `id(batch)`."""
        ahead = now - self.clock()
        attempted = [each for batch in batches for each in batch]
        deliveries = [each.delivery for each in attempted]
        folded = [is_folded(each.delivery, each.result) for each in attempted]
        results = [
            each.result if folds else _result_of(each, current, now, ahead)
            for each, folds in zip(attempted, folded, strict=True)
        ]
        stored = yield from settle(
            list(zip(deliveries, results, strict=True)),
            self.worker,
            now,
            may_follow=self._may_follow,
            until=now + self.lease,
            ahead=ahead,
        )
        ours = []
        for delivery, result, folds, is_ours in zip(
            deliveries, results, folded, stored.are_ours, strict=True
        ):
            if result.started_at is None or (folds and is_ours):
                continue
            if is_ours:
                ours.append((delivery.id, result))
            else:
                yield from self.attempts.record_late(delivery, result)
        yield from self.attempts.record(ours)
        failing = yield from self.destinations.failing(deliveries)
        following = yield from self._routed(stored.claimed, current, since)
        settled: dict[int, Settled] = {}
        end = 0
        for batch in batches:
            begin, end = end, end + len(batch)
            subscription_id, last = batch[0].delivery.subscription_id, results[end - 1]
            of_batch = settled[id(batch)] = Settled(now, stored.are_ours[begin:end])
            for delivery, result, is_ours in zip(
                deliveries[begin:end], results[begin:end], of_batch.are_ours, strict=True
            ):
                if not is_ours and result.wait_until is not None:
                    # The delivery was cancelled meanwhile; its destination waits all the same.
                    yield from self.destinations.postpone(delivery, result.wait_until, now)
                if not is_ours or result.outcome is Outcome.NOT_BEGUN:
                    continue
                # The first answer ends the failures in a row.
                failures = failing.pop(destination_of(delivery), 0) if failing else 0
                if failures or _has_side_effects(current.get(subscription_id), result):
                    of_batch.events += yield from self._apply(
                        delivery, current.get(subscription_id), result, now, failures
                    )
            if not of_batch.are_ours[-1]:
                continue
            of_batch.some_wait = subscription_id in stored.passed_on
            if last.outcome is not Outcome.NOT_BEGUN:
                of_batch.following = following.get(subscription_id, ())
                of_batch.may_continue = subscription_id not in stored.stopped and not _has_changed(
                    batch[-1], current.get(subscription_id)
                )
        return settled

    # --- side effects --------------------------------------------------------------------------

    def _apply(
        self,
        delivery: Delivery,
        current: Current | None,  # its subscription, locked; None if it was removed
        result: Result,  # with times by the database's clock
        now: datetime,
        failures: int,  # how many failures in a row its destination had before this attempt
    ) -> Script[list[DeliveryEvent]]:
        """Apply the side effects of a settled attempt; return the events to emit."""
        events: list[DeliveryEvent] = []
        about = _about(delivery)
        if result.outcome in {Outcome.DEAD, Outcome.GONE}:
            events.append(DeliveryDead(at=now, error=result.error, **about))
        if result.outcome is Outcome.LOCAL_FAULT:
            events.append(LocalFault(at=now, error=result.error, **about))
        if current is not None:
            events += yield from self._for_subscription(about, current, result, now)
        events += yield from self._for_destination(about, delivery, result, now, failures)
        return events

    def _for_subscription(
        self, about: _About, current: Current, result: Result, now: datetime
    ) -> Script[list[DeliveryEvent]]:
        events: list[DeliveryEvent] = []
        reason = yield from self._reason_to_disable(current, result, now)
        if reason is not None:
            yield from self.subscriptions.disable(current.id, now, reason)
            yield from self.outbox.cancel_subscription(current.id, now, CancelledBy.DISABLED)
            events.append(SubscriptionDisabled(at=now, error=reason.value, **about))
        if current.ended and not (yield from self.outbox.has_unfinished(current.id)):
            yield from self.subscriptions.withdraw([current.id], now)
        return events

    def _reason_to_disable(
        self, current: Current, result: Result, now: datetime
    ) -> Script[DisabledBy | None]:
        since = current.failing_since
        if result.outcome is Outcome.GONE:
            return DisabledBy.GONE
        if result.outcome is Outcome.DELIVERED:
            if since is not None:
                yield from self.subscriptions.set_failing_since(current.id, None)
        elif works(result) is not None or result.error == AddressRefusedError.code:
            # The webhook did not accept it, or its name leads to a forbidden address.
            if since is None:
                yield from self.subscriptions.set_failing_since(current.id, now)
            elif current.active and now - since >= self.options.disable_after:
                return DisabledBy.FAILING
        return None

    def _for_destination(
        self, about: _About, delivery: Delivery, result: Result, now: datetime, failures: int
    ) -> Script[list[DeliveryEvent]]:
        destinations = self.destinations
        working = works(result)
        events: list[DeliveryEvent] = []
        if working is True:
            if failures:
                yield from destinations.answered(delivery)
            if failures >= self.options.breaker.failures:
                events.append(BreakerClosed(at=now, **about))
        elif working is False:
            counted = yield from destinations.failed(delivery, now)
            wait = None if counted is None else wait_after(self.options.breaker, counted)
            if wait is not None:
                yield from destinations.postpone(delivery, now + wait, now)
                events.append(BreakerOpened(at=now, error=result.error, **about))
        if result.wait_until is not None:
            yield from destinations.postpone(delivery, result.wait_until, now)
        return events

    # --- the next deliveries -------------------------------------------------------------------

    def _may_follow(self, delivery: Delivery, result: Result) -> bool:
        """Return whether the next delivery of a queue may be claimed, into the same slot."""
        return result.outcome is Outcome.DELIVERED and self.slots.may_follow(
            destination_of(delivery)
        )

    def _routed(
        self, claimed: Sequence[Delivery], current: Mapping[str, Current], since: float
    ) -> Script[dict[str, list[Claimed]]]:
        """Return claimed deliveries with their routes, by subscription."""
        if not claimed:
            return {}
        routed: dict[str, list[Claimed]] = {}
        for each in claimed:
            name = each.subscription_id
            to = self.routes.known(name, current[name].revision) if name in current else None
            routed.setdefault(name, []).append(Claimed(each, to, since))
        found = itertools.chain.from_iterable(routed.values())
        yield from read_subscriptions([each for each in found if each.to is None])
        return routed


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


def emit_settled(events: Listeners, attempted: Sequence[Claimed], settled: Settled) -> None:
    """Emit the events of settled attempts, and of their side effects."""
    wants_successes = events.wants(logging.INFO)
    for each, is_ours in zip(attempted, settled.are_ours, strict=True):
        delivery, result = each.delivery, each.result
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


def _has_side_effects(current: Current | None, result: Result) -> bool:
    """Return whether an attempt has side effects, if its destination had no failure before."""
    return (
        result.outcome is not Outcome.DELIVERED
        or result.wait_until is not None
        or (current is not None and (current.ended or current.failing_since is not None))
    )


def _result_of(
    attempted: Claimed, current: Mapping[str, Current], now: datetime, ahead: timedelta
) -> Result:
    """Return the result to be stored: its times by the database's clock, `ahead` of the worker's.

    A 410 of a URL that was changed meanwhile is retried: the new URL is not gone.
    """
    result = attempted.result
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


def _has_changed(attempted: Claimed, current: Current | None) -> bool:
    """Return whether the subscription changed after the chain read it."""
    to = attempted.to
    return to is None or current is None or to.subscription.revision != current.revision
