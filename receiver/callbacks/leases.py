"""The leases of what a process has in hand, renewed by one heartbeat."""

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
_SURE_FOR = _LEASE / 2
_AFTER_FAULT = timedelta(seconds=1)  # until a renewal is tried again


class Leases:
    """What a worker has in hand, and since when that is surely so.

    Args:
        database: Where the inbox lives.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._inbox = Inbox()
        # By id, since when by the clock of this process that nobody sets. Who stood still for so
        # long that it claimed the same anew holds the latter.
        self._held: dict[int, tuple[ClaimedNotification, float]] = {}
        self._heart: asyncio.Task[None] | None = None

    @functools.cached_property
    def worker(self) -> str:
        """Who has it in hand: drawn once it is needed, so that processes that fork differ."""
        return f"dispatcher_{secrets.token_hex(8)}"

    def rename(self) -> None:
        """Be another worker from now on, who has nothing in hand."""
        del self.worker

    @property
    def held(self) -> tuple[int, ...]:
        """The ids of what is in hand."""
        return tuple(self._held)

    @property
    def patience(self) -> timedelta:
        """For how long what is surely in hand will be so."""
        return _SURE_FOR

    def lease(self, now: datetime, taken: float) -> Lease:
        """Return the lease of what is taken now."""
        return Lease(worker=self.worker, until=now + _LEASE, taken=taken)

    def hold(self, claimed: ClaimedNotification) -> None:
        """Keep a lease from ending."""
        self._held[claimed.stored.id] = claimed, claimed.leased_at
        if self._heart is None or self._heart.done():
            self._heart = asyncio.create_task(self._beat(), name="receiver-leases")

    def let_go(self, claimed: ClaimedNotification) -> None:
        """Renew a lease no longer."""
        if self._since(claimed) is not None:
            del self._held[claimed.stored.id]

    def is_sure(self, claimed: ClaimedNotification) -> bool:
        """Say whether nobody else can have it: if this process stood still, somebody may."""
        since = self._since(claimed)
        return since is not None and (time.perf_counter() - since <= _SURE_FOR.total_seconds())

    def _since(self, claimed: ClaimedNotification) -> float | None:
        holder, since = self._held.get(claimed.stored.id, (None, None))
        return since if holder is claimed else None

    async def close(self) -> None:
        """Renew nothing more."""
        if self._heart is not None:
            await cancelled(self._heart)

    async def _beat(self) -> None:
        pause = _LEASE / 3
        while self._held:
            await asyncio.sleep(pause.total_seconds())
            asked = time.perf_counter()
            pause = _AFTER_FAULT
            # A database out of reach must not end the renewal: the callbacks go on.
            with contextlib.suppress(StorageError):
                if self._held:
                    ours = await self._database.write(self._renew_script())
                    for each in ours & self._held.keys():
                        self._held[each] = self._held[each][0], asked
                    pause = _LEASE / 3

    def _renew_script(self) -> Script[set[int]]:
        now = yield from self._database.now()
        return (yield from self._inbox.keep_leases(self.held, self.worker, now + _LEASE))
