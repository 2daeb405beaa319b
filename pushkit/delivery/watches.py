"""The tasks that gateways watch, over the sender's database: `PushSender.watches()`.

A row says how to ask the agent for its task, and what its webhooks were told last, so that another
gateway goes on where a dead one stopped. It is leased by the gateway that is its `holder`.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pushkit.errors import SealedSecretError
from pushkit.record import field, record
from pushkit.secrets.vault import WATCHER, Vault
from pushkit.storage.database import Database
from pushkit.storage.script import Script, Statement, count, to_micros

LEASE: Final = timedelta(seconds=15)
"""How long after the death of a gateway another takes its tasks."""

_COLUMNS: Final = (
    *("tenant", "task_id", "version", "binding", "path"),
    *("credentials", "told", "view", "created_at"),
)


@record(frozen=True, slots=True, kw_only=True)
class WatchRow:
    """A task that is watched, as it is stored."""

    tenant: str
    task_id: str
    version: str
    binding: str
    path: str
    credentials: str | None = field(repr=False)
    told: str
    view: str
    created_at: int  # in microseconds; by the database's clock once it is stored


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
            row: The task.
            hold: Whether this gateway watches it from now on; otherwise it is due, for all.
        """
        stored = row.credentials if self._vault.seals else None
        sealed = self._vault.seal_text(WATCHER, stored, (row.tenant, row.task_id))
        return await self._database.write(self._add(replace(row, credentials=sealed), hold))

    def _add(self, row: WatchRow, hold: bool) -> Script[bool]:
        now = to_micros((yield from self._database.now()))
        row = replace(row, created_at=now)
        holder, due_at = (self.holder, now + _micros(LEASE)) if hold else (None, now)
        added = yield Statement(
            "INSERT INTO pushkit_watches (tenant, task_id, version, binding, path, credentials,"
            " told, view, created_at, holder, due_at)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
            " ON CONFLICT (tenant, task_id) DO NOTHING RETURNING task_id",
            (*[getattr(row, name) for name in _COLUMNS], holder, due_at),
        )
        return bool(added)

    async def claim(self, limit: int) -> list[WatchRow]:
        """Lease tasks that nobody watches; their credentials are opened, None if they cannot be."""
        return [self._opened(row) for row in await self._database.write(self._claim(limit))]

    def _claim(self, limit: int) -> Script[list[WatchRow]]:
        now = to_micros((yield from self._database.now()))
        due = yield Statement(
            "SELECT tenant, task_id, version, binding, path, credentials, told, view, created_at"
            " FROM pushkit_watches WHERE due_at <= $1 ORDER BY due_at"
            " LIMIT CAST($2 AS BIGINT) FOR UPDATE SKIP LOCKED",
            (now, limit),
        )
        for row in due:
            yield Statement(
                "UPDATE pushkit_watches SET holder = $1, due_at = $2"
                " WHERE tenant = $3 AND task_id = $4",
                (self.holder, now + _micros(LEASE), row["tenant"], row["task_id"]),
            )
        return [WatchRow(**{name: row[name] for name in _COLUMNS}) for row in due]

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
        now = to_micros((yield from self._database.now()))
        held = yield Statement(
            "UPDATE pushkit_watches SET due_at = $1 WHERE holder = $2 RETURNING tenant, task_id",
            (now + _micros(LEASE), self.holder),
        )
        return {(row["tenant"], row["task_id"]) for row in held}

    async def set_told(self, tenant: str, task_id: str, *, told: str, view: str) -> bool:
        """Note what was told of a task; return False if another gateway holds it."""
        return await self._database.write(self._set_told(tenant, task_id, told, view))

    def _set_told(self, tenant: str, task_id: str, told: str, view: str) -> Script[bool]:
        changed = yield Statement(
            "UPDATE pushkit_watches SET told = $1, view = $2"
            " WHERE tenant = $3 AND task_id = $4 AND holder = $5 RETURNING task_id",
            (told, view, tenant, task_id, self.holder),
        )
        return bool(changed)

    async def give_back(self, tenant: str, task_id: str) -> None:
        """Let a gateway take a task that this one holds, after a lease's time."""
        await self._database.write(self._give_back(tenant, task_id))

    def _give_back(self, tenant: str, task_id: str) -> Script[None]:
        now = to_micros((yield from self._database.now()))
        yield Statement(
            "UPDATE pushkit_watches SET holder = NULL, due_at = $1"
            " WHERE tenant = $2 AND task_id = $3 AND holder = $4",
            (now + _micros(LEASE), tenant, task_id, self.holder),
        )

    async def remove(self, tenant: str, task_id: str) -> None:
        """Forget a task that has ended, unless another gateway holds it."""
        await self._database.write(self._remove(tenant, task_id))

    def _remove(self, tenant: str, task_id: str) -> Script[None]:
        yield Statement(
            "DELETE FROM pushkit_watches WHERE tenant = $1 AND task_id = $2 AND holder = $3",
            (tenant, task_id, self.holder),
        )

    async def release(self) -> None:
        """Let other gateways take this one's tasks at once."""
        await self._database.write(self._release())

    def _release(self) -> Script[None]:
        now = to_micros((yield from self._database.now()))
        yield Statement(
            "UPDATE pushkit_watches SET holder = NULL, due_at = $1 WHERE holder = $2",
            (now, self.holder),
        )

    async def count(self) -> int:
        """Return how many tasks are watched, by all gateways."""
        return await self._database.read(count("pushkit_watches"))


def _micros(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
