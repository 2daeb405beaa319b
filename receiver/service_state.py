"""`ServiceState`: the limits and rates of a service, and its caches of tokens and accepted ids."""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from pushkit.errors import InboundError
from pushkit.peers import rate_key
from pushkit.webhook import Headers
from receiver.limits import Limits, RateLimit
from receiver.notification import Accepted, Remembered
from receiver.refusals import REFUSALS
from receiver.request import BrokenBodyError, HeadersTooLargeError, Request
from receiver.senders import TrustedSender
from receiver.signatures import SignedClaims
from receiver.steps import Step, Trail
from receiver.tokens import HandedOut, Presented

_MAX_KEYS = 10_000
_MAX_REMEMBERED = 10_000
_RECENT = timedelta(minutes=10)
_CONTENT_TYPES = frozenset({"application/json", "application/a2a+json", ""})
_DIGITS = re.compile(r"[0-9]+")
_LONGEST_LENGTH = 18  # digits: far above any limit, and cheap to parse


class RateLimitedError(InboundError, code="rate_limited", status=REFUSALS["rate_limited"].status):
    """More requests than the limit allows; `retry_after` says when to retry."""

    def __init__(self, setting: str, limit: RateLimit, retry_after: timedelta) -> None:
        seconds = retry_after.total_seconds()
        super().__init__(
            f"over {setting}, {limit.per_second:g} a second, for another {seconds:.0f} s"
        )
        self.retry_after = retry_after


class BodyTooLargeError(
    InboundError, code="body_too_large", status=REFUSALS["body_too_large"].status
):
    """The body is longer than the limit."""


class BodyTimeoutError(InboundError, code="body_timeout", status=REFUSALS["body_timeout"].status):
    """The body did not arrive in time."""


class IncompleteBodyError(
    InboundError, code="incomplete_body", status=REFUSALS["incomplete_body"].status
):
    """The body broke off."""


class MediaTypeError(
    InboundError, code="unsupported_media_type", status=REFUSALS["unsupported_media_type"].status
):
    """The content type or coding is not one of a notification."""


def body_too_large(found: str, limit: int, sender: TrustedSender | None) -> BodyTooLargeError:
    """Return the refusal of a body; it says whether the limit is the sender's or the receiver's."""
    is_own = sender is not None and sender.max_body_bytes == limit
    whose = f"sender {sender.name}" if is_own and sender else "the receiver"
    return BodyTooLargeError(
        f"a body of {found}, expected at most {limit}: max_body_bytes of {whose}"
    )


async def read_in_time(request: Request, limit: int, within: timedelta) -> bytes | None:
    """Return a body that did not come with the head; None if it is longer than the limit.

    Raises:
        BodyTimeoutError: It is not whole in time.
        IncompleteBodyError: It broke off.
    """
    seconds = within.total_seconds()
    try:
        async with asyncio.timeout(seconds):
            return await request.read(limit)
    except TimeoutError as exc:
        raise BodyTimeoutError(f"not whole within {seconds:g} s") from exc
    except BrokenBodyError as exc:
        raise IncompleteBodyError("the peer disconnected, or its framing is broken") from exc


