"""The side effects of a settled attempt: on its subscription and its destination.

The scripts run in the transaction that settles. The caller has locked the subscription's row; the
destination's row is locked last, so that two such transactions cannot deadlock.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypedDict

from pushkit.delivery.answers import BreakerPolicy, wait_after, works
from pushkit.errors import AddressRefusedError
from pushkit.events.sender import (
    BreakerClosed,
    BreakerOpened,
    DeliveryDead,
    DeliveryEvent,
    LocalFault,
    SubscriptionDisabled,
)
from pushkit.outbox.destinations import DestinationStore
from pushkit.outbox.model import Delivery, Result
from pushkit.outbox.states import CancelledBy, Outcome
from pushkit.outbox.store import OutboxStore
from pushkit.record import field, record
from pushkit.storage.script import Script
from pushkit.subscriptions.model import Current, DisabledBy
from pushkit.subscriptions.store import SubscriptionStore


class AboutDelivery(TypedDict):
    """The members that all events of a delivery have."""

    tenant: str
    owner: str
    task_id: str
    subscription_id: str
    delivery_id: str
    origin: str


def about_delivery(delivery: Delivery) -> AboutDelivery:
    """Return the members that all events of a delivery have."""
    return AboutDelivery(
        tenant=delivery.tenant,
        owner=delivery.owner,
        task_id=delivery.task_id,
        subscription_id=delivery.subscription_id,
        delivery_id=delivery.id,
        origin=delivery.origin,
    )


@record(frozen=True, slots=True, kw_only=True)
class SideEffects:
    """Applies the side effects of attempts."""

    breaker: BreakerPolicy  # when a destination is not attempted for a while
    disable_after: timedelta  # a subscription that only failed for this long is disabled
    outbox: OutboxStore = field(default_factory=OutboxStore)
    destinations: DestinationStore = field(default_factory=DestinationStore)
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)

    def apply(
        self,
        delivery: Delivery,
        current: Current | None,  # its subscription, locked; None if it was removed
        result: Result,  # with times by the database's clock
        now: datetime,
        failures: int,  # how many failures in a row its destination had before this attempt
    ) -> Script[list[DeliveryEvent]]:
        """Apply the side effects of a settled attempt; return the events to emit."""
        events: list[DeliveryEvent] = []
        about = about_delivery(delivery)
        if result.outcome in {Outcome.DEAD, Outcome.GONE}:
            events.append(DeliveryDead(at=now, error=result.error, **about))
        if result.outcome is Outcome.LOCAL_FAULT:
            events.append(LocalFault(at=now, error=result.error, **about))
        if current is not None:
            events += yield from self._for_subscription(delivery, current, result, now)
        events += yield from self._for_destination(delivery, result, now, failures)
        return events

    def _for_subscription(
        self, delivery: Delivery, current: Current, result: Result, now: datetime
    ) -> Script[list[DeliveryEvent]]:
        events: list[DeliveryEvent] = []
        reason = yield from self._reason_to_disable(current, result, now)
        if reason is not None:
            yield from self.subscriptions.disable(current.id, now, reason)
            yield from self.outbox.cancel_subscription(current.id, now, CancelledBy.DISABLED)
            events.append(
                SubscriptionDisabled(at=now, error=reason.value, **about_delivery(delivery))
            )
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
            elif current.active and now - since >= self.disable_after:
                return DisabledBy.FAILING
        return None

    def _for_destination(
        self, delivery: Delivery, result: Result, now: datetime, failures: int
    ) -> Script[list[DeliveryEvent]]:
        destinations = self.destinations
        working = works(result)
        events: list[DeliveryEvent] = []
        if working is True:
            if failures:
                yield from destinations.answered(delivery)
            if failures >= self.breaker.failures:
                events.append(BreakerClosed(at=now, **about_delivery(delivery)))
        elif working is False:
            counted = yield from destinations.failed(delivery, now)
            wait = None if counted is None else wait_after(self.breaker, counted)
            if wait is not None:
                yield from destinations.postpone(delivery, now + wait)
                events.append(BreakerOpened(at=now, error=result.error, **about_delivery(delivery)))
        if result.wait_until is not None:
            yield from destinations.postpone(delivery, result.wait_until)
        return events


def has_side_effects(current: Current | None, result: Result) -> bool:
    """Return whether an attempt has side effects, if its destination had no failure before."""
    return (
        result.outcome is not Outcome.DELIVERED
        or result.wait_until is not None
        or (current is not None and (current.ended or current.failing_since is not None))
    )
