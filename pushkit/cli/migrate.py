"""`pushkit migrate`: an outbox of an earlier version, brought up to date before anything starts."""

from __future__ import annotations

import asyncio
import sys

import click

from pushkit.cli.databases import database_option
from pushkit.delivery.database import open_outbox
from pushkit.storage.database import upgrade
from pushkit.terminal.output import example
from pushkit.terminal.progress import showing_steps


@click.command(
    epilog=example(
        "pushkit migrate --check --database outbox.db",
        "pushkit migrate --database postgresql://pushkit@db/agent",
    )
)
@database_option
@click.option("--check", is_flag=True, help="Change nothing; exit status 1 if there is work.")
def migrate(*, database: str, check: bool) -> None:
    """Bring the outbox to this version's schema, or make it, as a sender or worker that starts.

    docs/migrations.md says what may run meanwhile, and what a downgrade does.
    """
    found = open_outbox(database)
    schema = asyncio.run(found.schema())
    if check:
        schema.check_not_newer()
        click.echo(schema.outlook)
        sys.exit(1 if schema.missing else 0)
    with showing_steps(len(schema.missing)):
        done = asyncio.run(upgrade(found)).done
    click.echo(done)
