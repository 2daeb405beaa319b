"""`pushkit outbox redrive`, `resend`, `retry-now`: sending again, and sending now."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar

import click

from pushkit.cli.outbox import (
    change_outbox,
    database_option,
    delivery_filter,
    filter_options,
    look_at_outbox,
)
from pushkit.delivery.again import Redriven, WhyNot
from pushkit.delivery.error_codes import ERROR_CODES
from pushkit.errors import ConfigError
from pushkit.outbox import CancelledBy, DeliveryFilter, DeliveryState
from pushkit.terminal.command import json_option
from pushkit.terminal.output import example, table

__all__ = ["errors", "redrive", "resend", "retry_now"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_REPEATS = "a webhook may get what it had already, under the same id"
_SHOWN = 20
_HINTS = {
    WhyNot.UNKNOWN: "not in this outbox",
    WhyNot.PENDING: "pending (`pushkit outbox retry-now`)",
    WhyNot.IN_FLIGHT: "in flight at this moment",
    WhyNot.DELIVERED: "delivered (`pushkit outbox resend`)",
    WhyNot.CANCELLED: "cancelled (`pushkit outbox resend`)",
    WhyNot.DEAD: "dead (`pushkit outbox redrive`)",
    WhyNot.REMOVED: "of a subscription that was removed",
    WhyNot.DISABLED: "of a subscription that is disabled (`pushkit subscriptions enable`)",
}


def _chosen_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add ids, filters, `--all` and `--dry-run` to a command that sends."""
    for name, parameter, help_ in (
        ("--dry-run", "dry_run", "Say what it would do, and do nothing."),
        ("--all", "everything", "Every one there is."),
    ):
        command = click.option(name, parameter, is_flag=True, help=help_)(command)
    command = database_option(filter_options(command))
    return click.argument("ids", metavar="[ID]...", nargs=-1)(command)


@click.command(
    epilog=example(
        "pushkit outbox redrive dlv_019bd4…",
        "pushkit outbox redrive --origin https://client.example.com:443 --error status_500",
    )
)
@_chosen_options
def redrive(
    *,
    ids: tuple[str, ...],
    database: str,
    everything: bool,
    dry_run: bool,
    **wanted: str | None,
) -> None:
    """Send dead letters again: those with these IDS, or those of a filter.

    Id and seq stay, and they go ahead of what is pending. A webhook may get what it had already:
    its answer may have been lost.
    """
    chosen = _chosen(ids, wanted, everything=everything)
    run = look_at_outbox if dry_run else change_outbox
    redriven = run(database, lambda admin: admin.redrive(chosen, dry_run=dry_run))
    _tell_redriven(redriven, "dead letter", "dead", named=bool(ids), dry_run=dry_run)


@click.command(
    epilog=example(
        "pushkit outbox resend --task task-1 --from-seq 3",
        "pushkit outbox resend --subscription sub_019bd4… --state cancelled --dry-run",
    )
)
@_chosen_options
@click.option(
    "--state",
    type=click.Choice([DeliveryState.DELIVERED.value, DeliveryState.CANCELLED.value]),
    default=DeliveryState.DELIVERED.value,
    show_default=True,
    help="With a filter: what was delivered, or what was cancelled.",
)
@click.option(
    "--cancelled-by",
    type=click.Choice([by.value for by in CancelledBy]),
    help="With --state cancelled: by whom or what.  [default: anybody, but not superseded]",
)
@click.option(
    "--from-seq",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="With a filter: from this seq of each subscription on.",
)
def resend(
    *,
    ids: tuple[str, ...],
    database: str,
    everything: bool,
    dry_run: bool,
    state: str,
    cancelled_by: str | None,
    from_seq: int,
    **wanted: str | None,
) -> None:
    """Send again what was delivered, for a receiver that lost it; or what was cancelled.

    Those with these IDS, or those of a filter. Ids and seqs stay: a receiver that still remembers
    them does nothing. What was cancelled with a subscription that was disabled can be sent once
    that is enabled again.
    """
    if cancelled_by is not None and state != DeliveryState.CANCELLED:
        raise click.UsageError("--cancelled-by goes with --state cancelled")
    chosen = _chosen(ids, wanted, everything=everything)
    if isinstance(chosen, DeliveryFilter):
        by = CancelledBy(cancelled_by) if cancelled_by else None
        chosen = replace(chosen, state=DeliveryState(state), cancelled_by=by)
    run = look_at_outbox if dry_run else change_outbox
    redriven = run(database, lambda admin: admin.resend(chosen, from_seq=from_seq, dry_run=dry_run))
    what = "delivery" if ids else f"{state} update"
    _tell_redriven(redriven, what, state, named=bool(ids), dry_run=dry_run)


