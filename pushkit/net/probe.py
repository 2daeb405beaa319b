"""`Probe`: measures the phases of one request.

Each request has one. Code that opens sockets does not know the request, so it finds the probe
through a context variable.
"""

from __future__ import annotations

import time
from contextvars import ContextVar
from datetime import timedelta

from pushkit.clock import Timing
from pushkit.errors import UrlDecision


class Probe(Timing):
    """Adds up the phases of one request, one after another."""

    __slots__ = ("_phase", "_since", "refused")

    def __init__(self) -> None:
        self.resolve = self.connect = self.wait = self.body = self.address = None
        # Why an address of the request was refused; None if none was.
        self.refused: UrlDecision | None = None
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
