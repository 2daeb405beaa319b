"""`pushkit migrate`: an outbox of an earlier version, brought up to date before anything starts."""

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
    """Bring the outbox to this version's schema, or make it, as a sender or worker that starts.

    docs/migrations.md says what may run meanwhile, and what a downgrade does.
    """
    migrate_database(open_outbox(database), check=check)
