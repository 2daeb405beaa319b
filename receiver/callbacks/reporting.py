"""What is said of notifications: in the lines about calls, of dead letters, of the unmatched."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeAlias

from pushkit.a2a import TaskState, UpdateKind, decode_update
from pushkit.errors import InboundError, StorageError
from pushkit.events import Listeners, NotificationDead
from pushkit.scheduling.event_loop import in_own_thread
from pushkit.storage.database import Database
from pushkit.storage.location import with_database
from pushkit.webhook import trace_id_of
from receiver.inbox.model import Notification, StoredNotification
from receiver.inbox.store import last_wanted
from receiver.request import LARGE_BODY

_log = logging.getLogger("receiver")

_Kind: TypeAlias = "tuple[UpdateKind, TaskState | None]"

_READ_BACK = 100  # how many of the newest finished notifications are looked at


def logged_of(notification: Notification | StoredNotification) -> dict[str, object]:
    """Return the members of a JSON log line that name a notification."""
    trace_id = trace_id_of(notification.traceparent)
    return {
        "sender": notification.sender,
        "task": notification.task_id,
        "delivery_id": notification.delivery_id,
        "notification_id": notification.id,
        **({"trace_id": trace_id} if trace_id else {}),
    }


def named(notification: Notification) -> str:
    """Return a notification's id, task and trace for a log line; a task id forges no line."""
    return f"notification {notification.id} task={notification.task_id!a}{_trace(notification)}"


def _trace(notification: Notification | StoredNotification) -> str:
    trace_id = trace_id_of(notification.traceparent)
    return f" trace_id={trace_id}" if trace_id else ""


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
        _trace(dead),
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


class UnmatchedLog:
    """Logs which notifications no callback wants: one line, and one for each lost callback.

    A receiver that wants some states is sent the others, too: that is no fault. It is one if a
    callback had notifications of this kind and state before, under this process or an earlier one,
    and none wants them now.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._wanted: set[_Kind] = set()  # that a callback had
        self._has_read = False  # whether those of earlier processes are known
        self._logged: set[_Kind | None] = set()  # None stands for all that nobody wanted before

    def note_wanted(self, notification: Notification) -> None:
        """Note that a callback gets a notification."""
        self._wanted.add((notification.kind, notification.state))

    async def note_unwanted(self, notification: Notification) -> None:
        """Log that no callback wants a notification, unless that has been said."""
        if not self._has_read:
            self._has_read = True
            with contextlib.suppress(StorageError):
                script = last_wanted(_READ_BACK, max_bytes=LARGE_BODY)
                bodies = await self._database.read(script)
                self._wanted |= await in_own_thread(_kinds_of, bodies)
        kind = notification.kind, notification.state
        is_lost = kind in self._wanted
        cause = kind if is_lost else None
        if cause in self._logged:
            return
        self._logged.add(cause)
        _log.log(
            logging.WARNING if is_lost else logging.INFO,
            "no callback wants notification %d, kind=%s state=%s%s: it is done; it and further ones"
            " are listed by `%s`",
            notification.id,
            *kind,
            ", though one had such before" if is_lost else "",
            with_database("receiver inbox list --unmatched", self._database.location),
            extra={"code": "unmatched", "sender": notification.sender},
        )


def _kinds_of(bodies: Sequence[bytes]) -> set[_Kind]:
    kinds: set[_Kind] = set()
    for body in bodies:
        with contextlib.suppress(InboundError):  # another version accepted it
            update = decode_update(body)
            kinds.add((update.kind, update.state))
    return kinds
