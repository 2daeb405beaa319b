"""What the signature schemes have in common: their names, and the times that they state.

Each has its own headers, so a request may be signed by several.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from pushkit.clock import TOLERANCE
from pushkit.errors import InvalidSignatureError, TimestampError


class Scheme(StrEnum):
    """How a notification is signed (wire profile §3)."""

    JWT = "jwt"
    """The notification JWT: names issuer, webhook, delivery and body. The default."""
    STANDARD_WEBHOOKS = "standard-webhooks"
    """Id, time and body, by a shared secret (`v1`) or an Ed25519 key (`v1a`). It names no audience:
    a request for one webhook is valid at every other one with the same secret or key."""
    HTTP_MESSAGE_SIGNATURES = "http-message-signatures"
    """RFC 9421: method, URL, the headers that matter, and the body by its Content-Digest."""


# --- the times that a signature states: reading and checking them (wire profile §4) --------------

_EXPIRY_LEEWAY: Final = timedelta(seconds=60)
LARGEST_EPOCH: Final = 253402300799  # 9999-12-31, the last day of `datetime`


def read_moment(value: object, of: str, name: str) -> datetime | None:
    """Read seconds since the epoch; None if the value is None.

    Args:
        of: What `name` names, for the error: "claim" or "parameter".

    Raises:
        InvalidSignatureError: Not a number, or outside the calendar.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSignatureError(f"{of} `{name}`: expected seconds since the epoch")
    if not 0 <= value <= LARGEST_EPOCH:
        raise InvalidSignatureError(f"{of} `{name}`: outside the calendar")
    return datetime.fromtimestamp(value, UTC)


def check_times(
    issued_at: datetime,
    expires_at: datetime | None,  # None if the signature does not say
    now: datetime,
    tolerance: timedelta = TOLERANCE,
) -> None:
    """Check the times that a signature states.

    Raises:
        TimestampError: Issued more than `tolerance` ago or ahead, or expired over a minute ago.
    """
    check_timestamp(issued_at, now, tolerance)
    if expires_at is not None:
        check_expiry(expires_at, now)


def check_not_before(moment: datetime, now: datetime, tolerance: timedelta) -> None:
    """Raise TimestampError if a time is more than `tolerance` ahead.

    Many libraries state `iat` as `nbf`, too: a clock that is accepted there is accepted here.
    """
    if moment - now > tolerance:
        raise TimestampError("the signature is not valid yet")


def check_timestamp(moment: datetime, now: datetime, tolerance: timedelta) -> None:
    """Raise TimestampError if a time is further than `tolerance` from now, either way."""
    age = now - moment
    if abs(age) > tolerance:
        seconds = int(tolerance.total_seconds())
        found = f"{int(abs(age).total_seconds())} s {'ago' if age > timedelta(0) else 'ahead'}"
        raise TimestampError(f"issued {found}, expected within {seconds} s: check the clocks")


def check_expiry(moment: datetime, now: datetime) -> None:
    """Raise TimestampError if a time is over a minute ago."""
    # Compared as an age: at the ends of the calendar, adding the leeway to a time would overflow.
    if now - moment > _EXPIRY_LEEWAY:
        raise TimestampError("the signature has expired")
