"""Numbered migrations, each applied once, and the schema that a database has.

Every component (the sender's tables, the receiver's tables) has its own versions, so that one
database can hold both. All missing steps run in one exclusive transaction: two processes that start
together apply each step once. If a component has no tables yet, the newest step that can makes all
of them. `pushkit_writers` holds the oldest version that may still write; every write checks it, so
that a process which is too old is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from pushkit.errors import SchemaError
from pushkit.progress import following
from pushkit.record import field, record
from pushkit.storage.location import with_database
from pushkit.storage.script import Script, Statement


class Access(Enum):
    """The kind of access that a database is opened for."""

    # For a service: the database is made if it is missing, and its schema brought up to date.
    UPGRADE = "upgrade"
    WRITE = "write"  # for a command that changes something beside running services
    READ = "read"  # for a command that only reads: nothing can be written


@record(frozen=True, slots=True)
class Migration:
    """One step of a component's schema: statements that take it to `version`."""

    version: int
    statements: tuple[str, ...]
    may_roll: bool = False  # whether processes of the version before may still write afterwards
    # Makes `version` in a database without tables, in place of this step and all before it.
    anew: tuple[str, ...] = ()


def statements(script: str) -> tuple[str, ...]:
    """Return the statements of a script, without its comments."""
    return tuple(map(str.strip, re.sub(r" *--.*", "", script).rstrip(" ;\n").split(";")))


def table_names(migrations: Sequence[Migration]) -> set[str]:
    """Return the names of all tables that migrations create."""
    every = "\n".join(sql for each in migrations for sql in (*each.statements, *each.anew))
    return set(re.findall(r"CREATE TABLE (\w+)", every))


_COMMANDS = {"outbox": "pushkit migrate", "inbox": "receiver migrate"}
# Names that components had whose schemas are not upgraded.
_BEFORE = {"outbox": "sender", "inbox": "receiver"}


@record(frozen=True, slots=True, kw_only=True)
class Schema:
    """The schema of a database, compared with the versions that the code knows."""

    where: str  # the database, as a message may show it
    component: str  # whose tables are meant, as messages name them: `outbox`, `inbox`
    migrations: Sequence[Migration] = field(repr=False)  # all that the code knows
    # The version of every component that has tables in the database.
    versions: Mapping[str, int] = field(default_factory=dict)
    exists: bool = True  # whether there is a database at all
    # Whether the database has the functions that scripts call, as the code defines them.
    has_functions: bool = True

    @property
    def found(self) -> int:
        """The version that was found; 0 if the component has no tables."""
        return self.versions.get(self.component, 0)

    @property
    def newest(self) -> int:
        """The newest version that the code knows."""
        return self.migrations[-1].version

    @property
    def missing(self) -> tuple[int, ...]:
        """The versions that a migration would apply."""
        return tuple(each.version for each in self.migrations if each.version > self.found)

    @property
    def is_current(self) -> bool:
        """Whether a migration would do nothing."""
        return not self.missing and self.has_functions

    @property
    def outlook(self) -> str:
        """A message that says what a migration would do."""
        if self.is_current:
            return self.done
        if not self.missing:
            known = f"the {self.component} has schema version {self.found}"
            return f"{known}, but functions of another version, which would be replaced"
        if not self.found:
            return (
                f"there is no {self.component} yet; schema version {self.newest} would be created"
            )
        steps = ", ".join(map(str, self.missing))
        return f"the {self.component} has schema version {self.found}; it needs migration {steps}"

    @property
    def done(self) -> str:
        """A message that says what a migration did."""
        if not self.missing:
            did = "nothing to do" if self.has_functions else "its functions were replaced"
            return f"the {self.component} has schema version {self.found}: {did}"
        if not self.found:
            return f"the {self.component} was created with schema version {self.newest}"
        return (
            f"the {self.component} was migrated from schema version {self.found} to {self.newest}"
        )

    def check_known(self) -> None:
        """Refuse a schema that this code does not know.

        Raises:
            SchemaError: Newer code wrote it, or code from before version 1 of this schema.
        """
        if _BEFORE.get(self.component) in self.versions:
            raise SchemaError(
                f"{self.where}: the {self.component} is of a pushkit before this schema,"
                " and cannot be upgraded: nothing was changed. Use a new database, or the pushkit"
                " that wrote it; docs/upgrading.md says what does not come along"
            )
        if self.found > self.newest:
            raise SchemaError(
                f"{self.where}: the {self.component} has schema version {self.found}, this code"
                f" knows up to {self.newest}: use the newer pushkit that wrote it"
            )

    def check_current(self, location: str) -> None:
        """Refuse every schema but the newest one that the code knows.

        Raises:
            SchemaError: It is older, newer, or missing; the message says what was found instead.
        """
        self.check_known()
        command = with_database(_COMMANDS.get(self.component, "migrate"), location)
        if self.found:
            if self.missing:
                raise SchemaError(
                    f"{self.where}: the {self.component} has schema version {self.found}, this code"
                    f" needs {self.newest}: run `{command}`"
                )
            return
        if not self.exists:
            raise SchemaError(
                f"{self.where}: there is no such file: the service of the {self.component} makes it"
                f" when it starts, or `{command}`"
            )
        if self.versions:
            others = " and ".join(f"an {each}" for each in sorted(self.versions))
            raise SchemaError(
                f"{self.where}: there is no {self.component} here, but {others}: is this the right"
                f" database? (`{command}` would make one beside it)"
            )
        raise SchemaError(
            f"{self.where}: this is no database of pushkit's: expected an {self.component}, which"
            f" its service makes when it starts, or `{command}`"
        )


