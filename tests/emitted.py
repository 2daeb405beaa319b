"""The events of one type that were emitted; and events that a test makes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pushkit.events import Event, NotificationRefused

__all__ = ["OF_DELIVERY", "OF_SUBSCRIPTION", "emitted", "refused"]

OF_SUBSCRIPTION: Final[dict[str, Any]] = {
    "at": datetime(2026, 1, 1, 12, tzinfo=UTC),
    "tenant": "",
    "owner": "alice",
    "task_id": "task-1",
    "subscription_id": "sub",
    "origin": "https://client.example.com:443",
}
OF_DELIVERY: Final[dict[str, Any]] = {**OF_SUBSCRIPTION, "delivery_id": "dlv"}

E = TypeVar("E", bound=Event)


def emitted(events: Sequence[Event], wanted: type[E]) -> list[E]:
    """Return the events of one type, in order."""
    return [event for event in events if isinstance(event, wanted)]


def refused(at: datetime, code: str, sender: str | None) -> NotificationRefused:
    """Return the event of a refused request."""
    return NotificationRefused(
        at=at,
        sender=sender,
        task_id=None,
        delivery_id=None,
        status=401,
        code=code,
        peer="192.0.2.1",
        reason="found this, expected that " * 100,
    )
