"""The tasks that gateways watch, as scripts: each is leased by one of them.

A row says how to ask the agent for the task, and what its webhooks were told last, so that another
gateway goes on where a dead one stopped.
"""

from __future__ import annotations

from typing import Final

from pushkit.record import field, record
from pushkit.storage.script import Row, Script, Statement, count

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
    created_at: int


def add(row: WatchRow, holder: str | None, *, due_at: int) -> Script[bool]:
    """Add a task, held by a gateway if one is named; return whether it is new."""
    added = yield Statement(
        f"INSERT INTO pushkit_watches ({_COLUMNS}, holder, due_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
        " ON CONFLICT (tenant, task_id) DO NOTHING RETURNING task_id",
        (
            row.tenant,
            row.task_id,
            row.version,
            row.binding,
            row.path,
            row.credentials,
            row.told,
            row.view,
            row.created_at,
            holder,
            due_at,
        ),
    )
    return bool(added)


def claim(holder: str, *, now: int, until: int, limit: int) -> Script[list[WatchRow]]:
    """Lease tasks that nobody watches."""
    due = yield Statement(
        f"SELECT {_COLUMNS} FROM pushkit_watches WHERE due_at <= $1"
        " ORDER BY due_at LIMIT CAST($2 AS BIGINT) FOR UPDATE SKIP LOCKED",
        (now, limit),
    )
    for row in due:
        yield Statement(
            "UPDATE pushkit_watches SET holder = $1, due_at = $2"
            " WHERE tenant = $3 AND task_id = $4",
            (holder, until, row["tenant"], row["task_id"]),
        )
    return [_row(each) for each in due]


def renew(holder: str, until: int) -> Script[set[tuple[str, str]]]:
    """Extend the leases of a gateway; return its tasks: it lost those that are missing."""
    held = yield Statement(
        "UPDATE pushkit_watches SET due_at = $1 WHERE holder = $2 RETURNING tenant, task_id",
        (until, holder),
    )
    return {(row["tenant"], row["task_id"]) for row in held}


def set_told(tenant: str, task_id: str, holder: str, *, told: str, view: str) -> Script[bool]:
    """Note what the webhooks of a task were told; return False if another gateway holds it."""
    changed = yield Statement(
        "UPDATE pushkit_watches SET told = $1, view = $2"
        " WHERE tenant = $3 AND task_id = $4 AND holder = $5 RETURNING task_id",
        (told, view, tenant, task_id, holder),
    )
    return bool(changed)


def release(holder: str, now: int) -> Script[None]:
    """Let others take the tasks of a gateway at once."""
    yield Statement(
        "UPDATE pushkit_watches SET holder = NULL, due_at = $1 WHERE holder = $2", (now, holder)
    )


def give_back(tenant: str, task_id: str, holder: str, due_at: int) -> Script[None]:
    """Let another gateway take a task, from a moment on."""
    yield Statement(
        "UPDATE pushkit_watches SET holder = NULL, due_at = $1"
        " WHERE tenant = $2 AND task_id = $3 AND holder = $4",
        (due_at, tenant, task_id, holder),
    )


def remove(tenant: str, task_id: str, holder: str) -> Script[None]:
    """Forget a task that has ended, unless another gateway holds it."""
    yield Statement(
        "DELETE FROM pushkit_watches WHERE tenant = $1 AND task_id = $2 AND holder = $3",
        (tenant, task_id, holder),
    )


def counted() -> Script[int]:
    """Count the tasks that are watched, by all gateways."""
    return (yield from count("pushkit_watches"))


def _row(row: Row) -> WatchRow:
    return WatchRow(**{name: row[name] for name in _COLUMNS.split(", ")})
