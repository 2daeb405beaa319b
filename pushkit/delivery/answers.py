"""What an answer, or its absence, means for the delivery and for the destination.

For the delivery: wire profile §5, as one table. For the destination: a circuit breaker.

    CLOSED ─`failures` in a row→ OPEN ─wait over→ HALF_OPEN ─one success→ CLOSED
                                  ▲────────── one failure ──┘

The breaker is a pure function of the failures in a row. That number and the end of the wait are
stored in the database, so that every worker sees the same breaker. No timer changes its state: an
open breaker whose wait is over is half open, and lets one attempt through at a time.

The beginning of an answer may be kept with its attempt, without the secrets that it may repeat.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from pushkit.errors import AddressRefusedError, ConfigError, DestinationRefusedError
from pushkit.options import Count, Duration, check_options
from pushkit.outbox.model import AttemptResult
from pushkit.outbox.states import Outcome
from pushkit.webhook import Headers

if TYPE_CHECKING:
    from pushkit.delivery.route import Route

TOO_OLD: Final = "too_old"
SUBSCRIPTION_MISSING: Final = "subscription_missing"
# This sender's own policy does not allow the destination.
REFUSED: Final = frozenset({AddressRefusedError.code, DestinationRefusedError.code})
# Errors of deliveries that were not posted: they prove nothing about the destination.
_NOT_POSTED = REFUSED | {SUBSCRIPTION_MISSING, TOO_OLD}

_MIN_WAIT = timedelta(seconds=1)
_MAX_WAIT = timedelta(hours=24)


class ResponseClass(NamedTuple):
    """The meaning of one answer."""

    outcome: Outcome  # what happens to the delivery
    error: str | None = None  # a short code for the log and the dead letter; None if delivered
    # How long all deliveries of this owner to the destination wait (`Retry-After`).
    wait: timedelta | None = None


_DELIVERED = ResponseClass(outcome=Outcome.DELIVERED)
# The statuses with a meaning of their own; the others follow by class.
_TABLE = {
    400: ResponseClass(outcome=Outcome.DEAD, error="rejected"),
    409: ResponseClass(outcome=Outcome.DEAD, error="conflict"),
    410: ResponseClass(outcome=Outcome.GONE, error="gone"),
    413: ResponseClass(outcome=Outcome.DEAD, error="too_large"),
    415: ResponseClass(outcome=Outcome.DEAD, error="unsupported_media_type"),
    422: ResponseClass(outcome=Outcome.DEAD, error="unprocessable"),
}
_WITH_RETRY_AFTER = (429, 503)


def classify_response(status: int, headers: Headers, now: datetime) -> ResponseClass:
    """Return what an answer means for its delivery.

    Args:
        status: The status code of the final answer: never an interim one (1xx).
        headers: The headers of the answer.
        now: The time of the answer.
    """
    if 200 <= status < 300:
        return _DELIVERED
    if status in _TABLE:
        return _TABLE[status]
    if 300 <= status < 400:
        # Never followed: a redirect would carry token and signature to an unchecked destination.
        return ResponseClass(outcome=Outcome.RETRY, error="redirect")
    wait = retry_after(headers, now) if status in _WITH_RETRY_AFTER else None
    return ResponseClass(outcome=Outcome.RETRY, error=f"status_{status}", wait=wait)


def retry_after(headers: Headers, now: datetime) -> timedelta | None:
    """Return the wait that `Retry-After` asks for, between 1 s and 24 h; None if unreadable.

    RFC 9110 §10.2.3: whole seconds, or an HTTP date.
    """
    values = headers.all("Retry-After")
    if len(values) != 1:
        return None
    value = values[0].strip()
    if value.isascii() and value.isdigit():
        # A longer number is over the maximum: int() never parses digits without end.
        wait = _MAX_WAIT if len(value) > 9 else timedelta(seconds=int(value))
    else:
        try:
            moment = parsedate_to_datetime(value)
        except (ValueError, OverflowError):  # no date, or one outside the calendar
            return None
        wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
    return min(max(wait, _MIN_WAIT), _MAX_WAIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a destination is not attempted for a while, because it fails.

    Attributes:
        failures: How many failures in a row open the breaker.
        first_wait: The first wait; it doubles with each failed probe.
        longest_wait: The longest wait.
    """

    failures: Count = 5
    first_wait: Duration = timedelta(seconds=30)
    longest_wait: Duration = timedelta(minutes=10)

    def __post_init__(self) -> None:
        check_options(self, of="breaker: ")
        if self.first_wait > self.longest_wait:
            raise ConfigError("breaker: expected first_wait <= longest_wait")


def wait_after(policy: BreakerPolicy, failures: int) -> timedelta | None:
    """Return how long a destination waits after this many failures in a row; None for no wait."""
    if failures < policy.failures:
        return None
    doublings = min(failures - policy.failures, 20)  # far beyond the longest wait
    return min(policy.first_wait * (1 << doublings), policy.longest_wait)


def works(result: AttemptResult) -> bool | None:
    """Return whether an attempt found its destination working; None if it was not posted.

    No answer and a 5xx answer mean that it does not work. Any other answer comes from a server that
    works, even if it rejects this delivery.
    """
    if result.outcome is Outcome.LOCAL_FAULT or result.error in _NOT_POSTED:
        return None
    return result.status is not None and result.status < 500


# --- what is kept of an answer ------------------------------------------------------------------

_KEPT_BYTES: Final = 1024
_MASK: Final = b"***"
_NO_SECRETS: Final = ("User-Agent", "Accept-Encoding")
_SHORTEST_PARAMETER: Final = 8  # a shorter one would mask half of the text
# JWTs, also ones that are cut off, and the signatures of Standard Webhooks and of RFC 9421. Some
# JSON encoders write `\/` for `/`.
_SIGNATURES: Final = re.compile(
    rb"eyJ[\w.-]{16,}|\bv1a?,(?:[\w+/]|\\/){40,}=*|:(?:[\w+/]|\\/){40,}=*:"
)


class KeepAnswers(StrEnum):
    """Of which attempts the first KiB of the webhook's answer is kept."""

    NONE = "none"
    FAILED = "failed"
    ALL = "all"

    def includes(self, outcome: Outcome) -> bool:
        """Return whether the answer to an attempt with this outcome is kept."""
        if self is KeepAnswers.FAILED:
            return outcome is not Outcome.DELIVERED
        return self is KeepAnswers.ALL


def kept_answer(answer: bytes, route: Route, token: str | None) -> bytes:
    """Return the beginning of an answer to be stored.

    The secrets that were sent, the parameters of the URL, and everything that looks like a JWT or
    another signature are masked.

    Args:
        answer: The body of the answer.
        route: Where the request was sent.
        token: The token of the operator's OAuth client, if there is one.
    """
    query = route.destination.url.target.partition("?")[2]
    parameters = [each.partition("=")[2] for each in query.split("&")]
    secrets = {query, *(each for each in parameters if len(each) >= _SHORTEST_PARAMETER)}
    sent = [value for name, value in route.headers if name not in _NO_SECRETS]
    for value in (*sent, token or ""):
        secrets |= {value, value.partition(" ")[2]}  # credentials follow their scheme
    # The longest first: one may be a part of another.
    for secret in sorted(secrets - {""}, key=len, reverse=True):
        for written in (secret, secret.replace("/", r"\/")):
            answer = answer.replace(written.encode(), _MASK)
    return _SIGNATURES.sub(_MASK, answer)[:_KEPT_BYTES]
