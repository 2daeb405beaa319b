"""`pushkit import`: takes over push configs that another program stored."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any, Final

import click

from pushkit.a2a import WireVersion
from pushkit.cli.databases import Outbox, outbox_option
from pushkit.cli.destinations import load_destinations
from pushkit.delivery.config_import import ConfigImport, Imported
from pushkit.net.destination import DestinationPolicy, DestinationRules
from pushkit.secrets.sealing import fernet_opener
from pushkit.storage.database import Database
from pushkit.terminal.options import FILE, PATH, allow_option, choice_option, variable_option
from pushkit.terminal.output import columns, example, table_of

_COLUMNS: Final = columns(
    "TASK=key.task_id key.owner CONFIG=key.config_id A2A=version host result reason"
)


@click.group("import", epilog=example("pushkit import a2a-sdk --from agent.db --dry-run"))
def import_() -> None:
    """Take over push configs that another program stored."""


@import_.command(
    "a2a-sdk",
    epilog=example(
        "pushkit import a2a-sdk --from agent.db --database outbox.db --dry-run",
        "pushkit import a2a-sdk --from postgresql://agent@db/agent --fernet-key-file fernet.key",
    ),
)
@click.option(
    "--from",
    "source",
    metavar="DSN",
    required=True,
    help="The SDK's database: the path of a SQLite file, or a PostgreSQL DSN.",
)
@outbox_option(lambda database: database)
@click.option("--fernet-key-file", type=FILE, help="A file with the SDK's `encryption_key`.")
@click.option("--owner", help="The owner of configs that name none.")
@choice_option(
    "--old-version",
    of=(WireVersion.V0_3, WireVersion.V0_1, WireVersion.V1_0),
    default=WireVersion.V0_3.value,
    help="The A2A version of clients whose config an a2a-sdk before 1.0 stored.",
)
@click.option(
    "--configs-table", default="push_notification_configs", help="The SDK's table of configs."
)
@click.option("--tasks-table", default="tasks", help="The SDK's table of tasks; '' for none.")
@allow_option
@variable_option(
    "--destinations",
    type=PATH,
    envvar="PUSHKIT_DESTINATIONS",
    help="The TOML file of the workers, with destination rules.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
def a2a_sdk(
    *,
    outbox: Outbox[Database],
    fernet_key_file: Path | None,
    allow: tuple[str, ...],
    destinations: Path | None,
    dry_run: bool,
    **given: Any,
) -> None:
    """Register the push configs in a2a-sdk's SQL store.

    This is its `DatabasePushNotificationConfigStore`, which is only read. Configs of ended tasks
    stay behind. What the outbox has already stays as it is, so this may be repeated. Webhooks that
    the destination rules refuse are listed with the reason, and the exit status is 1.
    """
    rules = load_destinations(destinations)["destinations"] if destinations else DestinationRules()
    importing = ConfigImport(
        policy=DestinationPolicy(allow, rules),
        opened=fernet_opener(fernet_key_file) if fernet_key_file else lambda data: data,
        **given,
    )
    run = functools.partial(importing.run, dry_run=dry_run)
    found = outbox.look(run) if dry_run else outbox.change(run)
    if listed := [each for each in found if each.result is not Imported.ENDED]:
        click.echo(table_of(_COLUMNS, listed))
    counts = Counter(each.result for each in found)
    would = "dry run: " if dry_run else ""
    click.echo(would + ", ".join(f"{counts[result]} {result}" for result in Imported), err=True)
    if counts[Imported.REFUSED]:
        raise SystemExit(1)
