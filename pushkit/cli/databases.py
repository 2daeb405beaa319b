"""The outbox that a command reads or changes; `pushkit migrate` and `pushkit dashboard`."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import click

from pushkit.cli.options import KeyFile, key_file_options
from pushkit.errors import ConfigError
from pushkit.lazy import from_extra
from pushkit.outbox.schema import open_outbox
from pushkit.storage.database import Database
from pushkit.storage.location import is_missing
from pushkit.terminal.databases import OperatedDatabase, check_option, migrate_database
from pushkit.terminal.options import (
    DashboardOptions,
    OptionDecorator,
    dashboard_options,
    gathered,
    variable_option,
    with_place,
)
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


@click.command(
    epilog=example(
        "pushkit dashboard --database outbox.db",
        "export PUSHKIT_DASHBOARD_TOKEN=$(openssl rand -hex 20)",
        "pushkit dashboard --database outbox.db --allow-actions",
    )
)
@database_option
@dashboard_options(listen="127.0.0.1:8090", variable="PUSHKIT_DASHBOARD_TOKEN")
@key_file_options("The key file, to show the states of its keys.", default=None)
@variable_option(
    "--issuer", envvar="PUSHKIT_ISSUER", help="The `iss` of the sender, to show complete requests."
)
def dashboard(
    *, database: str, options: DashboardOptions, key_file: KeyFile | None, issuer: str | None
) -> None:
    """Serve a dashboard of the outbox until SIGTERM or Ctrl-C.

    Without a token, it can only be read, and only from this machine.
    """
    with from_extra("dashboard", "the dashboard needs Jinja2"):
        from pushkit.dashboard.app import dashboard_app
        from pushkit.webui.serving import run_dashboard
    # Not for `pushkit migrate`, which starts without them in half the time.
    from pushkit.delivery.admin import OutboxAdmin
    from pushkit.delivery.subscription_admin import SubscriptionAdmin
    from pushkit.keys.files import FileKeySource
    from pushkit.secrets.sealing import SecretKeys
    from pushkit.secrets.vault import Vault

    outbox, vault = open_outbox(checked_database(database)), Vault(SecretKeys.from_environment())
    admins = OutboxAdmin(outbox, vault=vault), SubscriptionAdmin(outbox, vault=vault)
    keys = FileKeySource(key_file.path, key_file.passphrase) if key_file else None
    run_dashboard(
        options,
        outbox,
        lambda access: dashboard_app(*admins, access=access, keys=keys, issuer=issuer),
    )
