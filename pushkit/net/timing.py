"""Where the time of one request went, and which address was dialled for it.

aiohttp tells through trace events when it begins with what; a probe per request adds them up. The
probe is found through a context variable: sockets are opened by aiohttp, which knows of no request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace

import aiohttp

from pushkit.net.destination import Decision
from pushkit.url import host_and_port

__all__ = ["Probe", "TimedResponse", "Timing", "current_probe", "timing_trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The phases of one request; None is a phase that it never came to.

    Attributes:
        resolve: Looking the name up.
        connect: Dialling, TLS included; None on a connection that was open already.
        wait: From the open connection to the answer's head: sending, and the webhook's own time.
        body: Reading the answer's body.
        address: The address that was dialled, as `host:port`.
    """

    resolve: timedelta | None = None
    connect: timedelta | None = None
    wait: timedelta | None = None
    body: timedelta | None = None
    address: str | None = None


class Probe:
    """Adds up the phases of one request, one after another.

    Attributes:
        refused: Why an address that the request led to may not be dialled; None if all may.
    """

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._phase: str | None = None
        self._since = 0.0
        self._address: str | None = None
        self.refused: Decision | None = None

    def enter(self, phase: str | None) -> None:
        """End the phase that runs, and begin another, named as in `Timing`; None for no other."""
        now = time.perf_counter()
        if self._phase is not None:
            self._spent[self._phase] = self._spent.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    def dialled(self, sockaddr: object) -> None:
        """Take down the address that a socket goes to."""
        if isinstance(sockaddr, tuple) and len(sockaddr) >= 2:
            self._address = host_and_port(str(sockaddr[0]), sockaddr[1])

    def timing(self) -> Timing:
        """End the phase that runs, and return what there was."""
        self.enter(None)
        spent = {phase: timedelta(seconds=seconds) for phase, seconds in self._spent.items()}
        return Timing(**spent, address=self._address)


current_probe: ContextVar[Probe | None] = ContextVar("pushkit_probe", default=None)


class TimedResponse(aiohttp.ClientResponse):
    """An answer that tells its probe who is at the other end, a reused connection's peer too."""

    async def start(self, connection: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        """Read the head of the answer."""
        probe, transport = current_probe.get(), connection.transport
        if probe is not None and transport is not None:
            probe.dialled(transport.get_extra_info("peername"))
        return await super().start(connection)


def timing_trace() -> aiohttp.TraceConfig:
    """Return the trace events that move a probe from phase to phase."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_create_start.append(_entering("connect"))
    trace.on_dns_resolvehost_start.append(_entering("resolve"))
    trace.on_dns_resolvehost_end.append(_entering("connect"))
    trace.on_connection_create_end.append(_entering("wait"))
    trace.on_connection_reuseconn.append(_entering("wait"))
    return trace


def _entering(
    phase: str,
) -> Callable[[aiohttp.ClientSession, SimpleNamespace, object], Coroutine[None, None, None]]:
    async def enter(
        _session: aiohttp.ClientSession, _context: SimpleNamespace, _params: object
    ) -> None:
        probe = current_probe.get()
        if probe is not None:
            probe.enter(phase)

    return enter
