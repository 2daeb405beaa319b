"""The report of a dead letter: a line in the log, and an event."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from pushkit.events.model import Listeners
from pushkit.events.receiver import NotificationDead
from pushkit.webhook import trace_id_of
from receiver.callbacks.calls import logged_of, within_trace
from receiver.inbox.model import Notification, StoredNotification

_log = logging.getLogger("receiver")


def report_dead(
    dead: Notification | StoredNotification,
    error: str,
    *,
    events: Listeners,
    clock: Callable[[], datetime],
) -> None:
    """Log and emit that a notification is a dead letter, for all callbacks or in a mailbox."""
    _log.error(
        "notification %d is a dead letter: %s%s",
        dead.id,
        error,
        within_trace(dead),
        extra={"code": NotificationDead.kind.value, **logged_of(dead)},
    )
    if events.wants(NotificationDead.usual_level):
        events.emit(
            NotificationDead(
                at=clock(),
                sender=dead.sender,
                task_id=dead.task_id,
                delivery_id=dead.delivery_id,
                trace_id=trace_id_of(dead.traceparent),
                notification_id=dead.id,
                error=error,
            )
        )
