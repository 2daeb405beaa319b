"""Where the time of one request went, and which address was dialled for it.

A probe per request adds up its phases. It is found through a context variable: whoever opens a
socket knows of no request.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import timedelta

from pushkit.net.destination import Decision
from pushkit.record import record
from pushkit.url import host_and_port


@record(frozen=False, slots=True, kw_only=True)
class Timing:
    """The phases of one request; None is a phase that it never came to."""

    resolve: timedelta | None = None  # looking the name up
    # Dialling, TLS included; None on a connection that was open already.
    connect: timedelta | None = None
    # From the open connection to the answer's head: sending, and the webhook's own time.
    wait: timedelta | None = None
    body: timedelta | None = None  # reading the answer's body
    address: str | None = None  # the address that was dialled, as `host:port`


class Probe(Timing):
    """Adds up the phases of one request, one after another."""

    __slots__ = ("_phase", "_since", "refused")

    def __init__(self) -> None:
        super().__init__()
        # Why an address that the request led to may not be dialled; None if all may.
        self.refused: Decision | None = None
        self._phase: str | None = None
        self._since = 0.0

    def enter(self, phase: str | None) -> None:
        """End the phase that runs, and begin another, named as in `Timing`; None for no other."""
        now, ended = time.perf_counter(), self._phase
        if ended is not None:
            spent, before = timedelta(0, now - self._since), getattr(self, ended)
            setattr(self, ended, spent if before is None else before + spent)
        self._phase, self._since = phase, now

    def dialled(self, sockaddr: object) -> None:
        """Take down the address that a socket goes to."""
        if isinstance(sockaddr, tuple) and len(sockaddr) >= 2:
            self.address = host_and_port(str(sockaddr[0]), sockaddr[1])

    def timing(self) -> Timing:
        """End the phase that runs, and return what there was."""
        self.enter(None)
        return self


current_probe: ContextVar[Probe | None] = ContextVar("pushkit_probe", default=None)
