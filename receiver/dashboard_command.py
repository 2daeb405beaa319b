"""`receiver dashboard`: the inbox in a browser, on a listener of its own."""

from __future__ import annotations

import click

from pushkit.lazy import from_extra
from pushkit.terminal.options import DashboardOptions, dashboard_options
from pushkit.terminal.output import example
from receiver.admin import InboxAdmin, open_inbox
from receiver.options import InboxOptions, inbox_options
from receiver.settings.tables import LISTEN, VARIABLE


@click.command(
    epilog=example(
        "receiver dashboard --config receiver.toml",
        "export RECEIVER_DASHBOARD_TOKEN=$(openssl rand -hex 20)",
        "receiver dashboard --config receiver.toml --allow-actions",
    )
)
@inbox_options
@dashboard_options(listen=LISTEN, variable=VARIABLE)
def dashboard(*, where: InboxOptions, options: DashboardOptions) -> None:
    """Serve a dashboard of the inbox, until SIGTERM or Ctrl-C.

    It shows the inbox only: refusals are shown by the dashboard inside `receiver serve`
    (`[dashboard]`). Without a token it can be reached from this machine only, and is read-only.
    """
    with from_extra("dashboard", "the dashboard needs Jinja2"):
        from pushkit.webui.serving import run_dashboard
        from receiver.dashboard.app import inbox_dashboard
    inbox = open_inbox(where.existing())
    run_dashboard(
        options,
        inbox,
        lambda access: inbox_dashboard(InboxAdmin(inbox), access=access),
        say=click.echo,
    )
