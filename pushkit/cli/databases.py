"""The outbox that a command reads or changes, and `pushkit migrate`."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import click

from pushkit.errors import ConfigError
from pushkit.outbox.schema import open_outbox
from pushkit.storage.database import Database
from pushkit.storage.location import is_missing
from pushkit.terminal.databases import OperatedDatabase, check_option, migrate_database
from pushkit.terminal.options import OptionDecorator, gathered, variable_option, with_place
from pushkit.terminal.output import LogFormat, example, log_to_stderr

A = TypeVar("A")
R = TypeVar("R")

_LOG_FORMAT_VARIABLE: Final = "PUSHKIT_LOG_FORMAT"

database_option = variable_option(
    "--database",
    required=True,
    envvar="PUSHKIT_DATABASE",
    help="The outbox: the path of a SQLite file, or a PostgreSQL DSN.",
)


def checked_database(location: str) -> str:
    """Return the location of an outbox. Raises ConfigError: neither a file nor a DSN."""
    # A mistyped path must not create an empty outbox.
    if is_missing(location):
        raise ConfigError(
            f"--database: there is no file {location}, and it is no PostgreSQL DSN;"
            f" `{with_place('pushkit migrate')}` creates an outbox"
        )
    return location


class Outbox(OperatedDatabase[A]):
    """The outbox of `--database`."""

    def change(self, work: Callable[[A], Awaitable[R]]) -> R:
        """Run `work` for writing; log if `PUSHKIT_LOG_FORMAT` is set. Raises ConfigError."""
        if log_format := os.environ.get(_LOG_FORMAT_VARIABLE):  # empty is unset, as for options
            if log_format not in set(LogFormat):
                known = " or ".join(LogFormat)
                raise ConfigError(f"{_LOG_FORMAT_VARIABLE}: found {log_format!r}, expected {known}")
            log_to_stderr(verbose=True, log_format=LogFormat(log_format))
        return super().change(work)


def outbox_option(admin: Callable[[Database], A]) -> OptionDecorator:
    """Add `--database` for an existing outbox, as `outbox`; `admin` makes its interface."""

    def make(database: str) -> Outbox[A]:
        return Outbox(lambda: open_outbox(checked_database(database)), admin)

    return gathered("outbox", make, database=database_option)


@click.command(
    epilog=example(
        "pushkit migrate --check --database outbox.db",
        "pushkit migrate --database postgresql://pushkit@db/agent",
    )
)
@database_option
@check_option
def migrate(*, database: str, check: bool) -> None:
    """Create the outbox, or migrate it to this version's schema.

    A sender or worker does the same when it starts. See docs/migrations.md for what may run
    meanwhile, and for downgrades.
    """
    migrate_database(open_outbox(database), check=check)
