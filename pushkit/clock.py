"""The clock, how long signatures and keys count, and the phases of a request, measured.

Only the edges read the clock; the code below them gets the current time as an argument. Both sides
rely on the lifetimes (wire profile §3 and §4).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from pushkit.record import record

# Returns the current time, aware and in UTC.
utc_now: Callable[[], datetime] = functools.partial(datetime.now, UTC)

TOKEN_LIFETIME: Final = timedelta(seconds=300)
"""From `iat` to `exp`."""
TOLERANCE: Final = timedelta(seconds=300)
"""How far the time of a signature may be from a receiver's, unless it is configured."""
LONGEST_TOLERANCE: Final = timedelta(days=1)
"""The most that can be configured."""
JWKS_MAX_AGE: Final = timedelta(seconds=300)
"""How long a JWK Set may be cached, unless it is configured or the answer says otherwise."""
LONGEST_JWKS_MAX_AGE: Final = timedelta(days=1)
"""The most that a sender can configure, and that a receiver takes from an answer."""


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
