"""`--config` and `--database`: where a command finds the inbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import click

from pushkit.errors import ConfigError
from pushkit.storage.location import is_file
from pushkit.terminal.options import PATH, Given, gathered
from receiver.settings import load_settings

config_option = click.option(
    "--config",
    type=PATH,
    default=Path("receiver.toml"),
    envvar="RECEIVER_CONFIG",
    show_envvar=True,
    help="The configuration file.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxOptions:
    """Which inbox is meant."""

    config: Path
    database: str | None = field(repr=False)  # a DSN may hold a password

    def location(self) -> str:
        """Return where it is: a DSN, or the path of a file that there may be."""
        return self.database or load_settings(self.config).inbox_location

    def existing(self) -> str:
        """Return where one is that is there.

        Raises:
            ConfigError: There is no such file: a mistyped path is no empty inbox.
        """
        location = self.location()
        if is_file(location) and not Path(location).exists():
            raise ConfigError(f"database: there is no file {location}, and it is no PostgreSQL DSN")
        return location


inbox_options: Given = gathered(
    "where",
    InboxOptions,
    config=config_option,
    database=click.option(
        "--database", help="Instead: the path of a SQLite file, or a PostgreSQL DSN."
    ),
)
