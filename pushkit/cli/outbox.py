"""`pushkit outbox`: shows and changes the deliveries in a sender's outbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import click

from pushkit.cli.databases import Outbox, outbox_option
from pushkit.cli.options import filter_options
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.documents import report_document, shown_answer, why_document
from pushkit.delivery.error_codes import ERROR_CODES, page_of_code
from pushkit.errors import ConfigError
from pushkit.outbox.changes import Requeued, WhyNot
from pushkit.outbox.inspection import DeliveryFilter
from pushkit.outbox.states import CancelledBy, DeliveryState
from pushkit.secrets.sealing import SecretKeys
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.terminal.command import json_option
from pushkit.terminal.options import (
    ListPage,
    age_option,
    choice_option,
    chosen_options,
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
    table,
    table_of,
)
from pushkit.webui.api import json_object, json_of

_FINISHED = (DeliveryState.DELIVERED, DeliveryState.CANCELLED, DeliveryState.DEAD)
_SEALED = "(encrypted with a secret key that this command does not have)"

_COLUMNS: Final = columns(
    "id state TASK=task_id seq origin attempts NOTIFIED=notified_at STATUS=last_status"
    " ERROR=last_error"
)
_OF_ATTEMPTS: Final = columns(
    "#=number STARTED=started_at MS=duration timing.resolve timing.connect timing.wait timing.body"
    " timing.address outcome status error"
)
_OF_QUEUES: Final = columns(
    "id TASK=task_id origin worker SINCE=leased_at epoch NEXT=next_seq waiting DUE=due_at"
    " FAILING=failing_since"
)
_STATS: Final = "states oldest_pending_at origins errors local_faults"
_OF_ORIGINS: Final = columns("origin pending in_flight dead")
_REPEATS = "webhooks may receive notifications a second time, with the same ids"
_SHOWN = 20
_HINTS = {
    WhyNot.UNKNOWN: "not in this outbox",
    WhyNot.PENDING: "pending (`pushkit outbox retry-now`)",
    WhyNot.IN_FLIGHT: "in flight at this moment",
    WhyNot.DELIVERED: "delivered (`pushkit outbox resend`)",
    WhyNot.CANCELLED: "cancelled (`pushkit outbox resend`)",
    WhyNot.DEAD: "dead (`pushkit outbox redrive`)",
    WhyNot.REMOVED: "of a removed subscription",
    WhyNot.DISABLED: "of a disabled subscription (`pushkit subscriptions enable`)",
}
_HINTS_OF_NOTHING = {
    "delivered": "; for cancelled ones use --state cancelled",
    "pending": "; those of a paused subscription are not tried (`pushkit subscriptions resume`)",
}
_Chosen: TypeAlias = tuple[str, ...] | DeliveryFilter
_Outbox: TypeAlias = Outbox[OutboxAdmin]


def _admin_of(database: Database) -> OutboxAdmin:
    return OutboxAdmin(database, vault=Vault(SecretKeys.from_environment()))


_outbox = outbox_option(_admin_of)
_chosen_options = chosen_options(
    DeliveryFilter, filter_options(DeliveryFilter), all_says="All of them."
)
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)


@click.group(
    epilog=example(
        "pushkit outbox stats --database outbox.db",
        "pushkit outbox list --database outbox.db --state dead",
        "pushkit outbox redrive --database outbox.db --origin https://client.example.com:443",
    ),
)
def outbox() -> None:
    """Inspect an outbox, send deliveries again, and clean up.

    Workers may run meanwhile.
    """


@outbox.command(
    "list", epilog=example("pushkit outbox list --state dead --error status_500 --limit 20")
)
@_outbox
@filter_options(
    DeliveryFilter,
    state=choice_option("--state", of=DeliveryState, help="Only those in this state."),
)
@page_options()
def list_(*, outbox: _Outbox, wanted: DeliveryFilter, page: ListPage) -> None:
    """List deliveries, oldest first, without their bodies."""
    found = outbox.look(lambda admin: admin.find(wanted, after=page.after, limit=page.limit))
    page.show(found, json_of, _COLUMNS)


@outbox.command(epilog=example("pushkit outbox show dlv_019bd4… --body"))
@click.argument("delivery_id", metavar="ID")
@_outbox
@click.option("--body", "with_body", is_flag=True, help="Also show the body.")
@click.option("--answers", "with_answers", is_flag=True, help="Show the answers that were kept.")
@json_option
def show(
    *,
    delivery_id: str,
    outbox: _Outbox,
    with_body: bool,
    with_answers: bool,
    as_json: bool,
) -> None:
    """Show the delivery ID with all of its attempts."""
    report = outbox.look(lambda admin: admin.show(delivery_id))
    if report is None:
        listing = with_place("pushkit outbox list")
        raise ConfigError(f"there is no delivery {delivery_id!r}: see `{listing}`")
    if as_json:
        found: Any = json_of(report_document(report))
        if with_answers:
            for shown, attempt in zip(found["log"], report.attempts, strict=True):
                shown["answer"] = shown_answer(attempt)
        if with_body:
            body = report.body
            found["body"] = None if body is None else body.decode("utf-8", "backslashreplace")
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(lines_of(json_object(report.delivery)))
    if why := why_document(report):
        page = page_of_code(why.code)
        click.echo(f"\n{why.code}: {why.means}\n{why.remedy}\nSee {page}")
        if why.answer and not with_answers:
            click.echo(f"The webhook's answer began with:\n{harmless(why.answer.encode())}")
    click.echo(f"\n{table_of(_OF_ATTEMPTS, report.attempts)}")
    if with_answers:
        for attempt in report.attempts:
            click.echo(f"\nanswer to attempt {attempt.number}:")
            click.echo(harmless((shown_answer(attempt) or "(not kept)").encode()))
    if with_body:
        click.echo(f"\n{_SEALED if report.body is None else harmless(report.body)}")


@outbox.command(epilog=example("pushkit outbox cancel dlv_019bd4…"))
@click.argument("ids", nargs=-1, required=True)
@_outbox
def cancel(*, ids: tuple[str, ...], outbox: _Outbox) -> None:
    """Cancel the pending deliveries IDS.

    Deliveries in flight are not cancelled.
    """
    cancelled, others = outbox.change(partial(_cancel, ids))
    click.echo(f"cancelled {cancelled}")
    if others:
        raise ConfigError(f"not cancelled: {'; '.join(others)}")


async def _cancel(ids: Sequence[str], admin: OutboxAdmin) -> tuple[int, list[str]]:
    """Cancel deliveries; return how many were, and of the others in which state each is."""
    cancelled = set(await admin.cancel(ids))
    others = [each for each in ids if each not in cancelled]
    states = await admin.states(others)
    return len(cancelled), [
        f"{each} is {states.get(each, 'not in this outbox')}" for each in others
    ]


@outbox.command(
    epilog=example(
        "pushkit outbox purge --older-than 7d",
        "pushkit outbox purge --older-than 30d --state dead",
        "pushkit outbox purge --keep 1000",
    )
)
@_outbox
@age_option("--older-than", help="Those that finished longer ago than this: 90m, 12h, 7d.")
@choice_option(
    "--state",
    "states",
    of=_FINISHED,
    multiple=True,
    default=["delivered", "cancelled"],
    help="With --older-than: those in this state; may be given several times.",
)
@click.option("--keep", type=click.IntRange(0), help="All but this many newest ones of each task.")
def purge(
    *,
    outbox: _Outbox,
    older_than: timedelta | None,
    states: tuple[DeliveryState, ...],
    keep: int | None,
) -> None:
    """Delete finished deliveries and their attempts, in batches."""
    if older_than is None and keep is None:
        raise click.UsageError("expected --older-than or --keep")
    if older_than is None:
        refuse_given("states", only_for="--older-than")
    purged = outbox.change(
        lambda admin: admin.purge(older_than=older_than, states=states, per_task=keep)
    )
    click.echo(f"purged {purged}")


@outbox.command(epilog=example("pushkit outbox erase task-1 --yes"))
@click.argument("task")
@_outbox
@click.option("--tenant", default="", show_default=False, help="The tenant of the task.")
@click.confirmation_option(prompt="Erase the task's deliveries, attempts and subscriptions?")
def erase(*, task: str, outbox: _Outbox, tenant: str) -> None:
    """Delete the deliveries, attempts and subscriptions of TASK."""
    erased = outbox.change(lambda admin: admin.erase(task, tenant=tenant))
    if not any(erased):
        raise ConfigError(
            f"found no subscription or delivery of the task {task!r} of tenant {tenant!r}:"
            f" --tenant names another one, and `{with_place('pushkit outbox list')}` the tasks"
        )
    subscriptions = numbered(erased.subscriptions, "subscription")
    deliveries = numbered(erased.deliveries, "delivery")
    click.echo(f"erased {subscriptions} and {deliveries} of {task}")


@outbox.command(epilog=example("pushkit outbox queues --limit 20"))
@_outbox
@page_options()
def queues(*, outbox: _Outbox, page: ListPage) -> None:
    """List queues: which worker leases each, and what waits.

    Every subscription is a queue. It is listed while a worker leases it, or deliveries wait for
    one; a paused subscription only while it is leased. FAILING is since when every attempt failed.
    """
    found = outbox.look(lambda admin: admin.queues(after=page.after, limit=page.limit))
    page.show(found, json_of, _OF_QUEUES)


@outbox.command(epilog=example("pushkit outbox stats --json"))
@_outbox
@json_option
def stats(*, outbox: _Outbox, as_json: bool) -> None:
    """Count deliveries by state, error and destination."""
    found = outbox.look(lambda admin: admin.stats())
    if as_json:
        click.echo(json.dumps(json_object(found, _STATS), indent=2))
        return
    for state in found.states:
        click.echo(f"{state.value:12} {getattr(found, state.value)}")
    if found.oldest_pending_at is not None:
        waited = datetime.now(UTC) - found.oldest_pending_at
        click.echo(f"oldest       pending for {max(int(waited.total_seconds()), 0)} s")
    for error, count in found.errors.items():
        local = found.local_faults.get(error, 0)
        hint = f" ({local} wait because of a fault on this side)" if local else ""
        click.echo(f"{error:20} {count}{hint}")
    if found.origins:
        click.echo(f"\n{table_of(_OF_ORIGINS, found.origins)}")


# --- sending again ------------------------------------------------------------------------------


@outbox.command(
    epilog=example(
        "pushkit outbox redrive dlv_019bd4…",
        "pushkit outbox redrive --origin https://client.example.com:443 --error status_500",
    )
)
@_outbox
@_chosen_options
@_dry_run_option
def redrive(*, outbox: _Outbox, chosen: _Chosen, dry_run: bool) -> None:
    """Send dead letters again, by ID, filter or --all.

    They keep their ids and seqs, and are sent before pending deliveries. A webhook may get a
    notification that it has received before, if its answer was lost.
    """
    run = outbox.look if dry_run else outbox.change
    redriven = run(lambda admin: admin.redrive(chosen, dry_run=dry_run))
    _print_redriven(redriven, chosen, "dead letter", "dead", dry_run=dry_run)


@outbox.command(
    epilog=example(
        "pushkit outbox resend --task task-1 --from-seq 3",
        "pushkit outbox resend --subscription sub_019bd4… --state cancelled --dry-run",
    )
)
@_outbox
@_chosen_options
@_dry_run_option
@choice_option(
    "--state",
    of=(DeliveryState.DELIVERED, DeliveryState.CANCELLED),
    default=DeliveryState.DELIVERED.value,
    help="With a filter: delivered ones or cancelled ones.",
)
@choice_option(
    "--cancelled-by",
    of=CancelledBy,
    help="With --state cancelled: why they were cancelled.  [default: all but superseded]",
)
@click.option(
    "--from-seq",
    type=click.IntRange(1),
    default=1,
    help="With a filter: only those with this seq or a higher one.",
)
def resend(
    *,
    outbox: _Outbox,
    chosen: _Chosen,
    dry_run: bool,
    state: DeliveryState,
    cancelled_by: CancelledBy | None,
    from_seq: int,
) -> None:
    """Send delivered or cancelled notifications again.

    They are selected by ID, filter or --all. This is for receivers that lost notifications: ids and
    seqs stay the same, so a receiver that remembers them does nothing. Deliveries that were
    cancelled because their subscription was disabled can be sent once it is enabled again.
    """
    if cancelled_by is not None and state is not DeliveryState.CANCELLED:
        raise click.UsageError("--cancelled-by is only for --state cancelled")
    what = "delivery"
    if isinstance(chosen, DeliveryFilter):
        chosen, what = replace(chosen, state=state, cancelled_by=cancelled_by), f"{state} update"
    else:
        refuse_given("state", "cancelled_by", "from_seq", only_for="a filter or --all")
    run = outbox.look if dry_run else outbox.change
    redriven = run(lambda admin: admin.resend(chosen, from_seq=from_seq, dry_run=dry_run))
    _print_redriven(redriven, chosen, what, state, dry_run=dry_run)


@outbox.command(
    "retry-now",
    epilog=example(
        "pushkit outbox retry-now dlv_019bd4…",
        "pushkit outbox retry-now --origin https://client.example.com:443",
    ),
)
@_outbox
@_chosen_options
@_dry_run_option
def retry_now(*, outbox: _Outbox, chosen: _Chosen, dry_run: bool) -> None:
    """Make pending deliveries due now, by ID, filter or --all.

    A running worker then makes the attempts. If the destination waits, because of Retry-After or an
    open breaker, one attempt is made: after a success the others follow, after a failure the
    destination waits again. The order of a subscription stays, and paused ones stay paused.
    """
    run = outbox.look if dry_run else outbox.change
    retried = run(lambda admin: admin.retry_now(chosen, dry_run=dry_run))
    _print_ids(retried.ids, "pending delivery", "due now", dry_run=dry_run)
    if retried.behind:
        click.echo(f"still behind an older one of their subscription: {retried.behind}", err=True)
    if retried.paused:
        click.echo(f"still paused: {retried.paused} (`pushkit subscriptions resume`)", err=True)
    if not retried.ids or (isinstance(chosen, tuple) and retried.skipped):
        raise ConfigError(_not_done("tried", retried.reasons, "pending"))


@outbox.command(epilog=example("pushkit outbox errors"))
@json_option
def errors(*, as_json: bool) -> None:
    """List the error codes for `--error`, and what they mean."""
    if as_json:
        click.echo(json.dumps(ERROR_CODES, indent=2))
    else:
        click.echo(table(("CODE", "MEANS"), *ERROR_CODES.items()))


def _print_redriven(
    redriven: Requeued, chosen: _Chosen, what: str, state: str, *, dry_run: bool
) -> None:
    _print_ids(redriven.ids, what, "pending again", dry_run=dry_run)
    if redriven.ids and not dry_run:
        click.echo(_REPEATS, err=True)
    if not redriven.ids or (isinstance(chosen, tuple) and redriven.skipped):
        raise ConfigError(_not_done("sent again", redriven.reasons, state))
    if redriven.skipped:
        click.echo(_not_done("sent again", redriven.reasons, state), err=True)


def _print_ids(ids: Sequence[str], what: str, done: str, *, dry_run: bool) -> None:
    click.echo(f"{numbered(len(ids), what)} {'would be ' if dry_run else ''}{done}")
    if dry_run:
        for delivery_id in ids[:_SHOWN]:
            click.echo(f"  {delivery_id}")
        if len(ids) > _SHOWN:
            click.echo(f"  … and {len(ids) - _SHOWN} more")


def _not_done(done: str, reasons: Mapping[WhyNot, int], state: str) -> str:
    """Return why deliveries were not changed, and what to do about it."""
    if not reasons:
        hint = _HINTS_OF_NOTHING.get(state, "")
        listing = with_place(f"pushkit outbox list --state {state}")
        return f"nothing matches: see `{listing}`{hint}"
    found = (f"{count} {_HINTS[why]}" for why, count in reasons.items())
    return f"not {done}: {'; '.join(found)}"
