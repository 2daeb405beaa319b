"""The times that a signature states, read and held against the clock (wire profile §4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from pushkit.errors import InvalidSignatureError, TimestampError

if TYPE_CHECKING:
    from pushkit.signing.http_message_signatures import VerifiedHttpSignature
    from pushkit.signing.notification_jwt import JwtClaims

TOKEN_LIFETIME: Final = timedelta(seconds=300)
TOLERANCE: Final = timedelta(seconds=300)
_EXPIRY_LEEWAY: Final = timedelta(seconds=60)
LARGEST_EPOCH: Final = 253402300799  # 9999-12-31: beyond it, no datetime


def read_moment(value: object, of: str, name: str) -> datetime | None:
    """Read seconds since the epoch; None where nothing is stated.

    Args:
        of: What has that name: "claim", for who reads the error.

    Raises:
        InvalidSignatureError: No number, or outside the calendar.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSignatureError(f"{of} `{name}`: expected seconds since the epoch")
    if not 0 <= value <= LARGEST_EPOCH:
        raise InvalidSignatureError(f"{of} `{name}`: outside the calendar")
    return datetime.fromtimestamp(value, UTC)


def check_times(
    stated: JwtClaims | VerifiedHttpSignature,
    now: datetime,
    tolerance: timedelta = TOLERANCE,
) -> None:
    """Hold the times that a signature states against the clock.

    Raises:
        TimestampError: Issued more than `tolerance` ago or ahead, or expired by over a minute.
    """
    check_timestamp(stated.issued_at, now, tolerance)
    if stated.expires_at is not None:
        check_expiry(stated.expires_at, now)


def check_timestamp(moment: datetime, now: datetime, tolerance: timedelta) -> None:
    """Refuse a moment that is further than `tolerance` from now, either way."""
    age = now - moment
    if abs(age) > tolerance:
        seconds = int(tolerance.total_seconds())
        found = f"{int(abs(age).total_seconds())} s {'ago' if age > timedelta(0) else 'ahead'}"
        raise TimestampError(f"issued {found}, expected within {seconds} s: check the clocks")


def check_expiry(moment: datetime, now: datetime) -> None:
    """Refuse what expired more than a minute ago."""
    # As an age: at the ends of the calendar a moment has no leeway to add or take away.
    if now - moment > _EXPIRY_LEEWAY:
        raise TimestampError("the signature has expired")
