"""The header `traceparent`, version 00 (W3C Trace Context), which carries a trace's context."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

TRACEPARENT: Final = "traceparent"
_WRITTEN: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def read_traceparent(values: Sequence[str]) -> str | None:
    """Return the value of the header; None if there is not exactly one, or it is malformed."""
    return values[0] if len(values) == 1 and _WRITTEN.fullmatch(values[0]) else None


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the id of the trace, for logs."""
    return None if traceparent is None else traceparent[3:35]
