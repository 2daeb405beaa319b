"""One small face over the databases: statements in scripts, run by a driver."""

from pushkit.storage.migrations import Migration
from pushkit.storage.script import Row, Script, Statement, from_micros, to_micros
from pushkit.storage.sqlite import SqliteDatabase

__all__ = [
    "Migration",
    "Row",
    "Script",
    "SqliteDatabase",
    "Statement",
    "from_micros",
    "to_micros",
]
