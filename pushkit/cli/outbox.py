"""`pushkit outbox`: dead letters and everything else that is in a sender's outbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from pushkit.cli.outbox_report import (
    attempt_row,
    report_document,
    stats_document,
    summary_row,
)
from pushkit.command import age, json_option
from pushkit.delivery.admin import OutboxAdmin, Redriven, open_outbox
from pushkit.errors import ConfigError
from pushkit.keys.sealing import SecretKeys
from pushkit.outbox import (
    DeliveryFilter,
    DeliveryState,
    Envelopes,
)
from pushkit.output import document, example, harmless, table
from pushkit.storage import Access, is_file, opened

__all__ = ["checked_database", "database_option", "outbox"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_FINISHED = [DeliveryState.DELIVERED, DeliveryState.CANCELLED, DeliveryState.DEAD]
_SEALED = "(sealed with a secret key that is not here)"
_REPEATS = "; a webhook may get what it had already, under the same id"


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


def _filter_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    for name, help_ in (
        ("--error", "Whose last error has this code, for example `status_500`."),
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
    """Look at an outbox, send dead letters again, clean up. Safe beside running workers."""


@outbox.command(
    "list", epilog=example("pushkit outbox list --state dead --error status_500 --limit 20")
)
@database_option
@click.option("--state", type=click.Choice([state.value for state in DeliveryState]))
@_filter_options
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
    chosen = _filter(wanted, DeliveryState(state) if state else None)
    found = _look(database, lambda admin: admin.find(chosen, after=after, limit=limit))
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
    report = _look(database, lambda admin: admin.show(delivery_id))
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


@outbox.command(
    epilog=example(
        "pushkit outbox redrive dlv_019bd4…",
        "pushkit outbox redrive --origin https://client.example.com:443 --error status_500",
    )
)
@click.argument("ids", nargs=-1)
@database_option
@_filter_options
@click.option("--all", "everything", is_flag=True, help="Every dead letter.")
def redrive(*, ids: tuple[str, ...], database: str, everything: bool, **wanted: str | None) -> None:
    """Send dead letters again: those with these IDS, or those of a filter.

    Id and seq stay, and they go ahead of what is pending. A webhook may get what it had already:
    its answer may have been lost.
    """
    by_filter = any(value is not None for value in wanted.values())
    if [bool(ids), by_filter, everything].count(True) != 1:
        raise click.UsageError("expected either ids, or a filter, or --all")
    chosen = ids or _filter(wanted)
    redriven = _run(database, lambda admin: admin.redrive(chosen))
    _tell_redriven(redriven, "dead letter", named=bool(ids))


@outbox.command(epilog=example("pushkit outbox resend --task task-1 --from-seq 3"))
@database_option
@click.option("--task", help="To all subscriptions to this task.")
@click.option("--tenant", default="", help="The tenant of the task.")
@click.option("--subscription", help="Or to this subscription alone.")
@click.option("--from-seq", type=click.IntRange(1), default=1, show_default=True)
def resend(
    *, database: str, task: str | None, tenant: str, subscription: str | None, from_seq: int
) -> None:
    """Send what was delivered again, for a receiver that lost it.

    Ids and seqs stay: a receiver that still remembers them does nothing.
    """
    if bool(task) is bool(subscription):
        raise click.UsageError("expected either --task or --subscription")
    redriven = _run(
        database,
        lambda admin: admin.resend(
            from_seq=from_seq, task_id=task, tenant=tenant, subscription_id=subscription
        ),
    )
    _tell_redriven(redriven, "delivered update", named=False)


@outbox.command(epilog=example("pushkit outbox cancel dlv_019bd4…"))
@click.argument("ids", nargs=-1, required=True)
@database_option
def cancel(*, ids: tuple[str, ...], database: str) -> None:
    """Cancel the pending deliveries IDS. One that is in flight goes on."""
    cancelled = _run(database, lambda admin: admin.cancel(ids))
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
    purged = _run(
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
    erased = _run(database, lambda admin: admin.erase(task, tenant=tenant))
    click.echo(f"erased the subscriptions to {task} and {erased} deliveries")


@outbox.command(epilog=example("pushkit outbox stats --json"))
@database_option
@json_option
def stats(*, database: str, as_json: bool) -> None:
    """Show how many deliveries are in which state, and where they wait."""
    found = _look(database, lambda admin: admin.stats())
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


def _look(database: str, work: Callable[[OutboxAdmin], Awaitable[_R]]) -> _R:
    """Do what only reads: nothing can be written."""
    return asyncio.run(_work_on(checked_database(database), Access.READ, work))


def _run(database: str, work: Callable[[OutboxAdmin], Awaitable[_R]]) -> _R:
    """Do what writes, in an outbox that is there."""
    return asyncio.run(_work_on(checked_database(database), Access.WRITE, work))


async def _work_on(
    location: str, access: Access, work: Callable[[OutboxAdmin], Awaitable[_R]]
) -> _R:
    envelopes = Envelopes(SecretKeys.from_environment())
    async with opened(open_outbox(location), access) as database:
        return await work(OutboxAdmin(database, envelopes=envelopes))


def _filter(wanted: dict[str, str | None], state: DeliveryState | None = None) -> DeliveryFilter:
    return DeliveryFilter(
        state=state,
        tenant=wanted["tenant"],
        owner=wanted["owner"],
        task_id=wanted["task"],
        subscription_id=wanted["subscription"],
        origin=wanted["origin"],
        error=wanted["error"],
    )


def _tell_redriven(redriven: Redriven, what: str, *, named: bool) -> None:
    plural = "" if len(redriven.ids) == 1 else "s"
    repeats = _REPEATS if redriven.ids else ""
    click.echo(f"{len(redriven.ids)} {what}{plural} pending again{repeats}")
    if not redriven.skipped:
        return
    reason = f"no {what}, or the subscription is removed or disabled"
    if named:
        raise ConfigError(f"{redriven.skipped} not sent again: {reason}")
    click.echo(f"{redriven.skipped} skipped: {reason}", err=True)
