"""What the sender makes of an answer: wire profile §5 as one table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from pushkit.outbox.states import Outcome
from pushkit.webhook import Headers

_MIN_HOLD = timedelta(seconds=1)
_MAX_HOLD = timedelta(hours=24)


class Judgement(NamedTuple):
    """A verdict on one answer."""

    outcome: Outcome  # what happens to the delivery
    error: str | None = None  # a short code for the log and the dead letter; None if delivered
    # How long the whole destination of this owner waits (`Retry-After`).
    hold: timedelta | None = None


_DELIVERED = Judgement(outcome=Outcome.DELIVERED)
# The statuses that say something of their own; the rest follows by class.
_TABLE = {
    400: Judgement(outcome=Outcome.DEAD, error="rejected"),
    409: Judgement(outcome=Outcome.DEAD, error="conflict"),
    410: Judgement(outcome=Outcome.GONE, error="gone"),
    413: Judgement(outcome=Outcome.DEAD, error="too_large"),
    415: Judgement(outcome=Outcome.DEAD, error="unsupported_media_type"),
    422: Judgement(outcome=Outcome.DEAD, error="unprocessable"),
}
_HOLDING = (429, 503)


def judge(status: int, headers: Headers, now: datetime) -> Judgement:
    """Return what an answer means.

    Args:
        status: The status code; interim answers (1xx) never come here.
    """
    if 200 <= status < 300:
        return _DELIVERED
    if status in _TABLE:
        return _TABLE[status]
    if 300 <= status < 400:
        # Never followed: a redirect would carry token and signature to where nobody checked.
        return Judgement(outcome=Outcome.RETRY, error="redirect")
    hold = retry_after(headers, now) if status in _HOLDING else None
    return Judgement(outcome=Outcome.RETRY, error=f"status_{status}", hold=hold)


def retry_after(headers: Headers, now: datetime) -> timedelta | None:
    """Return the wait that `Retry-After` asks for, between 1 s and 24 h; None if unreadable.

    RFC 9110 §10.2.3: whole seconds, or an HTTP date.
    """
    values = headers.all("Retry-After")
    if len(values) != 1:
        return None
    value = values[0].strip()
    wait = _seconds(value) if value.isascii() and value.isdigit() else _until_date(value, now)
    return None if wait is None else min(max(wait, _MIN_HOLD), _MAX_HOLD)


def _seconds(value: str) -> timedelta:
    # Anything longer than the cap reads as the cap; int() of endless digits is never tried.
    return _MAX_HOLD if len(value) > 9 else timedelta(seconds=int(value))


def _until_date(value: str, now: datetime) -> timedelta | None:
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # no date, or one outside the calendar
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
