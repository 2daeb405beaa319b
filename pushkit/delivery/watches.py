"""The tasks that a gateway watches, over the sender's database: `PushSender.watches()`."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pushkit.errors import SealedSecretError
from pushkit.outbox import watches
from pushkit.outbox.watches import WatchRow
from pushkit.secrets.vault import WATCHER, Vault
from pushkit.storage.database import Database
from pushkit.storage.script import Script, to_micros

LEASE: Final = timedelta(seconds=15)
"""How long after the death of a gateway another takes its tasks."""


class Watches:
    """The watched tasks, for one gateway, which holds those that it watches.

    Raises:
        StorageError: By every method: the database refused, or is out of reach.
    """

    def __init__(self, database: Database, vault: Vault) -> None:
        self._database = database
        self._vault = vault
        self.holder: Final = secrets.token_hex(8)

    @property
    def seals(self) -> bool:
        """Whether callers' credentials are encrypted, and so may be stored."""
        return self._vault.seals

    async def add(self, row: WatchRow, *, hold: bool) -> bool:
        """Add a task, whose credentials are plain; return whether it is new.

        Args:
            row: The task; `created_at` is set here.
            hold: Whether this gateway watches it from now on; otherwise it is due, for all.
        """
        stored = row.credentials if self._vault.seals else None
        belongs_to = (row.tenant, row.task_id)
        sealed = self._vault.seal_text(WATCHER, stored, belongs_to)
        return await self._database.write(self._add(replace(row, credentials=sealed), hold))

    def _add(self, row: WatchRow, hold: bool) -> Script[bool]:
        now = yield from self._database.now()
        due_at = to_micros(now + LEASE if hold else now)
        row = replace(row, created_at=to_micros(now))
        return (yield from watches.add(row, self.holder if hold else None, due_at=due_at))

    async def claim(self, limit: int) -> list[WatchRow]:
        """Lease tasks that nobody watches; their credentials are opened, None if they cannot be."""
        return [self._opened(row) for row in await self._database.write(self._claim(limit))]

    def _claim(self, limit: int) -> Script[list[WatchRow]]:
        now = yield from self._database.now()
        until = to_micros(now + LEASE)
        return (yield from watches.claim(self.holder, now=to_micros(now), until=until, limit=limit))

    def _opened(self, row: WatchRow) -> WatchRow:
        belongs_to = (row.tenant, row.task_id)
        try:
            opened = self._vault.open_text(WATCHER, row.task_id, row.credentials, belongs_to)
        except SealedSecretError:
            opened = None  # the agent refuses without it, and that is logged
        return replace(row, credentials=opened)

    async def renew(self) -> set[tuple[str, str]]:
        """Extend this gateway's leases; return the tasks (tenant, id) that it still holds."""
        return await self._database.write(self._renew())

    def _renew(self) -> Script[set[tuple[str, str]]]:
        now = yield from self._database.now()
        return (yield from watches.renew(self.holder, to_micros(now + LEASE)))

    async def set_told(self, tenant: str, task_id: str, *, told: str, view: str) -> bool:
        """Note what was told of a task; return False if another gateway holds it."""
        return await self._database.write(
            watches.set_told(tenant, task_id, self.holder, told=told, view=view)
        )

    async def give_back(self, tenant: str, task_id: str) -> None:
        """Let a gateway take a task that this one holds, after a lease's time."""
        await self._database.write(self._give_back(tenant, task_id))

    def _give_back(self, tenant: str, task_id: str) -> Script[None]:
        due_at = (yield from self._database.now()) + LEASE
        yield from watches.give_back(tenant, task_id, self.holder, to_micros(due_at))

    async def remove(self, tenant: str, task_id: str) -> None:
        """Forget a task that this gateway holds."""
        await self._database.write(watches.remove(tenant, task_id, self.holder))

    async def release(self) -> None:
        """Let other gateways take this one's tasks at once."""
        await self._database.write(self._release())

    def _release(self) -> Script[None]:
        now = to_micros((yield from self._database.now()))
        yield from watches.release(self.holder, now)

    async def count(self) -> int:
        """Return how many tasks are watched, by all gateways."""
        return await self._database.read(watches.counted())
