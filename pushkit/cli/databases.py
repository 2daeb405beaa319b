"""An outbox that commands look at, or change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar

import click

from pushkit.delivery.database import open_outbox
from pushkit.errors import ConfigError
from pushkit.storage.database import Database, opened
from pushkit.storage.location import is_file
from pushkit.storage.migrations import Access
from pushkit.terminal.log_output import LogFormat, log_to_stderr
from pushkit.terminal.progress import showing_progress

_A = TypeVar("_A")
_R = TypeVar("_R")

_LOG_FORMAT_VARIABLE: Final = "PUSHKIT_LOG_FORMAT"

database_option = click.option(
    "--database",
    required=True,
    envvar="PUSHKIT_DATABASE",
    show_envvar=True,
    help="The outbox: the path of a SQLite file, or a PostgreSQL DSN.",
)


def checked_database(location: str) -> str:
    """Return the location of an outbox that is there.

    Raises:
        ConfigError: It is neither a file that is there nor a PostgreSQL DSN.
    """
    # A mistyped path is no empty outbox.
    if is_file(location) and not Path(location).exists():
        raise ConfigError("--database: there is no such file, and it is no PostgreSQL DSN")
    return location


def look(location: str, admin: Callable[[Database], _A], work: Callable[[_A], Awaitable[_R]]) -> _R:
    """Do what only reads: nothing can be written."""
    return asyncio.run(_work_on(location, Access.READ, admin, work))


def change(
    location: str, admin: Callable[[Database], _A], work: Callable[[_A], Awaitable[_R]]
) -> _R:
    """Do what writes, in an outbox that is there; where logs are asked for, log what was done.

    Raises:
        ConfigError: The environment names an unknown format for logs.
    """
    if (log_format := os.environ.get(_LOG_FORMAT_VARIABLE)) is not None:
        if log_format not in set(LogFormat):
            known = " or ".join(LogFormat)
            raise ConfigError(f"{_LOG_FORMAT_VARIABLE}: found {log_format!r}, expected {known}")
        log_to_stderr(verbose=True, log_format=LogFormat(log_format))
    with showing_progress():
        return asyncio.run(_work_on(location, Access.WRITE, admin, work))


async def _work_on(
    location: str,
    access: Access,
    admin: Callable[[Database], _A],
    work: Callable[[_A], Awaitable[_R]],
) -> _R:
    async with opened(open_outbox(checked_database(location)), access) as database:
        return await work(admin(database))
