"""Limits of a receiver: sizes, rates, backlogs and connections."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pushkit.options import Bounds, Count, Duration, check_options


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A rate of requests: on average per second, and at once."""

    per_second: Annotated[float, Bounds(above=0)]
    burst: Count

    def __post_init__(self) -> None:
        check_options(self, of="rate limit: ")


# Above what one process can verify: a busy agent is never limited, a flood is cut to that.
_RATE = RateLimit(per_second=4000, burst=8000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of steps 1, 6 and 9 of the verification.

    Attributes:
        max_body_bytes: The largest body.
        max_header_bytes: The largest header section.
        request_timeout: The deadline for reading one request; in `receiver serve` one for its head,
            and one for its body.
        peer_rate: Requests of one address, before the signature is verified.
        sender_rate: Notifications of one sender, after its signature is verified: a stranger cannot
            use it up.
        max_backlog: How many notifications may be unfinished in the inbox; above it, 503.
        max_backlog_per_sender: The same for the notifications of one sender; above it, 429.
    """

    max_body_bytes: Count = 1024 * 1024
    max_header_bytes: Count = 16 * 1024
    request_timeout: Duration = timedelta(seconds=10)
    peer_rate: RateLimit = _RATE
    sender_rate: RateLimit = _RATE
    max_backlog: Count = 500_000
    max_backlog_per_sender: Count = 100_000

    def __post_init__(self) -> None:
        check_options(self, of="limits: ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of connections, in each process.

    Attributes:
        max_connections: How many at once, in each process. An idle one is closed for a new one.
        max_connections_per_peer: The same for one address, or IPv6 /64; proxies are exempt.
        head_timeout: From a request's first byte, or the start of a connection, to the end of the
            head; the TLS handshake before it has the same time.
        keep_alive: How long a connection may wait for its next request.
        write_timeout: How long a peer may leave its answer unread.
        stop_timeout: How long requests in progress may take at shutdown.
    """

    max_connections: Count = 512
    max_connections_per_peer: Count = 128
    head_timeout: Duration = timedelta(seconds=10)
    keep_alive: Duration = timedelta(seconds=75)
    write_timeout: Duration = timedelta(seconds=10)
    stop_timeout: Duration = timedelta(seconds=20)
