"""The migrations of the sender's tables. A released one is never changed."""

from __future__ import annotations

from pushkit.outbox.schema import SCHEMA
from pushkit.storage.migrations import Migration

SENDER_MIGRATIONS = (Migration(1, SCHEMA),)
