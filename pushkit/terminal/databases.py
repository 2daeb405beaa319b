"""A database that commands look at, change or bring up to date."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import click

from pushkit.storage.database import Database, opened, upgrade
from pushkit.storage.migrations import Access
from pushkit.terminal.progress import showing_progress, showing_steps

A = TypeVar("A")
R = TypeVar("R")

check_option = click.option(
    "--check", is_flag=True, help="Change nothing; exit status 1 if there is work."
)


class OperatedDatabase(Generic[A]):
    """A database, by what operators have of it.

    Args:
        find: Returns it, not yet open; raises ConfigError where there is none.
        admin: Makes of it, once it is open, what operators have.
    """

    def __init__(self, find: Callable[[], Database], admin: Callable[[Database], A]) -> None:
        self._find = find
        self._admin = admin

    def look(self, work: Callable[[A], Awaitable[R]]) -> R:
        """Do what only reads: nothing can be written."""
        return asyncio.run(self._work(Access.READ, work))

    def change(self, work: Callable[[A], Awaitable[R]]) -> R:
        """Do what writes."""
        with showing_progress():
            return asyncio.run(self._work(Access.WRITE, work))

    async def _work(self, access: Access, work: Callable[[A], Awaitable[R]]) -> R:
        async with opened(self._find(), access) as database:
            return await work(self._admin(database))


def migrate_database(found: Database, *, check: bool) -> None:
    """Bring a database to this version's schema, or say what that would be; exit 1 if much is."""
    schema = asyncio.run(found.schema())
    if check:
        schema.check_not_newer()
        click.echo(schema.outlook)
        sys.exit(0 if schema.is_current else 1)
    with showing_steps(len(schema.missing)):
        done = asyncio.run(upgrade(found)).done
    click.echo(done)
