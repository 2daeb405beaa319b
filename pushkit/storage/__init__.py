"""One small face over the databases: statements in scripts, run by a driver."""

from pushkit.storage.database import Database, open_location, opened, upgrade
from pushkit.storage.liveness import WorkerLocks
from pushkit.storage.location import is_file, masked
from pushkit.storage.migrations import Access, Migration, Schema
from pushkit.storage.paging import WINDOW, AtMost, Page, count_at_most
from pushkit.storage.script import (
    APART,
    Apart,
    Ending,
    Group,
    Refused,
    Row,
    Rows,
    Script,
    SqlValue,
    Statement,
    alone,
    among,
    chunks,
    from_micros,
    moment_or_none,
    padded,
    rows_of_places,
    slices,
    texts,
    to_micros,
)
from pushkit.storage.sqlite import SqliteDatabase

__all__ = [
    "APART",
    "WINDOW",
    "Access",
    "Apart",
    "AtMost",
    "Database",
    "Ending",
    "Group",
    "Migration",
    "Page",
    "Refused",
    "Row",
    "Rows",
    "Schema",
    "Script",
    "SqlValue",
    "SqliteDatabase",
    "Statement",
    "WorkerLocks",
    "alone",
    "among",
    "chunks",
    "count_at_most",
    "from_micros",
    "is_file",
    "masked",
    "moment_or_none",
    "open_location",
    "opened",
    "padded",
    "rows_of_places",
    "slices",
    "texts",
    "to_micros",
    "upgrade",
]