@click.command(
    "retry-now",
    epilog=example(
        "pushkit outbox retry-now dlv_019bd4…",
        "pushkit outbox retry-now --origin https://client.example.com:443",
    ),
)
@_chosen_options
def retry_now(
    *,
    ids: tuple[str, ...],
    database: str,
    everything: bool,
    dry_run: bool,
    **wanted: str | None,
) -> None:
    """Try what is pending now: those with these IDS, or the next ones of a filter.

    The wait of its destination, by Retry-After or an open breaker, is lifted for one attempt: once
    that is answered the others follow, and if it fails the destination waits again. A pause is not
    lifted, nor the order of a subscription. A running worker makes the attempts.
    """
    chosen = _chosen(ids, wanted, everything=everything)
    run = look_at_outbox if dry_run else change_outbox
    retried = run(database, lambda admin: admin.retry_now(chosen, dry_run=dry_run))
    _tell_ids(retried.ids, "pending delivery", "due now", dry_run=dry_run)
    if retried.behind:
        click.echo(f"still behind an older one of their subscription: {retried.behind}", err=True)
    if retried.paused:
        click.echo(
            f"still paused: {retried.paused} (`pushkit subscriptions resume` ends that)", err=True
        )
    if not retried.ids or (ids and retried.skipped):
        raise ConfigError(_not_done("tried", retried.reasons, "pending"))


@click.command(epilog=example("pushkit outbox errors"))
@json_option
def errors(*, as_json: bool) -> None:
    """List the codes of errors, for `--error`, and what they mean."""
    if as_json:
        click.echo(json.dumps(ERROR_CODES, indent=2))
    else:
        click.echo(table(("CODE", "MEANS"), *ERROR_CODES.items()))


def _chosen(
    ids: tuple[str, ...], wanted: dict[str, str | None], *, everything: bool
) -> tuple[str, ...] | DeliveryFilter:
    by_filter = any(value is not None for value in wanted.values())
    if [bool(ids), by_filter, everything].count(True) != 1:
        raise click.UsageError("expected either ids, or a filter, or --all")
    return ids or delivery_filter(wanted)


def _tell_redriven(
    redriven: Redriven, what: str, state: str, *, named: bool, dry_run: bool
) -> None:
    _tell_ids(redriven.ids, what, "pending again", dry_run=dry_run)
    if redriven.ids and not dry_run:
        click.echo(_REPEATS, err=True)
    if not redriven.ids or (named and redriven.skipped):
        raise ConfigError(_not_done("sent again", redriven.reasons, state))
    if redriven.skipped:
        click.echo(_not_done("sent again", redriven.reasons, state), err=True)


def _tell_ids(ids: Sequence[str], what: str, done: str, *, dry_run: bool) -> None:
    plural = what if len(ids) == 1 else re.sub("y$", "ie", what) + "s"
    click.echo(f"{len(ids)} {plural} {'would be ' if dry_run else ''}{done}")
    if dry_run:
        for delivery_id in ids[:_SHOWN]:
            click.echo(f"  {delivery_id}")
        if len(ids) > _SHOWN:
            click.echo(f"  … and {len(ids) - _SHOWN} more")


def _not_done(done: str, reasons: Mapping[WhyNot, int], state: str) -> str:
    """Return why deliveries were left alone, and what can be done about that."""
    if not reasons:
        hint = "; what was cancelled goes with --state cancelled" if state == "delivered" else ""
        return f"nothing matches: see `pushkit outbox list --state {state}`{hint}"
    said = (f"{count} {_HINTS[why]}" for why, count in reasons.items())
    return f"not {done}: {'; '.join(said)}"
