"""The migrations of the receiver's tables. A released one is never changed."""

from __future__ import annotations

from pushkit.storage.migrations import Migration
from receiver.inbox.schema import MAILBOX_SCHEMA, SCHEMA

RECEIVER_MIGRATIONS = (Migration(1, SCHEMA), Migration(2, MAILBOX_SCHEMA, may_roll=True))
