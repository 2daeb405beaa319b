"""`pushkit outbox redrive`, `resend`, `retry-now` and `errors`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import click

from pushkit.cli.databases import Outbox
from pushkit.cli.options import filter_options
from pushkit.cli.outbox import outbox_of_operators
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.again import Redriven, WhyNot
from pushkit.delivery.error_codes import ERROR_CODES
from pushkit.errors import ConfigError
from pushkit.outbox.inspection import DeliveryFilter
from pushkit.outbox.states import CancelledBy, DeliveryState
from pushkit.terminal.command import json_option
from pushkit.terminal.options import choice_option, chosen_options
from pushkit.terminal.output import example, numbered, table

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
_Chosen: TypeAlias = tuple[str, ...] | DeliveryFilter

_chosen_options = chosen_options(
    DeliveryFilter, filter_options(DeliveryFilter), all_says="All of them."
)
_dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)


@click.command(
    epilog=example(
        "pushkit outbox redrive dlv_019bd4…",
        "pushkit outbox redrive --origin https://client.example.com:443 --error status_500",
    )
)
@outbox_of_operators
@_chosen_options
@_dry_run_option
def redrive(*, outbox: Outbox[OutboxAdmin], chosen: _Chosen, dry_run: bool) -> None:
    """Send dead letters again, by ID, filter or --all.

    They keep their ids and seqs, and are sent before pending deliveries. A webhook may get a
    notification that it has received before, if its answer was lost.
    """
    run = outbox.look if dry_run else outbox.change
    redriven = run(lambda admin: admin.redrive(chosen, dry_run=dry_run))
    _print_redriven(redriven, chosen, "dead letter", "dead", dry_run=dry_run)


@click.command(
    epilog=example(
        "pushkit outbox resend --task task-1 --from-seq 3",
        "pushkit outbox resend --subscription sub_019bd4… --state cancelled --dry-run",
    )
)
@outbox_of_operators
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
    outbox: Outbox[OutboxAdmin],
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
    run = outbox.look if dry_run else outbox.change
    redriven = run(lambda admin: admin.resend(chosen, from_seq=from_seq, dry_run=dry_run))
    _print_redriven(redriven, chosen, what, state, dry_run=dry_run)


@click.command(
    "retry-now",
    epilog=example(
        "pushkit outbox retry-now dlv_019bd4…",
        "pushkit outbox retry-now --origin https://client.example.com:443",
    ),
)
@outbox_of_operators
@_chosen_options
@_dry_run_option
def retry_now(*, outbox: Outbox[OutboxAdmin], chosen: _Chosen, dry_run: bool) -> None:
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


@click.command(epilog=example("pushkit outbox errors"))
@json_option
def errors(*, as_json: bool) -> None:
    """List the error codes for `--error`, and what they mean."""
    if as_json:
        click.echo(json.dumps(ERROR_CODES, indent=2))
    else:
        click.echo(table(("CODE", "MEANS"), *ERROR_CODES.items()))


def _print_redriven(
    redriven: Redriven, chosen: _Chosen, what: str, state: str, *, dry_run: bool
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
        hint = "; for cancelled ones use --state cancelled" if state == "delivered" else ""
        return f"nothing matches: see `pushkit outbox list --state {state}`{hint}"
    found = (f"{count} {_HINTS[why]}" for why, count in reasons.items())
    return f"not {done}: {'; '.join(found)}"
