"""`--config` and `--database`: where a command finds the inbox."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from pushkit.errors import ConfigError
from pushkit.storage import is_file
from receiver.settings import load_settings

_P = ParamSpec("_P")
_R = TypeVar("_R")

config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("receiver.toml"),
    envvar="RECEIVER_CONFIG",
    show_default=True,
    show_envvar=True,
    help="The configuration file.",
)


def inbox_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add `--config` and `--database` to a command."""
    database = click.option(
        "--database", help="Instead: the path of a SQLite file, or a PostgreSQL DSN."
    )
    return config_option(database(command))


def inbox_location(config: Path, database: str | None) -> str:
    """Return where the inbox is: a DSN, or the path of a file that there may be."""
    return database or load_settings(config).inbox_location


def existing_inbox(config: Path, database: str | None) -> str:
    """Return where an inbox is that is there.

    Raises:
        ConfigError: There is no such file: a mistyped path is no empty inbox.
    """
    location = inbox_location(config, database)
    if is_file(location) and not Path(location).exists():
        raise ConfigError(f"database: there is no file {location}, and it is no PostgreSQL DSN")
    return location
