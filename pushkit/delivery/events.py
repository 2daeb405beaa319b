"""What an operator may want to hear of, handed to the `on_event` of a `PushSender`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pushkit.outbox import Delivery

__all__ = ["EventKind", "SenderEvent", "event_of", "tell"]

_log = logging.getLogger("pushkit.delivery")


class EventKind(StrEnum):
    """What happened."""

    DELIVERY_DEAD = "delivery_dead"
    """Given up: the delivery is a dead letter."""
    SUBSCRIPTION_DISABLED = "subscription_disabled"
    """The webhook is gone, or only failed for too long; pending deliveries are cancelled."""
    BREAKER_OPENED = "breaker_opened"
    """A destination failed too often in a row, or its probe did; it is left alone for a while."""
    BREAKER_CLOSED = "breaker_closed"
    """A destination works again."""
    RECIPIENT_REFUSED = "recipient_refused"
    """`notify()` stored an update for others, but not for this subscription: `error` says why.

    With `notify(connection=...)` it is told before that transaction commits, or is rolled back.
    """
    LOCAL_FAULT = "local_fault"
    """A delivery waits because something failed on this side: a key, a KMS, a sealed secret, the
    database, an application's function. It is tried again by itself; `error` says what it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderEvent:
    """Something that the worker or `notify()` did, once it is on disk.

    Attributes:
        kind: What happened.
        at: When, by the database's clock.
        tenant: The tenant of the subscription.
        owner: The owner of the subscription.
        task_id: The task of the delivery, or of the update, that brought it about.
        subscription_id: The subscription.
        delivery_id: The delivery; None where there is none, since its recipient was refused.
        origin: The destination.
        error: A short code: why.
    """

    kind: EventKind
    at: datetime
    tenant: str
    owner: str
    task_id: str
    subscription_id: str
    delivery_id: str | None
    origin: str
    error: str | None = None


def event_of(
    kind: EventKind, delivery: Delivery, at: datetime, error: str | None = None
) -> SenderEvent:
    """Return the event that a delivery brought about."""
    return SenderEvent(
        kind=kind,
        at=at,
        tenant=delivery.tenant,
        owner=delivery.owner,
        task_id=delivery.task_id,
        subscription_id=delivery.subscription_id,
        delivery_id=delivery.id,
        origin=delivery.origin,
        error=error,
    )


def tell(on_event: Callable[[SenderEvent], None] | None, events: Sequence[SenderEvent]) -> None:
    """Hand events to who listens; what the listener raises is logged and outlived."""
    if on_event is None:
        return
    for event in events:
        try:
            on_event(event)
        except Exception:  # noqa: BLE001  # a listener never breaks the worker
            _log.exception("on_event failed at %s", event.kind.value)
