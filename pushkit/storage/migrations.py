"""Numbered migrations, each applied once.

Every component (the sender's tables, the receiver's tables) counts its own versions, so that both
may live in one database. The whole check runs in one exclusive transaction: two processes that
start together apply each migration once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pushkit.errors import StorageError
from pushkit.storage.script import Script, Statement

__all__ = ["Migration", "migrate"]


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of a component's schema: statements that take it to `version`."""

    version: int
    statements: tuple[str, ...]


def migrate(component: str, migrations: Sequence[Migration]) -> Script[None]:
    """Bring a component's tables to the newest version that the code knows.

    Raises:
        StorageError: The database was written by newer code.
    """
    yield Statement(
        "CREATE TABLE IF NOT EXISTS pushkit_schema"
        " (component TEXT PRIMARY KEY, version INTEGER NOT NULL)"
    )
    rows = yield Statement("SELECT version FROM pushkit_schema WHERE component = $1", (component,))
    found = rows[0]["version"] if rows else 0
    newest = migrations[-1].version
    if found > newest:
        raise StorageError(
            f"the database has {component} schema version {found}, this code knows up to {newest}:"
            " use the newer pushkit that wrote it"
        )
    for migration in migrations:
        if migration.version > found:
            for sql in migration.statements:
                yield Statement(sql)
    yield Statement(
        "INSERT INTO pushkit_schema (component, version) VALUES ($1, $2)"
        " ON CONFLICT (component) DO UPDATE SET version = excluded.version",
        (component, newest),
    )
