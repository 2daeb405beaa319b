"""`open_outbox`: the sender's database, and how its schema came to be."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from pushkit.clock import utc_now
from pushkit.outbox.attempts import ATTEMPTS_MIGRATION, FOLDED_ATTEMPTS_MIGRATION
from pushkit.outbox.cancelling import CANCELLING_MIGRATION
from pushkit.outbox.idempotency import IDEMPOTENCY_MIGRATION, KEYS_MIGRATION
from pushkit.outbox.schema import (
    BODIES_MIGRATION,
    CLAIMS_MIGRATION,
    PAGES_MIGRATION,
    TRACES_MIGRATION,
)
from pushkit.outbox.schema import MIGRATION as OUTBOX_MIGRATION
from pushkit.storage.database import Database, open_location
from pushkit.subscriptions.owners import OWNERS_MIGRATION, QUOTAS_MIGRATION
from pushkit.subscriptions.store import MIGRATION as SUBSCRIPTIONS_MIGRATION
from pushkit.subscriptions.store import REVISION_MIGRATION

SENDER_MIGRATIONS = (
    SUBSCRIPTIONS_MIGRATION,
    OUTBOX_MIGRATION,
    ATTEMPTS_MIGRATION,
    IDEMPOTENCY_MIGRATION,
    OWNERS_MIGRATION,
    CLAIMS_MIGRATION,
    QUOTAS_MIGRATION,
    CANCELLING_MIGRATION,
    REVISION_MIGRATION,
    FOLDED_ATTEMPTS_MIGRATION,
    KEYS_MIGRATION,
    BODIES_MIGRATION,
    TRACES_MIGRATION,
    PAGES_MIGRATION,
)


def open_outbox(location: str | Path, *, clock: Callable[[], datetime] = utc_now) -> Database:
    """Return the sender's database at a location, not yet open.

    Raises:
        ConfigError: A DSN, and the driver is not installed.
    """
    return open_location(location, component="sender", migrations=SENDER_MIGRATIONS, clock=clock)
