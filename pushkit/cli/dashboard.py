"""`pushkit dashboard`: serves a dashboard of the outbox."""

from __future__ import annotations

import click

from pushkit.cli.databases import checked_database, database_option
from pushkit.cli.options import KeyFile, key_file_options
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.keys.files import FileKeySource
from pushkit.lazy import from_extra
from pushkit.outbox.schema import open_outbox
from pushkit.secrets.sealing import SecretKeys
from pushkit.secrets.vault import Vault
from pushkit.terminal.options import DashboardOptions, dashboard_options, variable_option
from pushkit.terminal.output import example


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
    outbox, vault = open_outbox(checked_database(database)), Vault(SecretKeys.from_environment())
    admins = OutboxAdmin(outbox, vault=vault), SubscriptionAdmin(outbox, vault=vault)
    keys = FileKeySource(key_file.path, key_file.passphrase) if key_file else None
    run_dashboard(
        options,
        outbox,
        lambda access: dashboard_app(*admins, access=access, keys=keys, issuer=issuer),
    )
