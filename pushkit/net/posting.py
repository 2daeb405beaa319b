"""What clients are told of how to connect, and what comes of a request."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from pushkit.net.addresses import address_is_own
from pushkit.net.timing import Timing
from pushkit.record import record
from pushkit.webhook import Headers

if TYPE_CHECKING:
    from pushkit.net.guard import Resolver

MAX_ANSWER_BYTES: Final = 64 * 1024


@record(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a destination answered."""

    status: int
    headers: Headers
    body: bytes = field(repr=False)  # up to 64 KiB, or what was asked for
    # False if the body was longer, or broke off, or did not end within the timeout. The status
    # stands all the same: a 2xx was an acknowledgement when its head arrived.
    complete: bool = True
    timing: Timing = field(default_factory=Timing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How a client connects."""

    most: int = 256  # how many connections at once, over all destinations
    most_per_host: int = 16  # how many to one host and port
    # Who looks names up; the system's name servers if None.
    resolver: Resolver | None = None
    # An egress proxy, as `http://[user:password@]host:port`. Destinations that the operator named
    # are dialled without it.
    proxy: str | None = field(default=None, repr=False)
    ca_file: Path | None = None  # roots in PEM that are trusted beside the system's
    is_own: Callable[[str], bool] = address_is_own  # says whether an address is this machine's own


class Closable(Protocol):
    """What holds connections."""

    def close(self) -> Awaitable[None]:
        """Close them."""
        ...


_C = TypeVar("_C", bound=Closable)


@contextlib.asynccontextmanager
async def closing(client: _C) -> AsyncIterator[_C]:
    """Yield what holds connections, and close it in the end."""
    try:
        yield client
    finally:
        await client.close()