class ServiceState:
    """The limits and rates of a service, and its caches of tokens and accepted ids."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], datetime],
        *,
        ids_kept: timedelta,  # how long they are remembered in the database
        # Returns the sender's registrations that fit the secrets of a request, from the database.
        registered: Callable[[TrustedSender, Presented], Awaitable[Sequence[HandedOut]]],
    ) -> None:
        self.limits = limits
        self._clock = clock
        self._peers = RateLimiter("peer_rate", limits.peer_rate)
        self._senders = RateLimiter("sender_rate", limits.sender_rate)
        self._own_rates: dict[tuple[str, RateLimit], RateLimiter] = {}
        self._registered_in_database = registered
        self._registered: dict[tuple[str, Presented], Sequence[HandedOut]] = {}
        # By sender and id: when a notification was accepted, and all that a retry of it needs.
        self._recent: dict[tuple[str, str], tuple[datetime, Remembered]] = {}
        self._recent_for = min(_RECENT, ids_kept / 2)

    # --- step 1, and the rate of step 6 --------------------------------------------------------

    def count_peer(self, peer: str, now: datetime) -> None:
        """Count one request of an address.

        Raises:
            RateLimitedError: It is over its rate.
        """
        self._peers.take(rate_key(peer), now)

    def count_sender(self, sender: TrustedSender, trail: Trail) -> None:
        """Count one notification of a sender.

        Raises:
            RateLimitedError: It is over its rate.
        """
        trail.begun.append(Step.RATE)
        rates = self._senders
        if sender.rate is not None:
            key = sender.name, sender.rate
            named = f"the rate of sender {sender.name}"
            rates = self._own_rates.setdefault(key, RateLimiter(named, sender.rate))
        rates.take(sender.name, self._clock())

    def check_head(self, request: Request) -> None:
        """Check the head against the rules that are the same for all senders.

        Raises:
            InboundError: Head or declared body too long, or a wrong content type or coding.
        """
        headers, limits = request.headers, self.limits
        size = headers.size()
        if size > limits.max_header_bytes:
            raise HeadersTooLargeError(f"{size} bytes of headers")
        declared = _declared_length(headers) if request.body is None else len(request.body)
        if declared > limits.max_body_bytes:
            raise body_too_large(f"{declared} bytes", limits.max_body_bytes, None)
        media_type = headers.one("Content-Type") or ""
        if (
            media_type not in _CONTENT_TYPES
            and media_type.partition(";")[0].strip().lower() not in _CONTENT_TYPES
        ):
            raise MediaTypeError("expected application/json or application/a2a+json")
        # RFC 9110 §8.4: the signature covers the bytes as sent; a coding also permits a zip bomb.
        coding = headers.one("Content-Encoding")
        if coding and coding.lower() != "identity":
            raise MediaTypeError("the body is compressed, expected Content-Encoding identity")

    # --- caches ---------------------------------------------------------------------------------

    async def registered(self, sender: TrustedSender, secrets: Presented) -> Sequence[HandedOut]:
        """Return the sender's registrations that fit the secrets of a request.

        They are cached: a registration's token and credentials never change, and step 8 checks in
        the storing transaction whether it is still good.

        Raises:
            StorageError: They could not be read.
        """
        if not secrets.asks_for_registrations:
            return ()
        registered = self._registered.get((sender.name, secrets))
        if registered is None:
            registered = await self._registered_in_database(sender, secrets)
            if registered:
                _put(self._registered, (sender.name, secrets), registered)
        return registered

    def accepted_before(
        self, claims: SignedClaims, delivery_id: str | None, body_sha256: str, now: datetime
    ) -> Remembered | None:
        """Return what was said under this id and body if this process stored it recently.

        The memory of ids still has it then. An id with another body is left to the transaction.
        """
        if delivery_id is None:
            return None
        found = self._recent.get((claims.sender.name, delivery_id))
        if found is None or found[1].body_sha256 != body_sha256:
            return None
        if not timedelta(0) <= now - found[0] < self._recent_for:
            return None
        said, jwt = found[1], claims.jwt
        # The body is not read again, so its task is compared with the signed one here.
        is_same = jwt is None or not said.task_in_body or jwt.task_id in (None, said.task_in_body)
        return said if is_same else None

    def remember_accepted(self, accepted: Accepted, now: datetime) -> None:
        """Cache a notification that was stored, by its sender and id, if it has one."""
        if accepted.delivery_id is not None:
            _put(self._recent, (accepted.sender.name, accepted.delivery_id), (now, accepted.said))


class RateLimiter:
    """A token bucket per key; the keys that were idle longest are dropped for new ones."""

    def __init__(self, setting: str, limit: RateLimit) -> None:
        self._setting, self._limit = setting, limit  # the setting's name is for the log
        self._buckets: OrderedDict[str, tuple[float, datetime]] = OrderedDict()

    def take(self, key: str, now: datetime) -> None:
        """Count one request.

        Raises:
            RateLimitedError: The bucket of this key is empty.
        """
        buckets, limit = self._buckets, self._limit
        tokens, since = buckets.pop(key, (limit.burst, now))
        if now > since:
            tokens += (now - since).total_seconds() * limit.per_second
            tokens = min(tokens, limit.burst)
        buckets[key] = (tokens - 1 if tokens >= 1 else tokens, now)
        if len(buckets) > _MAX_KEYS:
            buckets.popitem(last=False)
        if tokens < 1:
            wait = timedelta(seconds=max((1 - tokens) / limit.per_second, 1))
            raise RateLimitedError(self._setting, limit, wait)


def _put(into: dict[Any, Any], key: object, value: object) -> None:
    """Cache a value; drop the oldest one if the cache is full."""
    if len(into) >= _MAX_REMEMBERED:
        del into[next(iter(into))]
    into[key] = value


def _declared_length(headers: Headers) -> int:
    # The server has refused contradicting lengths; this check only avoids reading the body.
    declared = [value for value in headers.all("Content-Length") if _DIGITS.fullmatch(value)]
    return max((int(value[:_LONGEST_LENGTH]) for value in declared), default=0)
