"""`receiver inbox`, `mailbox`, `dashboard` and `migrate`: the inbox for operators."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

import click

from pushkit.bounded_json import JsonObject
from pushkit.errors import ConfigError
from pushkit.lazy import from_extra
from pushkit.net.transport import closing
from pushkit.programs import secret_variable
from pushkit.terminal.command import json_option
from pushkit.terminal.databases import OperatedDatabase, check_option, migrate_database
from pushkit.terminal.options import (
    DashboardOptions,
    ListPage,
    age_option,
    choice_option,
    chosen_options,
    dashboard_options,
    gathered,
    page_options,
    refuse_given,
    with_place,
)
from pushkit.terminal.output import (
    columns,
    example,
    harmless,
    lines_of,
    numbered,
    table_of,
)
from pushkit.webui.api import json_object, json_of
from receiver.admin import InboxAdmin, open_inbox
from receiver.inbox.inspection import InboxFilter, NotificationSummary
from receiver.inbox.mailboxes import MailboxChange
from receiver.inbox.model import InboxStatus
from receiver.options import InboxOptions, inbox_options
from receiver.recovery import Recovery, RecoveryFailedError
from receiver.settings.tables import LISTEN, VARIABLE

_Chosen: TypeAlias = tuple[int, ...] | InboxFilter

_Inbox: TypeAlias = OperatedDatabase[InboxAdmin]
_inbox = gathered(
    "inbox",
    lambda where: OperatedDatabase(lambda: open_inbox(where.existing()), InboxAdmin),
    where=inbox_options,
)

_FILTER = {
    "sender": click.option("--sender", help="Of this sender."),
    "task_id": click.option("--task", "task_id", help="Of this task."),
    "unmatched": click.option(
        "--unmatched", is_flag=True, help="Done because no callback wanted it."
    ),
}


def _gap(summary: NotificationSummary) -> str:
    if summary.late:
        return "late"
    gap = "generation" if summary.generation_before is not None else "-"
    return f"-{summary.missing}" if summary.missing else gap


def _error(summary: NotificationSummary) -> str | None:
    return "no callback wanted it" if summary.unmatched else summary.last_error


_COLUMNS: Final = columns("id status sender TASK=task_id seq", GAP=_gap) | columns(
    "attempts RECEIVED=received_at", ERROR=_error
)
_OF_CALLBACKS: Final = columns(
    "callback", DONE=lambda found: "yes" if found.done else "no"
) | columns("attempts LAST=last_at ERROR=last_error")
_OF_SENDERS: Final = columns("sender unfinished dead missing late unmatched")
_OF_MAILBOXES: Final = columns("mailbox pending HANDED-OUT=handed_out dead oldest")
_OF_QUEUES: Final = columns("sender TASK=task_id worker SINCE=leased_at epoch waiting DUE=due_at")


@click.group(
    epilog=example(
        "receiver inbox stats",
        "receiver inbox list --status dead",
        "receiver inbox redrive --sender agent",
    )
)
def inbox() -> None:
    """Inspect the inbox, call back dead letters again, purge. Safe while receivers run."""


@click.command(
    epilog=example(
        "receiver migrate --check --config receiver.toml",
        "receiver migrate --database postgresql://receiver@db/inbox",
    )
)
@inbox_options
@check_option
def migrate(*, where: InboxOptions, check: bool) -> None:
    """Create the inbox, or migrate it to this version's schema.

    The start of a receiver does the same. docs/migrations.md says what may run at the same time,
    and what a downgrade does.
    """
    migrate_database(open_inbox(where.location()), check=check)


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
    )


@inbox.command("list", epilog=example("receiver inbox list --status dead --sender agent"))
@_inbox
@gathered("wanted", InboxFilter, status=choice_option("--status", of=InboxStatus), **_FILTER)
@page_options(int)
def list_(*, inbox: _Inbox, wanted: InboxFilter, page: ListPage) -> None:
    """List notifications, oldest first, without their bodies."""
    found = inbox.look(lambda admin: admin.find(wanted, after=page.after or 0, limit=page.limit))
    page.show(found, json_of, _COLUMNS)


@inbox.command(epilog=example("receiver inbox show 17 --body"))
@click.argument("notification_id", metavar="ID", type=int)
@_inbox
@click.option("--body", "with_body", is_flag=True, help="Also show the body.")
@json_option
def show(*, notification_id: int, inbox: _Inbox, with_body: bool, as_json: bool) -> None:
    """Show the notification ID, and the result of each callback."""
    report = inbox.look(lambda admin: admin.show(notification_id))
    if report is None:
        listing = with_place("receiver inbox list")
        raise ConfigError(f"there is no notification {notification_id}: see `{listing}`")
    if as_json:
        found: JsonObject = {**json_object(report.notification), **json_object(report, "callbacks")}
        if with_body:
            found["body"] = report.body.decode("utf-8", "backslashreplace")
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(lines_of(json_object(report.notification)))
    click.echo(f"\n{table_of(_OF_CALLBACKS, report.callbacks)}")
    if with_body:
        click.echo(f"\n{harmless(report.body)}")


@inbox.command(
    epilog=example(
        "receiver inbox redrive 17 18",
        "receiver inbox redrive --task task-1",
        "receiver inbox redrive --unmatched --sender agent",
    )
)
@_inbox
@chosen_options(
    InboxFilter, gathered("wanted", InboxFilter, **_FILTER), all_says="Every dead letter.", ids=int
)
def redrive(*, inbox: _Inbox, chosen: _Chosen) -> None:
    """Call back dead letters again, by ID, filter or --all.

    With --unmatched, notifications that no callback wanted. A callback that has succeeded is not
    called again.
    """
    redriven = inbox.change(lambda admin: admin.redrive(chosen))
    unmatched = isinstance(chosen, InboxFilter) and chosen.unmatched
    what = "unmatched notification" if unmatched else "dead letter"
    click.echo(f"{numbered(len(redriven.ids), what)} called back again")
    if redriven.skipped:
        raise ConfigError(
            f"{redriven.skipped} not called back again: neither dead letters nor unmatched"
        )


@inbox.command(
    epilog=example(
        "export RECEIVER_RECOVER_TOKEN=…",
        "receiver inbox recover --sender agent --agent https://agent.example.com/a2a",
    )
)
@_inbox
@click.option("--sender", required=True, help="What this sender has sent.")
@click.option("--agent", required=True, help="The URL of its push-config API, for JSON-RPC.")
@click.option("--task", "task_id", help="Of this task alone.")
def recover(*, inbox: _Inbox, sender: str, agent: str, task_id: str | None) -> None:
    """Ask an agent to send again what the inbox lacks.

    These are gaps in `seq`, and everything after the last `seq` of each task that is known, as
    after a restore from a backup. The client's token at the agent is RECEIVER_RECOVER_TOKEN.
    """
    token = secret_variable("RECEIVER_RECOVER_TOKEN")

    refused: list[str] = []

    async def ask(admin: InboxAdmin) -> int:
        number = 0
        async with closing(Recovery(agent, token=token)) as recovery:
            for each in await admin.gaps(sender, task_id=task_id):
                try:
                    number += await recovery.ask(
                        each.task_id, each.config_id, from_seq=each.from_seq, to_seq=each.to_seq
                    )
                except RecoveryFailedError as exc:
                    if not exc.refused:
                        raise
                    refused.append(f"config {each.config_id!a} of task {each.task_id!a}: {exc}")
        return number

    click.echo(f"{numbered(inbox.look(ask), 'notification')} sent again")
    if refused:
        raise ConfigError(f"the agent refused {numbered(len(refused), 'range')}; {refused[0]}")


@inbox.command(
    epilog=example(
        "receiver inbox purge --older-than 7d",
        "receiver inbox purge --older-than 30d --status dead",
        "receiver inbox purge --keep 100000",
    )
)
@_inbox
@age_option("--older-than", help="Finished longer ago than this: 90m, 12h, 7d.")
@choice_option(
    "--status",
    "statuses",
    of=(InboxStatus.DONE, InboxStatus.DEAD),
    multiple=True,
    default=[InboxStatus.DONE.value],
    help="With --older-than: of this status.",
)
@click.option("--keep", type=click.IntRange(0), help="Keep only so many done ones: the newest.")
def purge(
    *,
    inbox: _Inbox,
    older_than: timedelta | None,
    statuses: tuple[InboxStatus, ...],
    keep: int | None,
) -> None:
    """Delete finished notifications, in batches. Ids stay remembered."""
    if older_than is None and keep is None:
        raise click.UsageError("expected --older-than or --keep")
    if older_than is None:
        refuse_given("statuses", only_for="--older-than")
    purged = inbox.change(
        lambda admin: admin.purge(older_than=older_than, statuses=statuses, max_done=keep)
    )
    click.echo(f"purged {purged}")


@inbox.command(epilog=example("receiver inbox queues --limit 20"))
@_inbox
@page_options()
def queues(*, inbox: _Inbox, page: ListPage) -> None:
    """List queues: which process leases each, and what waits.

    The notifications of a sender's task are a queue; one without a task is alone in its queue. It
    is listed while a process leases it, or notifications wait for one.
    """
    # Ids are shown percent-encoded: each has a line break between sender and task.
    after = page.after and unquote(page.after).replace("\0", "")
    found = inbox.look(lambda admin: admin.queues(after=after, limit=page.limit))
    shown = [replace(each, id=quote(each.id, safe="")) for each in found]
    page.show(shown, json_of, _OF_QUEUES)


@inbox.command(epilog=example("receiver inbox stats --json"))
@_inbox
@json_option
def stats(*, inbox: _Inbox, as_json: bool) -> None:
    """Count notifications by status and sender."""
    found = inbox.look(lambda admin: admin.stats())
    if as_json:
        document_of = json_object(found, "statuses oldest_unfinished_at senders")
        click.echo(json.dumps(document_of, indent=2))
        return
    for status in found.statuses:
        click.echo(f"{status.value:12} {getattr(found, status.value)}")
    if found.oldest_unfinished_at is not None:
        waited = datetime.now(UTC) - found.oldest_unfinished_at
        click.echo(f"oldest       unfinished for {max(int(waited.total_seconds()), 0)} s")
    if found.senders:
        click.echo(f"\n{table_of(_OF_SENDERS, found.senders)}")


@click.group(epilog=example("receiver mailbox list", "receiver mailbox redrive laptop"))
def mailbox() -> None:
    """Inspect mailboxes, redrive and drop. Safe while receivers run."""


@mailbox.command("list", epilog=example("receiver mailbox list --json"))
@_inbox
@json_option
def list_mailboxes(*, inbox: _Inbox, as_json: bool) -> None:
    """List the mailboxes that have anything."""
    found = inbox.look(lambda admin: admin.mailboxes())
    if as_json:
        click.echo(json.dumps([json_object(each) for each in found], indent=2))
    elif found:
        click.echo(table_of(_OF_MAILBOXES, found))


@mailbox.command("redrive", epilog=example("receiver mailbox redrive laptop"))
@click.argument("name", metavar="MAILBOX")
@_inbox
def redrive_in_mailbox(*, name: str, inbox: _Inbox) -> None:
    """Hand the dead letters of MAILBOX out again."""
    number = inbox.change(lambda admin: admin.change_mailbox(name, MailboxChange.REDRIVE))
    click.echo(f"{numbered(number, 'dead letter')} handed out again")


@mailbox.command(epilog=example("receiver mailbox drop laptop", "receiver mailbox drop old --all"))
@click.argument("name", metavar="MAILBOX")
@_inbox
@click.option("--all", "is_all", is_flag=True, help="Also what waits: for a mailbox that is gone.")
def drop(*, name: str, inbox: _Inbox, is_all: bool) -> None:
    """Drop the dead letters of MAILBOX.

    Its client never gets them. The inbox keeps what a mailbox has, pending or dead, whatever its
    retention says.
    """
    change = MailboxChange.DROP_ALL if is_all else MailboxChange.DROP_DEAD
    number = inbox.change(lambda admin: admin.change_mailbox(name, change))
    click.echo(f"dropped {number}")
