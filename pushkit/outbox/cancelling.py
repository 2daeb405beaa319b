"""Who or what cancelled a delivery, so that it can be brought back where that makes sense."""

from __future__ import annotations

from enum import StrEnum


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
