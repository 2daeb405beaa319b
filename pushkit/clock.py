"""The one clock. Below the edges the present comes in as an argument; here it comes from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime

# Returns now, aware, in UTC.
utc_now: Callable[[], datetime] = functools.partial(datetime.now, UTC)
