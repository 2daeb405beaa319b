"""The one clock. Below the edges the present comes in as an argument; here it comes from."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return now, aware, in UTC."""
    return datetime.now(UTC)
