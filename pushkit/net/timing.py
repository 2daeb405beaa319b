"""The phases of one request, measured, and the address that was dialled for it.

Each request has a probe. Code that opens sockets does not know the request, so it finds the probe
through a context variable.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import timedelta

from pushkit.net.destination import Decision
from pushkit.record import record


@record(frozen=False, slots=True, kw_only=True)
class Timing:
    """The phases of one request; None is a phase that it did not reach."""

    resolve: timedelta | None = None  # the lookup of the name
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
        self.resolve = self.connect = self.wait = self.body = self.address = None
        # Why an address of the request was refused; None if none was.
        self.refused: Decision | None = None
        self._phase: str | None = None
        self._since = 0.0

    def enter(self, phase: str | None) -> None:
        """End the current phase, and begin another, named as in `Timing`; None begins none."""
        now, ended = time.perf_counter(), self._phase
        if ended is not None:
            spent, before = timedelta(0, now - self._since), getattr(self, ended)
            setattr(self, ended, spent if before is None else before + spent)
        self._phase, self._since = phase, now

    def timing(self) -> Timing:
        """End the current phase, and return all."""
        self.enter(None)
        return self


current_probe: ContextVar[Probe | None] = ContextVar("pushkit_probe", default=None)
