"""`Timing`: the phases of one request, measured."""

from __future__ import annotations

from datetime import timedelta

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
