"""How many connections, from whom, and which one makes room for another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Protocol, TypeVar

from receiver.peers import rate_key


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What a connection may take, in each process, from the moment that it is accepted.

    Attributes:
        max_connections: How many at once. One that waits for a request makes room for a new one.
        max_connections_per_peer: How many from one address, or IPv6 /64; proxies are exempt.
        head_timeout: From a request's first byte, or the start of a connection, to the end of the
            head; and as much for the TLS handshake before it.
        keep_alive: How long a connection may wait for its next request.
        write_timeout: How long a peer may leave its answer unread.
    """

    max_connections: int = 512
    max_connections_per_peer: int = 128
    head_timeout: timedelta = timedelta(seconds=10)
    keep_alive: timedelta = timedelta(seconds=75)
    write_timeout: timedelta = timedelta(seconds=10)


class Evictable(Protocol):
    """A connection, as far as it is counted here."""

    @property
    def busy(self) -> bool:
        """Whether it has a request in work."""
        ...

    def evict(self) -> None:
        """End it at once."""
        ...


_Connection = TypeVar("_Connection", bound=Evictable)


class Connections(Generic[_Connection]):
    """The open connections, the oldest first.

    Args:
        limits: How many.
        is_proxy: Says whether an address is a trusted proxy's.
    """

    def __init__(self, limits: ConnectionLimits, is_proxy: Callable[[str], bool]) -> None:
        self._limits = limits
        self._is_proxy = is_proxy
        self._open: dict[_Connection, str] = {}
        self._per_peer: Counter[str] = Counter()
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[_Connection]:
        return iter(list(self._open))

    async def until_none(self) -> None:
        """Wait until none is open."""
        while self._open:
            self._ended.clear()
            await self._ended.wait()

    def admit(self, connection: _Connection, peer: str) -> str | None:
        """Count a new connection; return why not, if it may not be."""
        key = rate_key(peer)
        limit = self._limits.max_connections_per_peer
        if self._per_peer[key] >= limit and not self._is_proxy(peer):
            return f"more than {limit} connections of one address"
        if len(self._open) >= self._limits.max_connections:
            oldest = next((other for other in self._open if not other.busy), None)
            if oldest is None:
                return f"{len(self._open)} connections, each with a request in work"
            self.forget(oldest)
            oldest.evict()
        self._open[connection] = key
        self._per_peer[key] += 1
        return None

    def used(self, connection: _Connection) -> None:
        """Note that a connection was good for something: others make room before it."""
        key = self._open.pop(connection, None)
        if key is not None:
            self._open[connection] = key

    def forget(self, connection: _Connection) -> None:
        """Count a connection no longer."""
        key = self._open.pop(connection, None)
        if key is None:
            return
        self._ended.set()
        self._per_peer[key] -= 1
        if not self._per_peer[key]:
            del self._per_peer[key]
