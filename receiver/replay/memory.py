"""`ReplayMemory`: remembers every accepted id, independently of the inbox and its purges.

Ids are remembered for longer than a sender retries by itself (90 h): 96 h by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Protocol

from pushkit.errors import InboundError
from pushkit.storage.script import Script

MEMORY = timedelta(hours=96)


class ConflictError(InboundError, code="id_conflict", status=409):
    """The id was accepted before with another body."""


class BeingStoredError(InboundError, code="being_stored", status=503):
    """A copy with this id is being stored: its result decides about this one."""

    retry_after: timedelta = timedelta(seconds=1)


class Replay(StrEnum):
    """The state of an id in the memory."""

    FRESH = "fresh"
    DUPLICATE = "duplicate"
    """Accepted before, with the same body: a retry."""


class Seen(NamedTuple):
    """The id of a notification that arrived, with its sender and body hash."""

    sender: str
    delivery_id: str
    body_sha256: str
    holder: str = ""  # of the reservation, if the memory makes one


class ReplayMemory(Protocol):
    """Remembers ids: `reserve`, then `remember` in the transaction that stores, then `commit`.

    It lives in the database or in Redis. The inbox keeps sender and id unique, too: if the memory
    is lost, there is no second callback while the notification is in the inbox.
    """

    is_external: bool
    """Whether it is outside of the database, so that `reserve` waits for an answer."""

    async def open(self) -> None:
        """Check that it can be reached.

        Raises:
            StorageError: It cannot.
        """

    async def close(self) -> None:
        """Disconnect."""

    async def reserve(self, seen: Seen) -> Seen | None:
        """Reserve an id if it seems fresh; None for a duplicate.

        Raises:
            ConflictError: It was accepted with another body.
            BeingStoredError: A copy is being stored.
            StorageError: The memory cannot be reached.
        """

    def remember(
        self, reserved: Sequence[Seen], now: datetime
    ) -> Script[list[Replay | InboundError]]:
        """Remember ids in the transaction that stores their notifications.

        Returns:
            For each, in order: that it is fresh, and remembered now; that it is a duplicate; or the
            refusal, if it was accepted with another body or a copy is being stored.
        """

    def unremember(self, reserved: Sequence[Seen]) -> Script[None]:
        """Delete the ids of notifications that are refused in the same transaction."""

    async def commit(self, reserved: Seen) -> None:
        """Remember an id for good: its notification is committed."""

    async def release(self, reserved: Seen) -> None:
        """Give up a reservation: nothing was stored, so the next copy may be."""
