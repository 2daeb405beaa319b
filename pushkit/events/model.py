"""`Event`: what all events have in common, and the word of each; and the one of both sides."""

from __future__ import annotations

import logging
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from pushkit.record import record


class EventKind(StrEnum):
    """What happened: the stable code of each event."""

    ENQUEUED = "enqueued"
    ATTEMPT = "attempt"
    DELIVERED = "delivered"
    DELIVERY_DEAD = "delivery_dead"
    RECIPIENT_REFUSED = "recipient_refused"
    LOCAL_FAULT = "local_fault"
    BREAKER_OPENED = "breaker_opened"
    BREAKER_CLOSED = "breaker_closed"
    SUBSCRIPTION_CHANGED = "subscription_changed"
    SUBSCRIPTION_DISABLED = "subscription_disabled"
    OUTBOX_CHANGED = "outbox_changed"
    KEY_RING_CHANGED = "key_ring_changed"
    SIGNING_KEY_CHANGED = "signing_key_changed"
    SIGNING_KEY_NEAR_END = "signing_key_near_end"
    HEALTH_FAULT = "health_fault"
    NOTIFICATION_ACCEPTED = "notification_accepted"
    NOTIFICATION_REPEATED = "notification_repeated"
    NOTIFICATION_REFUSED = "notification_refused"
    CALLED_BACK = "called_back"
    NOTIFICATION_DEAD = "notification_dead"


@record(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    kind: ClassVar[EventKind]
    usual_level: ClassVar[int] = logging.NOTSET

    at: datetime  # when

    def __init_subclass__(cls, *, kind: EventKind | None = None, level: int | None = None) -> None:
        # A class with slots is made twice, and without these the second time.
        if kind is not None:
            cls.kind = kind
        if level is not None:
            cls.usual_level = level

    @property
    def level(self) -> int:
        """The level at which it is logged; `NOTSET` where a line of its own says it already."""
        return self.usual_level


@record(frozen=True, slots=True, kw_only=True)
class HealthFault(Event, kind=EventKind.HEALTH_FAULT):
    """Something of a sender or a receiver does not work; looked for where alerts are configured."""

    part: str  # what: `storage`, `worker`, `keys` or `callbacks`, as `/readyz` has it
    reason: str  # why, in a sentence
    about: str = ""  # whose, or which: a sender's keys, a callback; empty if it is the whole part
