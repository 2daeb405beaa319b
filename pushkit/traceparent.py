"""`traceparent`, version 00 (W3C Trace Context): the one header that carries a trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

TRACEPARENT: Final = "traceparent"
_WRITTEN: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def read_traceparent(values: Sequence[str]) -> str | None:
    """Return the one value of the header; None if there are several, or it is none."""
    return values[0] if len(values) == 1 and _WRITTEN.fullmatch(values[0]) else None


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the trace's id, for logs."""
    return None if traceparent is None else traceparent[3:35]
