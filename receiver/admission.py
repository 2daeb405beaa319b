"""Step 1 (wire profile §4): addresses, sizes and media type, before a body is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pushkit.errors import ConfigError, InboundError
from pushkit.webhook import Headers
from receiver.limits import RateLimit, RateLimiter
from receiver.peers import rate_key
from receiver.trust import TrustedSender
from receiver.verdicts import Refusals, Verdict

__all__ = ["Admission", "Limits"]

_CONTENT_TYPES = frozenset({"application/json", "application/a2a+json", ""})
# About what one process can verify: a flood is cut, a busy agent is not.
_PEER_RATE = RateLimit(per_second=1000, burst=2000)
_SENDER_RATE = RateLimit(per_second=1000, burst=2000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What steps 1, 6 and 9 allow.

    Attributes:
        max_body_bytes: The largest body.
        max_header_bytes: The largest header section.
        request_timeout: The deadline for reading one request.
        peer_rate: Per peer address, before the signature: strangers.
        sender_rate: Per sender, after the signature: a stranger cannot use up its share.
        max_backlog: How many notifications may be unfinished in the inbox: then 503.
        max_backlog_per_sender: How many of one sender: then it gets 429.
    """

    max_body_bytes: int = 1024 * 1024
    max_header_bytes: int = 16 * 1024
    request_timeout: timedelta = timedelta(seconds=10)
    peer_rate: RateLimit = _PEER_RATE
    sender_rate: RateLimit = _SENDER_RATE
    max_backlog: int = 500_000
    max_backlog_per_sender: int = 100_000

    def __post_init__(self) -> None:
        if self.max_backlog < 1 or self.max_backlog_per_sender < 1:
            raise ConfigError("limits: expected backlogs of at least 1")


class _BodyTooLargeError(InboundError, code="body_too_large", status=413):
    """The body is longer than the limit."""


class _BodyTimeoutError(InboundError, code="body_timeout", status=408):
    """The body did not come in time."""


class _IncompleteBodyError(InboundError, code="incomplete_body"):
    """The body broke off."""


class _HeadersTooLargeError(InboundError, code="headers_too_large", status=431):
    """The header section is longer than the limit."""


class _MediaTypeError(InboundError, code="unsupported_media_type", status=415):
    """The content type is none of a notification."""


class Admission:
    """Admits requests by their head, and says what is wrong with a body that does not come whole.

    Args:
        limits: Sizes and rates.
        clock: Returns now, aware, in UTC.
        refusals: Logs them.
    """

    def __init__(self, limits: Limits, clock: Callable[[], datetime], refusals: Refusals) -> None:
        self._limits = limits
        self._refusals = refusals
        self._clock = clock
        self._peers = RateLimiter(limits.peer_rate)

    def admit(self, headers: Headers, declared_length: int | None, *, peer: str) -> Verdict | None:
        """Do step 1 before the body is read; None to go on."""
        limited = self.admit_peer(peer)
        if limited is not None:
            return limited
        try:
            self._check_head(headers, declared_length)
        except InboundError as exc:
            return self._refusals.verdict(exc, peer=peer)
        return None

    def admit_peer(self, peer: str) -> Verdict | None:
        """Count one request of an address; None to go on."""
        try:
            self._peers.take(rate_key(peer), self._clock())
        except InboundError as exc:
            return self._refusals.verdict(exc, peer=peer)
        return None

    def body_too_slow(self, *, peer: str, sender: str) -> Verdict:
        """Return the verdict on a body that was not there at the deadline."""
        limit = self._limits.request_timeout.total_seconds()
        return self._of_body(_BodyTimeoutError(f"not whole within {limit:g} s"), peer, sender)

    def body_broken(self, *, peer: str, sender: str) -> Verdict:
        """Return the verdict on a body that ended early: nobody to answer, no fault here."""
        error = _IncompleteBodyError("the peer went away, or its framing is broken")
        return self._of_body(error, peer, sender)

    def body_too_large(self, sender: TrustedSender, *, peer: str) -> Verdict:
        """Return the verdict on a body that turned out to be over its sender's limit."""
        return self._of_body(_too_large("more", *self._limit(sender)), peer, sender.name)

    def check_body_size(self, size: int, sender: TrustedSender) -> None:
        """Refuse a body over its sender's limit.

        Raises:
            InboundError: It is.
        """
        limit, whose = self._limit(sender)
        if size > limit:
            raise _too_large(f"{size} bytes", limit, whose)

    def max_body_bytes(self, sender: TrustedSender) -> int:
        """Return how much of a body a sender may send."""
        return self._limit(sender)[0]

    def _limit(self, sender: TrustedSender) -> tuple[int, str]:
        own, common = sender.max_body_bytes, self._limits.max_body_bytes
        if own is not None and own < common:
            return own, f"max_body_bytes of sender {sender.name}"
        return common, "max_body_bytes of the receiver"

    def _of_body(self, error: InboundError, peer: str, sender: str) -> Verdict:
        return self._refusals.verdict(error, peer=peer, proven={"sender": sender})

    def _check_head(self, headers: Headers, declared_length: int | None) -> None:
        """Step 1: sizes and media type, from the head alone."""
        size = headers.size()
        if size > self._limits.max_header_bytes:
            raise _HeadersTooLargeError(f"{size} bytes of headers")
        limit = self._limits.max_body_bytes
        if declared_length is not None and declared_length > limit:
            raise _too_large(f"{declared_length} bytes", limit, "max_body_bytes of the receiver")
        media_type = (headers.one("Content-Type") or "").partition(";")[0].strip().lower()
        if media_type not in _CONTENT_TYPES:
            raise _MediaTypeError("expected application/json or application/a2a+json")
        # RFC 9110 §8.4: what is signed is what is sent; a coding would also let a bomb in.
        if (headers.one("Content-Encoding") or "identity").lower() != "identity":
            raise _MediaTypeError("the body is compressed, expected Content-Encoding identity")


def _too_large(found: str, limit: int, whose: str) -> _BodyTooLargeError:
    return _BodyTooLargeError(f"a body of {found}, expected at most {limit}: {whose}")
