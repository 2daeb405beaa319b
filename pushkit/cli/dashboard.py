"""`pushkit dashboard`: the outbox in a browser, on a listener of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from pushkit.cli.databases import checked_database, database_option
from pushkit.cli.options import KeyFile, key_file_options
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.database import open_outbox
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.errors import ConfigError
from pushkit.keys.source import FileKeySource
from pushkit.secrets.sealing import SecretKeys
from pushkit.secrets.vault import Vault
from pushkit.storage.database import opened
from pushkit.storage.migrations import Access
from pushkit.terminal.dashboard_options import DashboardOptions, dashboard_options
from pushkit.terminal.options import variable_option
from pushkit.terminal.output import example

if TYPE_CHECKING:
    from pushkit.webui.access import DashboardAccess
    from pushkit.webui.site import Site


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
@variable_option("--issuer", envvar="PUSHKIT_ISSUER", help="`iss`, to show requests whole.")
def dashboard(
    *, database: str, options: DashboardOptions, key_file: KeyFile | None, issuer: str | None
) -> None:
    """Serve a dashboard of the outbox, until SIGTERM or Ctrl-C.

    Without a token it is for this machine alone, and for reading alone.
    """
    try:
        from pushkit.dashboard.app import dashboard_app
        from pushkit.webui.serving import run_dashboard
    except ImportError as exc:
        raise ConfigError("the dashboard needs Jinja2: pip install 'pushkit[dashboard]'") from exc
    location = checked_database(database)
    keys = FileKeySource(key_file.path, key_file.passphrase) if key_file else None

    @contextlib.asynccontextmanager
    async def over_the_outbox(access: DashboardAccess) -> AsyncIterator[Site]:
        vault = Vault(SecretKeys.from_environment())
        how = Access.WRITE if access.allow_actions else Access.READ
        async with opened(open_outbox(location), how) as outbox:
            yield dashboard_app(
                OutboxAdmin(outbox, vault=vault),
                SubscriptionAdmin(outbox, vault=vault),
                access=access,
                keys=keys,
                issuer=issuer,
            )

    run_dashboard(options, over_the_outbox, say=click.echo)
