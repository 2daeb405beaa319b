"""Who or what cancelled a delivery, so that it can be brought back where that makes sense."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pushkit.storage.migrations import Migration

CANCELLING_MIGRATION: Final = Migration(
    8,
    (
        # NULL for what was cancelled before there was this column.
        "ALTER TABLE pushkit_deliveries ADD COLUMN cancelled_by TEXT",
        "ALTER TABLE pushkit_subscriptions ADD COLUMN disabled_by TEXT",
        "ALTER TABLE pushkit_subscriptions ADD COLUMN disabled_at BIGINT",
    ),
    may_roll=True,
)


class CancelledBy(StrEnum):
    """Who or what cancelled a delivery."""

    OPERATOR = "operator"
    """`pushkit outbox cancel`, or `PushSender.outbox.cancel()`."""
    DISABLED = "disabled"
    """Its subscription was disabled: it can be sent once that is enabled again."""
    REMOVED = "removed"
    """Its subscription was removed: nobody wants it any more."""
    SUPERSEDED = "superseded"
    """A newer status says all that it said."""
