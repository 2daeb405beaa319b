"""The messages of a mailbox, as JSON: what the service writes, and its client reads."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from receiver.inbox.mailboxes import HandedOutNotification
from receiver.inbox.model import Notification, StoredNotification

PREFIX: Final = "/mailbox/"
LONGEST_WAIT: Final = 60
"""Seconds that a poll may wait."""
MOST_AT_ONCE: Final = 32
"""Notifications in one answer."""
LONGEST_PAUSE: Final = timedelta(days=1)
"""What a `nack` may ask for."""
EVENTS: Final = "text/event-stream"

_PLAIN: Final = (
    *("id", "sender", "kid", "delivery_id", "task_id", "config_id", "seq", "missing", "late"),
    *("generation_before", "version", "traceparent"),
)
_MOMENTS: Final = ("issued_at", "received_at")


class FetchedNotification(NamedTuple):
    """A notification that a client has fetched."""

    receipt: str
    lease: timedelta
    notification: Notification


def written(members: dict[str, Any]) -> bytes:
    """Write a message: one line of ASCII, whatever the texts of senders hold."""
    return json.dumps(members, separators=(",", ":")).encode("ascii")


def message_of(handed_out: HandedOutNotification, lease: timedelta) -> dict[str, Any]:
    """Return a notification as the service hands it out; `body` is the text that was signed."""
    stored = handed_out.notification
    return {
        "receipt": str(handed_out.receipt),
        "attempt": handed_out.attempt,
        "lease_seconds": lease.total_seconds(),
        "lease_until": handed_out.lease_until.isoformat(),
        "idempotency_key": f"{stored.sender}:{stored.delivery_id}",
        **{name: getattr(stored, name) for name in _PLAIN},
        **{name: getattr(stored, name).isoformat() for name in _MOMENTS},
        "body": stored.body.decode("utf-8"),
    }


def fetched(message: dict[str, Any]) -> FetchedNotification:
    """Read a notification as a client gets it; members that are not known are ignored.

    Raises:
        InboundError: This version cannot decode the body.
        ValueError: A member is missing, or not what the service writes (also `KeyError` or
            `TypeError`).
    """
    facts = {name: message[name] for name in _PLAIN}
    facts |= {name: datetime.fromisoformat(message[name]) for name in _MOMENTS}
    stored = StoredNotification(**facts, body=message["body"].encode("utf-8"))
    return FetchedNotification(
        receipt=str(message["receipt"]),
        lease=timedelta(seconds=message["lease_seconds"]),
        notification=stored.decode(),
    )
