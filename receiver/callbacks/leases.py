"""The leases of the notifications that a process calls back, renewed by one heartbeat."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import time
from datetime import datetime, timedelta

from pushkit.errors import StorageError
from pushkit.scheduling.pump import cancelled
from pushkit.storage.database import Database
from pushkit.storage.script import Script
from receiver.inbox.model import ClaimedNotification, Lease
from receiver.inbox.store import Inbox

_LEASE = timedelta(seconds=60)
SURE_FOR = _LEASE / 2
"""How long a lease is certain to last after it was renewed."""
_SURE_SECONDS = SURE_FOR.total_seconds()
_NOBODY = None, 0.0
_AFTER_FAULT = timedelta(seconds=1)  # until a renewal is tried again


class Leases:
    """The notifications that a worker holds, and when each lease was last known to be good."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._inbox = Inbox()
        # By id, with the monotonic time of its claim or last renewal. A process that was suspended
        # until a lease ended may claim the notification again: that claim replaces the first.
        self._held: dict[int, tuple[ClaimedNotification, float]] = {}
        self._heart: asyncio.Task[None] | None = None

    @functools.cached_property
    def worker(self) -> str:
        """The worker's name in the inbox: drawn on first use, so that forked processes differ."""
        return f"dispatcher_{secrets.token_hex(8)}"

    def rename(self) -> None:
        """Continue as another worker, which holds nothing."""
        del self.worker

    @property
    def held(self) -> tuple[int, ...]:
        """The ids of the notifications that are held."""
        return tuple(self._held)

    def lease(self, now: datetime, taken: float) -> Lease:
        """Return a lease that begins at this moment.

        Args:
            now: The current time, by the database's clock.
            taken: When that time was read, by this process's monotonic clock, in seconds.
        """
        return Lease(worker=self.worker, until=now + _LEASE, taken=taken)

    def hold(self, claimed: ClaimedNotification) -> None:
        """Renew a notification's lease from now on."""
        self._held[claimed.stored.id] = claimed, claimed.leased_at
        if self._heart is None or self._heart.done():
            self._heart = asyncio.create_task(self._beat(), name="receiver-leases")

    def release(self, claimed: ClaimedNotification) -> None:
        """Renew a notification's lease no longer."""
        if self._held.get(claimed.stored.id, _NOBODY)[0] is claimed:
            del self._held[claimed.stored.id]

    def is_sure(self, claimed: ClaimedNotification) -> bool:
        """Return whether no other worker can have it; after a suspension, one may."""
        holder, since = self._held.get(claimed.stored.id, _NOBODY)
        return holder is claimed and time.perf_counter() - since <= _SURE_SECONDS

    async def close(self) -> None:
        """Stop the heartbeat."""
        if self._heart is not None:
            await cancelled(self._heart)

    async def _beat(self) -> None:
        pause = _LEASE / 3
        while self._held:
            await asyncio.sleep(pause.total_seconds())
            asked = time.perf_counter()
            pause = _AFTER_FAULT
            # The heartbeat outlives an outage of the database: the callbacks continue.
            with contextlib.suppress(StorageError):
                if self._held:
                    ours = await self._database.write(self._renew_script())
                    for each in ours & self._held.keys():
                        self._held[each] = self._held[each][0], asked
                    pause = _LEASE / 3

    def _renew_script(self) -> Script[set[int]]:
        now = yield from self._database.now()
        return (yield from self._inbox.keep_leases(self.held, self.worker, now + _LEASE))
