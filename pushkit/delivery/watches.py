"""The tasks that gateways watch, over the sender's database: `PushSender.watches()`.

A row says how to ask the agent for its task, and what its webhooks were told last, so that another
gateway goes on where a dead one stopped. It is leased by the gateway that is its `holder`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pushkit.record import field, record
from pushkit.secrets.vault import WATCHER, Vault
from pushkit.storage.database import Database
from pushkit.storage.paging import read_record
from pushkit.storage.script import Rows, Script, SqlValue, Statement, count, to_micros

LEASE: Final = timedelta(seconds=15)
"""How long after the death of a gateway another takes its tasks."""

_LEASE_END: Final = f"CAST($1 AS BIGINT) + {LEASE // timedelta(microseconds=1)}"
_COLUMNS: Final = "tenant, task_id, version, binding, path, credentials, told, view, created_at"


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
        added = await self._write(
            f"INSERT INTO pushkit_watches ({_COLUMNS}, holder, due_at)"
            f" VALUES ($3, $4, $5, $6, $7, $8, $9, $10, $1, $2, {_LEASE_END if hold else '$1'})"
            " ON CONFLICT (tenant, task_id) DO NOTHING RETURNING task_id",
            *(row.tenant, row.task_id, row.version, row.binding, row.path),
            *(sealed, row.told, row.view),
            hold=hold,
        )
        return bool(added)

    async def claim(self, limit: int) -> list[WatchRow]:
        """Lease tasks that nobody watches; `opened` opens their credentials."""
        return await self._database.write(self._claim(limit))

    def _claim(self, limit: int) -> Script[list[WatchRow]]:
        now = to_micros((yield from self._database.now()))
        due = yield Statement(
            f"SELECT {_COLUMNS} FROM pushkit_watches WHERE due_at <= $1 ORDER BY due_at"
            " LIMIT CAST($2 AS BIGINT) FOR UPDATE SKIP LOCKED",
            (now, limit),
        )
        for row in due:
            yield Statement(
                f"UPDATE pushkit_watches SET holder = $2, due_at = {_LEASE_END}"
                " WHERE tenant = $3 AND task_id = $4",
                (now, self.holder, row["tenant"], row["task_id"]),
            )
        return [read_record(WatchRow, row) for row in due]

    def opened(self, row: WatchRow) -> WatchRow:
        """Return a row with its credentials opened.

        Raises:
            SealedSecretError: They cannot be, by the keys of this process.
        """
        belongs_to = (row.tenant, row.task_id)
        opened = self._vault.open_text(WATCHER, row.task_id, row.credentials, belongs_to)
        return replace(row, credentials=opened)

    async def renew(self) -> set[tuple[str, str]]:
        """Extend this gateway's leases; return the tasks (tenant, id) that it still holds."""
        held = await self._write(
            f"UPDATE pushkit_watches SET due_at = {_LEASE_END} WHERE holder = $2"
            " RETURNING tenant, task_id"
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

    async def set_credentials(self, tenant: str, task_id: str, credentials: str) -> None:
        """Replace what the agent is asked with about a task that this gateway holds."""
        await self._database.write(self._set_credentials(tenant, task_id, credentials))

    def _set_credentials(self, tenant: str, task_id: str, credentials: str) -> Script[None]:
        sealed = self._vault.seal_text(WATCHER, credentials, (tenant, task_id))
        yield Statement(
            "UPDATE pushkit_watches SET credentials = $1"
            " WHERE tenant = $2 AND task_id = $3 AND holder = $4",
            (sealed, tenant, task_id, self.holder),
        )

    async def give_back(self, keys: Iterable[tuple[str, str]]) -> None:
        """Let a gateway take tasks that this one holds, after a lease's time."""
        await self._database.write(self._give_back(keys))

    def _give_back(self, keys: Iterable[tuple[str, str]]) -> Script[None]:
        now = to_micros((yield from self._database.now()))
        for tenant, task_id in keys:
            yield Statement(
                f"UPDATE pushkit_watches SET holder = NULL, due_at = {_LEASE_END}"
                " WHERE tenant = $2 AND task_id = $3 AND holder = $4",
                (now, tenant, task_id, self.holder),
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
        await self._write("UPDATE pushkit_watches SET holder = NULL, due_at = $1 WHERE holder = $2")

    async def count(self) -> int:
        """Return how many tasks are watched, by all gateways."""
        return await self._database.read(count("pushkit_watches"))

    async def _write(self, sql: str, *values: SqlValue, hold: bool = True) -> Rows:
        """Run a statement whose `$1` is the time; `$2` is this gateway, or NULL without `hold`."""

        def script() -> Script[Rows]:
            now = to_micros((yield from self._database.now()))
            return (yield Statement(sql, (now, self.holder if hold else None, *values)))

        return await self._database.write(script())
