"""The clock. Only the edges call it; the code below them gets the current time as an argument."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime

# Returns the current time, aware and in UTC.
utc_now: Callable[[], datetime] = functools.partial(datetime.now, UTC)
