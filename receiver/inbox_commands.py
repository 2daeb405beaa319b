"""`receiver inbox`: dead letters and everything else that is in a receiver's inbox."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TypeAlias, TypeVar

import click

from pushkit.bounded_json import JsonObject
from pushkit.errors import ConfigError
from pushkit.storage.database import opened, upgrade
from pushkit.storage.migrations import Access
from pushkit.terminal.command import age, json_option
from pushkit.terminal.options import Page, choice_option, chosen_options, gathered, page_options
from pushkit.terminal.output import document, example, harmless, moment, table
from pushkit.terminal.progress import showing_progress, showing_steps
from receiver.admin import InboxAdmin, open_inbox
from receiver.inbox.inspection import (
    InboxFilter,
    InboxStats,
    NotificationReport,
    NotificationSummary,
)
from receiver.inbox.model import CallbackState, InboxStatus
from receiver.options import InboxOptions, inbox_options

_R = TypeVar("_R")
_Chosen: TypeAlias = tuple[int, ...] | InboxFilter

_FILTER = {
    "sender": click.option("--sender", help="Of this sender."),
    "task_id": click.option("--task", "task_id", help="Of this task."),
    "unmatched": click.option(
        "--unmatched", is_flag=True, help="What is done because no callback wanted it."
    ),
}


@click.group(
    epilog=example(
        "receiver inbox stats",
        "receiver inbox list --status dead",
        "receiver inbox redrive --sender agent",
    )
)
def inbox() -> None:
    """Look at the inbox, call back dead letters again, clean up. Safe beside running receivers."""


@click.command(
    epilog=example(
        "receiver migrate --check --config receiver.toml",
        "receiver migrate --database postgresql://receiver@db/inbox",
    )
)
@inbox_options
@click.option("--check", is_flag=True, help="Change nothing; exit status 1 if there is work.")
def migrate(*, where: InboxOptions, check: bool) -> None:
    """Bring the inbox to this version's schema, or make it, as a receiver does that starts.

    docs/migrations.md says what may run meanwhile, and what a downgrade does.
    """
    found = open_inbox(where.location())
    schema = asyncio.run(found.schema())
    if check:
        schema.check_not_newer()
        click.echo(schema.outlook)
        sys.exit(1 if schema.missing else 0)
    with showing_steps(len(schema.missing)):
        done = asyncio.run(upgrade(found)).done
    click.echo(done)


@inbox.command("list", epilog=example("receiver inbox list --status dead --sender agent"))
@inbox_options
@gathered("wanted", InboxFilter, status=choice_option("--status", of=InboxStatus), **_FILTER)
@page_options(int)
def list_(*, where: InboxOptions, wanted: InboxFilter, page: Page) -> None:
    """List notifications, oldest first, without their bodies."""
    found = _look(where, lambda admin: admin.find(wanted, after=page.after or 0, limit=page.limit))
    headings = ("ID", "STATUS", "SENDER", "TASK", "SEQ", "GAP", "ATTEMPTS", "RECEIVED", "ERROR")
    page.show(found, document, headings, _summary_row)


@inbox.command(epilog=example("receiver inbox show 17 --body"))
@click.argument("notification_id", metavar="ID", type=int)
@inbox_options
@click.option("--body", "with_body", is_flag=True, help="Show the body, too.")
@json_option
def show(*, notification_id: int, where: InboxOptions, with_body: bool, as_json: bool) -> None:
    """Show the notification ID, and what each callback made of it."""
    report = _look(where, lambda admin: admin.show(notification_id))
    if report is None:
        raise ConfigError(f"there is no notification {notification_id}: see `receiver inbox list`")
    if as_json:
        click.echo(json.dumps(_report_document(report, with_body=with_body), indent=2))
        return
    for name, value in document(report.notification).items():
        click.echo(f"{name:16} {'-' if value is None else _printable(str(value))}")
    click.echo("\n" + table(_CALLBACK_HEADINGS, *map(_callback_row, report.callbacks)))
    if with_body:
        click.echo(f"\n{harmless(report.body)}")


@inbox.command(
    epilog=example(
        "receiver inbox redrive 17 18",
        "receiver inbox redrive --task task-1",
        "receiver inbox redrive --unmatched --sender agent",
    )
)
@inbox_options
@chosen_options(
    InboxFilter, gathered("wanted", InboxFilter, **_FILTER), all_says="Every dead letter.", ids=int
)
def redrive(*, where: InboxOptions, chosen: _Chosen) -> None:
    """Call back dead letters again: those with these IDS, or those of a filter.

    Or, with --unmatched, what no callback wanted.

    A callback that had the notification does not get it again.
    """
    redriven = _run(where, lambda admin: admin.redrive(chosen))
    plural = "" if len(redriven.ids) == 1 else "s"
    unmatched = isinstance(chosen, InboxFilter) and chosen.unmatched
    what = "unmatched notification" if unmatched else "dead letter"
    click.echo(f"{len(redriven.ids)} {what}{plural} called back again")
    if redriven.skipped:
        raise ConfigError(
            f"{redriven.skipped} not called back again: no dead letter, and wanted by a callback"
        )


@inbox.command(
    epilog=example(
        "receiver inbox purge --older-than 7d",
        "receiver inbox purge --older-than 30d --status dead",
        "receiver inbox purge --keep 100000",
    )
)
@inbox_options
@click.option("--older-than", callback=age, help="Over for longer than this: 90m, 12h, 7d.")
@choice_option(
    "--status",
    "statuses",
    of=(InboxStatus.DONE, InboxStatus.DEAD),
    multiple=True,
    default=[InboxStatus.DONE.value],
    help="With --older-than: of this status.",
)
@click.option("--keep", type=click.IntRange(0), help="Of what is done, keep the newest so many.")
def purge(
    *,
    where: InboxOptions,
    older_than: timedelta | None,
    statuses: tuple[InboxStatus, ...],
    keep: int | None,
) -> None:
    """Delete what is over, a few at a time. Ids stay remembered."""
    if older_than is None and keep is None:
        raise click.UsageError("expected --older-than or --keep")
    purged = _run(
        where, lambda admin: admin.purge(older_than=older_than, statuses=statuses, max_done=keep)
    )
    click.echo(f"purged {purged}")


@inbox.command(epilog=example("receiver inbox stats --json"))
@inbox_options
@json_option
def stats(*, where: InboxOptions, as_json: bool) -> None:
    """Show how many notifications stand where, what never came, and what nobody wanted."""
    found = _look(where, lambda admin: admin.stats())
    if as_json:
        click.echo(json.dumps(_stats_document(found), indent=2))
        return
    for status, count in found.statuses.items():
        click.echo(f"{status.value:12} {count}")
    if found.oldest_unfinished_at is not None:
        waited = datetime.now(UTC) - found.oldest_unfinished_at
        click.echo(f"oldest       unfinished for {max(int(waited.total_seconds()), 0)} s")
    if found.senders:
        rows = [[str(value) for value in document(sender).values()] for sender in found.senders]
        headings = ("SENDER", "UNFINISHED", "DEAD", "MISSING", "LATE", "UNMATCHED")
        click.echo("\n" + table(headings, *rows))


def _look(where: InboxOptions, work: Callable[[InboxAdmin], Awaitable[_R]]) -> _R:
    """Do what only reads: nothing can be written."""
    return asyncio.run(_work_on(where.existing(), Access.READ, work))


def _run(where: InboxOptions, work: Callable[[InboxAdmin], Awaitable[_R]]) -> _R:
    """Do what writes, in an inbox that is there."""
    with showing_progress():
        return asyncio.run(_work_on(where.existing(), Access.WRITE, work))


async def _work_on(
    location: str, access: Access, work: Callable[[InboxAdmin], Awaitable[_R]]
) -> _R:
    async with opened(open_inbox(location), access) as database:
        return await work(InboxAdmin(database))


_CALLBACK_HEADINGS = ("CALLBACK", "DONE", "ATTEMPTS", "LAST", "ERROR")


def _summary_row(summary: NotificationSummary) -> tuple[str, ...]:
    gap = "late" if summary.late else f"-{summary.missing}" if summary.missing else "-"
    return (
        str(summary.id),
        summary.status.value,
        summary.sender,
        _printable(summary.task_id or "-"),
        "-" if summary.seq is None else str(summary.seq),
        gap,
        str(summary.attempts),
        moment(summary.received_at),
        "no callback wanted it" if summary.unmatched else summary.last_error or "-",
    )


def _callback_row(state: CallbackState) -> tuple[str, ...]:
    return (
        state.callback,
        "yes" if state.done else "no",
        str(state.attempts),
        moment(state.last_at),
        state.last_error or "-",
    )


def _report_document(report: NotificationReport, *, with_body: bool) -> JsonObject:
    found = document(report.notification)
    found["callbacks"] = [document(state) for state in report.callbacks]
    if with_body:
        found["body"] = report.body.decode("utf-8", "backslashreplace")
    return found


def _stats_document(stats: InboxStats) -> JsonObject:
    oldest = stats.oldest_unfinished_at
    return {
        "statuses": {status.value: count for status, count in stats.statuses.items()},
        "oldest_unfinished_at": oldest.isoformat() if oldest else None,
        "senders": [document(sender) for sender in stats.senders],
    }


def _printable(text: str) -> str:
    """Return what a sender wrote as it may stand on a terminal: on one line."""
    return ascii(text)[1:-1]
