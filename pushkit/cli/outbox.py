"""`pushkit outbox`: dead letters and everything else that is in a sender's outbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from pushkit.cli.outbox_report import attempt_row, summary_row
from pushkit.delivery.admin import OutboxAdmin, open_outbox
from pushkit.delivery.documents import report_document, stats_document
from pushkit.delivery.error_codes import ERROR_CODES, is_error_code
from pushkit.errors import ConfigError
from pushkit.outbox import DeliveryFilter, DeliveryState
from pushkit.secrets.sealing import SecretKeys
from pushkit.secrets.vault import Vault
from pushkit.storage import Access, is_file, opened
from pushkit.terminal.command import age, json_option
from pushkit.terminal.output import document, example, harmless, table
from pushkit.terminal.progress import showing_progress
from pushkit.terminal.toml_places import did_you_mean

__all__ = [
    "change_outbox",
    "checked_database",
    "database_option",
    "delivery_filter",
    "filter_options",
    "look_at_outbox",
    "outbox",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_FINISHED = [DeliveryState.DELIVERED, DeliveryState.CANCELLED, DeliveryState.DEAD]
_SEALED = "(sealed with a secret key that is not here)"


def database_option(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add `--database` to a command."""
    return click.option(
        "--database",
        required=True,
        envvar="PUSHKIT_DATABASE",
        show_envvar=True,
        help="The outbox: the path of a SQLite file, or a PostgreSQL DSN.",
    )(command)


def checked_database(location: str) -> str:
    """Return the location of an outbox that is there.

    Raises:
        ConfigError: It is neither a file that is there nor a PostgreSQL DSN.
    """
    # A mistyped path is no empty outbox.
    if is_file(location) and not Path(location).exists():
        raise ConfigError("--database: there is no such file, and it is no PostgreSQL DSN")
    return location


