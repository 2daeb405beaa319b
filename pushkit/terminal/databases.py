"""Databases that commands read, change or migrate."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import click

from pushkit.storage.database import Database, opened, upgrade
from pushkit.storage.migrations import Access
from pushkit.terminal.progress import run_interruptibly, showing_progress

A = TypeVar("A")
R = TypeVar("R")

check_option = click.option(
    "--check", is_flag=True, help="Change nothing; exit with 1 if a migration is needed."
)


class OperatedDatabase(Generic[A]):
    """A database for the commands of operators; opened for each use.

    Args:
        find: Returns the database, not yet open; raises ConfigError if there is none.
        admin: Makes the operators' interface to the open database.
    """

    def __init__(self, find: Callable[[], Database], admin: Callable[[Database], A]) -> None:
        self._find = find
        self._admin = admin

    def look(self, work: Callable[[A], Awaitable[R]]) -> R:
        """Run `work` on the database, opened for reading."""
        return run_interruptibly(self._work(Access.READ, work))

    def change(self, work: Callable[[A], Awaitable[R]]) -> R:
        """Run `work` on the database, opened for writing, and show its progress."""
        with showing_progress():
            return run_interruptibly(self._work(Access.WRITE, work))

    async def _work(self, access: Access, work: Callable[[A], Awaitable[R]]) -> R:
        async with opened(self._find(), access) as database:
            return await work(self._admin(database))


def migrate_database(found: Database, *, check: bool) -> None:
    """Migrate a database to this version's schema, or print what that would do, and exit."""
    schema = run_interruptibly(found.schema())
    if check:
        schema.check_known()
        click.echo(schema.outlook)
        sys.exit(0 if schema.is_current else 1)
    with showing_progress(steps=len(schema.missing)):
        done = run_interruptibly(upgrade(found)).done
    click.echo(done)
