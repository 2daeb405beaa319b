"""`open_outbox`: the sender's database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from pushkit.clock import utc_now
from pushkit.outbox.schema import SENDER_MIGRATIONS
from pushkit.storage.database import Database, open_location


def open_outbox(location: str | Path, *, clock: Callable[[], datetime] = utc_now) -> Database:
    """Return the sender's database at a location, not yet open.

    Raises:
        ConfigError: A DSN, and the driver is not installed.
    """
    return open_location(location, component="outbox", migrations=SENDER_MIGRATIONS, clock=clock)