def _error_code(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    if value is None or is_error_code(value):
        return value
    raise click.BadParameter(
        f"there is no code {value!r}, expected one of"
        f" {', '.join(ERROR_CODES)}{did_you_mean(value, ERROR_CODES)}"
    )


def filter_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add the options that choose deliveries to a command, which gets them by name."""
    command = click.option(
        "--error",
        callback=_error_code,
        help="Whose last error has this code: `pushkit outbox errors` lists them.",
    )(command)
    for name, help_ in (
        ("--origin", "To this destination: https://host:port."),
        ("--subscription", "Of this subscription."),
        ("--task", "Of this task."),
        ("--owner", "Of this owner."),
        ("--tenant", "Of this tenant."),
    ):
        command = click.option(name, help=help_)(command)
    return command


@click.group(
    epilog=example(
        "pushkit outbox stats --database outbox.db",
        "pushkit outbox list --database outbox.db --state dead",
        "pushkit outbox redrive --database outbox.db --origin https://client.example.com:443",
    )
)
def outbox() -> None:
    """Look at an outbox, send again or at once, clean up. Safe beside running workers."""


@outbox.command(
    "list", epilog=example("pushkit outbox list --state dead --error status_500 --limit 20")
)
@database_option
@click.option("--state", type=click.Choice([state.value for state in DeliveryState]))
@filter_options
@click.option("--after", help="The last id of the page before.")
@click.option("--limit", type=click.IntRange(1, 10000), default=100, show_default=True)
@json_option
def list_(
    *,
    database: str,
    state: str | None,
    after: str | None,
    limit: int,
    as_json: bool,
    **wanted: str | None,
) -> None:
    """List deliveries, oldest first, without their bodies."""
    chosen = delivery_filter(wanted, DeliveryState(state) if state else None)
    found = look_at_outbox(database, lambda admin: admin.find(chosen, after=after, limit=limit))
    if as_json:
        click.echo(json.dumps([document(summary) for summary in found], indent=2))
        return
    headings = ("ID", "STATE", "TASK", "SEQ", "ORIGIN", "ATTEMPTS", "NOTIFIED", "STATUS", "ERROR")
    click.echo(table(headings, *map(summary_row, found)))
    if len(found) == limit:
        click.echo(f"there may be more: --after {found[-1].id}", err=True)


@outbox.command(epilog=example("pushkit outbox show dlv_019bd4… --body"))
@click.argument("delivery_id", metavar="ID")
@database_option
@click.option("--body", "with_body", is_flag=True, help="Show the payload, too.")
@click.option("--answers", "with_answers", is_flag=True, help="Show the answers that were kept.")
@json_option
def show(
    *, delivery_id: str, database: str, with_body: bool, with_answers: bool, as_json: bool
) -> None:
    """Show the delivery ID with every attempt."""
    report = look_at_outbox(database, lambda admin: admin.show(delivery_id))
    if report is None:
        raise ConfigError(f"there is no delivery {delivery_id!r}: see `pushkit outbox list`")
    if as_json:
        found = report_document(report, with_body=with_body, with_answers=with_answers)
        click.echo(json.dumps(found, indent=2))
        return
    for name, value in document(report.delivery).items():
        click.echo(f"{name:16} {'-' if value is None else value}")
    click.echo()
    headings = ("#", "STARTED", "MS", "RESOLVE", "CONNECT", "WAIT", "BODY", "ADDRESS")
    rows = map(attempt_row, report.attempts)
    click.echo(table((*headings, "OUTCOME", "STATUS", "ERROR"), *rows))
    if with_answers:
        for attempt in report.attempts:
            click.echo(f"\nanswer to attempt {attempt.number}:")
            click.echo("(not kept)" if attempt.answer is None else harmless(attempt.answer))
    if with_body:
        click.echo(f"\n{_SEALED if report.body is None else harmless(report.body)}")


@outbox.command(epilog=example("pushkit outbox cancel dlv_019bd4…"))
@click.argument("ids", nargs=-1, required=True)
@database_option
def cancel(*, ids: tuple[str, ...], database: str) -> None:
    """Cancel the pending deliveries IDS. One that is in flight goes on."""
    cancelled = change_outbox(database, lambda admin: admin.cancel(ids))
    click.echo(f"cancelled {len(cancelled)}")
    others = [delivery_id for delivery_id in ids if delivery_id not in cancelled]
    if others:
        raise ConfigError(f"not pending, hence not cancelled: {', '.join(others)}")


@outbox.command(
    epilog=example(
        "pushkit outbox purge --older-than 7d",
        "pushkit outbox purge --older-than 30d --state dead",
        "pushkit outbox purge --keep 1000",
    )
)
@database_option
@click.option("--older-than", callback=age, help="Finished longer ago than this: 90m, 12h, 7d.")
@click.option(
    "--state",
    "states",
    type=click.Choice([state.value for state in _FINISHED]),
    multiple=True,
    default=["delivered", "cancelled"],
    show_default=True,
    help="With --older-than: in this state.",
)
@click.option("--keep", type=click.IntRange(0), help="Of every task, keep the newest so many.")
def purge(
    *, database: str, older_than: timedelta | None, states: tuple[str, ...], keep: int | None
) -> None:
    """Delete finished deliveries and their attempts, a few at a time."""
    if older_than is None and keep is None:
        raise click.UsageError("expected --older-than or --keep")
    chosen = [DeliveryState(state) for state in states]
    purged = change_outbox(
        database,
        lambda admin: admin.purge(older_than=older_than, states=chosen, per_task=keep),
    )
    click.echo(f"purged {purged}")


@outbox.command(epilog=example("pushkit outbox erase task-1 --yes"))
@click.argument("task")
@database_option
@click.option("--tenant", default="", help="The tenant of the task.")
@click.confirmation_option(prompt="Erase the task's deliveries, attempts and subscriptions?")
def erase(*, task: str, database: str, tenant: str) -> None:
    """Erase everything of TASK: deliveries, attempts, subscriptions."""
    erased = change_outbox(database, lambda admin: admin.erase(task, tenant=tenant))
    click.echo(f"erased the subscriptions to {task} and {erased} deliveries")


@outbox.command(epilog=example("pushkit outbox stats --json"))
@database_option
@json_option
def stats(*, database: str, as_json: bool) -> None:
    """Show how many deliveries are in which state, and where they wait."""
    found = look_at_outbox(database, lambda admin: admin.stats())
    if as_json:
        click.echo(json.dumps(stats_document(found), indent=2))
        return
    for state, count in found.states.items():
        click.echo(f"{state.value:12} {count}")
    if found.oldest_pending_at is not None:
        age = datetime.now(UTC) - found.oldest_pending_at
        click.echo(f"oldest       pending for {max(int(age.total_seconds()), 0)} s")
    for error, count in found.errors.items():
        local = found.local_faults.get(error, 0)
        hint = f" ({local} wait by no fault of their webhook)" if local else ""
        click.echo(f"{error:20} {count}{hint}")
    if found.origins:
        rows = ((o.origin, str(o.pending), str(o.in_flight), str(o.dead)) for o in found.origins)
        click.echo("\n" + table(("ORIGIN", "PENDING", "IN FLIGHT", "DEAD"), *rows))


def look_at_outbox(database: str, work: Callable[[OutboxAdmin], Awaitable[_R]]) -> _R:
    """Do what only reads: nothing can be written."""
    return asyncio.run(_work_on(checked_database(database), Access.READ, work))


def change_outbox(database: str, work: Callable[[OutboxAdmin], Awaitable[_R]]) -> _R:
    """Do what writes, in an outbox that is there."""
    with showing_progress():
        return asyncio.run(_work_on(checked_database(database), Access.WRITE, work))


async def _work_on(
    location: str, access: Access, work: Callable[[OutboxAdmin], Awaitable[_R]]
) -> _R:
    vault = Vault(SecretKeys.from_environment())
    async with opened(open_outbox(location), access) as database:
        return await work(OutboxAdmin(database, vault=vault))


def delivery_filter(
    wanted: dict[str, str | None], state: DeliveryState | None = None
) -> DeliveryFilter:
    """Return the filter that `filter_options` made."""
    return DeliveryFilter(
        state=state,
        tenant=wanted["tenant"],
        owner=wanted["owner"],
        task_id=wanted["task"],
        subscription_id=wanted["subscription"],
        origin=wanted["origin"],
        error=wanted["error"],
    )
