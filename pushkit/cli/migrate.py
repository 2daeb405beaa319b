"""`pushkit migrate`: migrates an outbox before senders and workers start."""

from __future__ import annotations

import click

from pushkit.cli.databases import database_option
from pushkit.delivery.database import open_outbox
from pushkit.terminal.databases import check_option, migrate_database
from pushkit.terminal.output import example


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
