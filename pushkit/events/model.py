"""`Event`, the base of all events; their codes; and the one event of both sides."""

from __future__ import annotations

import logging
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from pushkit.record import record


class EventKind(StrEnum):
    """The stable code of each event."""

    ENQUEUED = "enqueued"
    ATTEMPT = "attempt"
    DELIVERED = "delivered"
    DELIVERY_DEAD = "delivery_dead"
    RECIPIENT_REFUSED = "recipient_refused"
    PUSH_CONFIG_REFUSED = "push_config_refused"
    PUSH_CONFIG_UNSENT = "push_config_unsent"
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
    GENERATION_GAP = "generation_gap"
    CALLED_BACK = "called_back"
    NOTIFICATION_DEAD = "notification_dead"


@record(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    kind: ClassVar[EventKind]
    usual_level: ClassVar[int] = logging.NOTSET

    at: datetime  # when it happened

    def __init_subclass__(cls, *, kind: EventKind | None = None, level: int | None = None) -> None:
        # A class with slots is created twice, the second time without these arguments.
        if kind is not None:
            cls.kind = kind
        if level is not None:
            cls.usual_level = level

    @property
    def level(self) -> int:
        """The level at which it is logged; `NOTSET` for not at all, or by a line of its own."""
        return self.usual_level


@record(frozen=True, slots=True, kw_only=True)
class HealthFault(Event, kind=EventKind.HEALTH_FAULT):
    """A part of a sender or a receiver does not work. Emitted only if alerts are configured."""

    part: str  # `storage`, `worker`, `keys` or `callbacks`, as in `/readyz`
    reason: str  # the cause, in a sentence
    about: str = ""  # the sender whose keys, or the callback; empty for the whole part
