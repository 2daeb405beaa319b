"""Limits of a receiver: sizes, rates, backlogs and connections."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pushkit.arguments import check_count, check_duration, check_types
from pushkit.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A rate of requests: on average per second, and at once."""

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        check_types(self, {"per_second": int | float, "burst": int}, of="rate limit: ")
        if not self.per_second > 0 or self.burst < 1:
            raise ConfigError("rate limit: expected per_second above 0 and burst of at least 1")


# Above what one process can verify: a busy agent is never limited, a flood is cut to that.
_RATE = RateLimit(per_second=4000, burst=8000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of steps 1, 6 and 9 of the verification.

    Attributes:
        max_body_bytes: The largest body.
        max_header_bytes: The largest header section.
        request_timeout: The deadline for reading one request.
        peer_rate: Per peer address, before the signature is verified.
        sender_rate: Per sender, after the signature is verified: a stranger cannot use it up.
        max_backlog: How many notifications may be unfinished in the inbox; above it, 503.
        max_backlog_per_sender: The same for the notifications of one sender; above it, 429.
    """

    max_body_bytes: int = 1024 * 1024
    max_header_bytes: int = 16 * 1024
    request_timeout: timedelta = timedelta(seconds=10)
    peer_rate: RateLimit = _RATE
    sender_rate: RateLimit = _RATE
    max_backlog: int = 500_000
    max_backlog_per_sender: int = 100_000

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "max_header_bytes", "max_backlog", "max_backlog_per_sender"):
            check_count(f"limits: {name}", getattr(self, name))
        check_duration("limits: request_timeout", self.request_timeout)
        check_types(self, {"peer_rate": RateLimit, "sender_rate": RateLimit}, of="limits: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of connections, in each process.

    Attributes:
        max_connections: How many at once. An idle one is closed for a new one.
        max_connections_per_peer: The same for one address, or IPv6 /64; proxies are exempt.
        head_timeout: From a request's first byte, or the start of a connection, to the end of the
            head; the TLS handshake before it has the same time.
        keep_alive: How long a connection may wait for its next request.
        write_timeout: How long a peer may leave its answer unread.
    """

    max_connections: int = 512
    max_connections_per_peer: int = 128
    head_timeout: timedelta = timedelta(seconds=10)
    keep_alive: timedelta = timedelta(seconds=75)
    write_timeout: timedelta = timedelta(seconds=10)
