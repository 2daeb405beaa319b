"""Replay: every id that was accepted is remembered, apart from the inbox and its purges.

The memory outlasts the sender's last automatic retry (90 h): 96 h by default.
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
    """An id that was accepted before, with another body."""


class BeingStoredError(InboundError, code="being_stored", status=503):
    """A copy that is being stored right now: what becomes of it decides over this one."""

    retry_after: timedelta = timedelta(seconds=1)


class Replay(StrEnum):
    """What the memory says of an id."""

    FRESH = "fresh"
    DUPLICATE = "duplicate"
    """Accepted before, with the same body: a retry."""


class Seen(NamedTuple):
    """What arrived: whose id, and the body that came with it."""

    sender: str
    delivery_id: str
    body_sha256: str
    holder: str = ""  # who may store it, once it is reserved for a while


class ReplayMemory(Protocol):
    """Remembers ids: `reserve`, then `remember` in the transaction that stores, then `commit`.

    The database and Redis stand behind it. Wherever it lives, the inbox keeps sender and id unique
    besides: a memory that is lost costs no second callback while the notification is still there.
    """

    is_elsewhere: bool
    """Whether `reserve` asks somebody: else what is fresh is said by the transaction alone."""

    async def open(self) -> None:
        """Ask whether it can be reached.

        Raises:
            StorageError: It cannot.
        """

    async def close(self) -> None:
        """Disconnect."""

    async def reserve(self, seen: Seen) -> Seen | None:
        """Reserve an id that is fresh, as far as can be said now; None for a duplicate.

        Raises:
            ConflictError: It was accepted with another body.
            BeingStoredError: A copy is being stored.
            StorageError: The memory is out of reach.
        """

    def remember(
        self, reserved: Sequence[Seen], now: datetime
    ) -> Script[list[Replay | InboundError]]:
        """Remember ids, each once, in the transaction that stores their notifications.

        Returns:
            Of each, in order: whether it is fresh, and remembered now; or a duplicate; or why it is
            refused, for it was accepted with another body, or nothing can be said of it yet.
        """

    def unremember(self, reserved: Sequence[Seen]) -> Script[None]:
        """Take back, in the same transaction, what is refused after all."""

    async def commit(self, reserved: Seen) -> None:
        """Remember for good what is stored now."""

    async def release(self, reserved: Seen) -> None:
        """Give up the right: nothing was stored, and the next copy may be."""

    def forget(self, now: datetime, *, limit: int = 1000) -> Script[int]:
        """Forget ids past the memory, a bounded number at a time; return how many."""