def find_schema(
    where: str, component: str, migrations: Sequence[Migration], has_table: str
) -> Script[Schema]:
    """Return the schema of a database; only reads.

    Args:
        where: The database, as a message may show it.
        component: Whose tables are meant.
        migrations: All that the code knows.
        has_table: A query that selects a row if there is a table named `$1`.
    """
    there = yield Statement(has_table, ("pushkit_schema",))
    versions = (yield from _versions()) if there else {}
    return Schema(where=where, component=component, migrations=migrations, versions=versions)


def migrate(
    component: str,
    migrations: Sequence[Migration],
    where: str = "the database",
    *,
    alone: str | None = None,
) -> Script[None]:
    """Bring a component's tables to the newest version that the code knows.

    If a step is missing, the statement `alone` runs first: it waits for transactions that write
    already. Each step is reported as progress (`pushkit.progress`).

    Raises:
        SchemaError: The database was written by newer code, or by code from before this schema.
    """
    return _migrate(component, migrations, where, alone, following())


def _migrate(
    component: str,
    migrations: Sequence[Migration],
    where: str,
    alone: str | None,
    advance: Callable[[int], None],
) -> Script[None]:
    yield Statement(
        "CREATE TABLE IF NOT EXISTS pushkit_schema"
        " (component TEXT PRIMARY KEY, version INTEGER NOT NULL)"
    )
    yield Statement(
        "CREATE TABLE IF NOT EXISTS pushkit_writers"
        " (component TEXT PRIMARY KEY, oldest INTEGER NOT NULL)"
    )
    versions = yield from _versions()
    schema = Schema(where=where, component=component, migrations=migrations, versions=versions)
    schema.check_known()
    if alone is not None and schema.missing:
        yield Statement(alone)
    steps = [each for each in migrations if each.version > schema.found]
    made = max((each.version for each in steps if each.anew and not schema.found), default=0)
    for step in steps:
        if step.version >= made:
            for sql in step.anew if step.version == made else step.statements:
                yield Statement(sql)
        advance(1)
    yield Statement(
        "INSERT INTO pushkit_schema (component, version) VALUES ($1, $2)"
        " ON CONFLICT (component) DO UPDATE SET version = excluded.version",
        (component, schema.newest),
    )
    yield Statement(
        "INSERT INTO pushkit_writers (component, oldest) VALUES ($1, $2)"
        " ON CONFLICT (component) DO UPDATE SET oldest = excluded.oldest",
        (component, max((each.version for each in migrations if not each.may_roll), default=0)),
    )


def too_old_to_write(where: str, component: str, oldest: int, newest: int) -> SchemaError:
    """Return the error for a process whose database was upgraded while it ran."""
    return SchemaError(
        f"{where}: the {component} was upgraded while this process ran: writing"
        f" there takes code of schema version {oldest}, this code knows up to {newest}; nothing was"
        " stored: stop this process, and start the newer pushkit"
    )


def _versions() -> Script[dict[str, int]]:
    rows = yield Statement("SELECT component, version FROM pushkit_schema")
    return {row["component"]: row["version"] for row in rows}
