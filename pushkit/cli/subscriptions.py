"""`pushkit subscriptions`: who gets what, where, and stopping, testing or removing it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import click

from pushkit.cli.outbox import checked_database, database_option
from pushkit.cli.subscriptions_report import subscription_row
from pushkit.delivery.admin import open_outbox
from pushkit.delivery.documents import subscription_document
from pushkit.delivery.subscription_admin import Changed, SubscriptionAdmin
from pushkit.errors import ConfigError
from pushkit.storage import Access, opened
from pushkit.subscriptions import SubscriptionFilter, SubscriptionState
from pushkit.terminal.command import json_option
from pushkit.terminal.output import example, table

__all__ = ["subscriptions"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_SEE = "see `pushkit subscriptions list`"


def _filter_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    for name, help_ in (
        ("--origin", "To this destination: https://host:port."),
        ("--task", "To this task."),
        ("--owner", "Of this owner."),
        ("--tenant", "Of this tenant."),
    ):
        command = click.option(name, help=help_)(command)
    return command


def _chosen_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Add ids, filters and `--all` to a command that changes subscriptions."""
    command = click.option("--all", "everything", is_flag=True, help="Every subscription.")(command)
    command = _filter_options(command)
    command = database_option(command)
    return click.argument("ids", metavar="[ID]...", nargs=-1)(command)


@click.group(
    epilog=example(
        "pushkit subscriptions list --database outbox.db --owner alice",
        "pushkit subscriptions show sub_019bd4…",
        "pushkit subscriptions pause --origin https://client.example.com:443",
        "pushkit subscriptions enable sub_019bd4… --resend",
    )
)
def subscriptions() -> None:
    """Look at subscriptions; pause, disable, test or remove them. Safe beside running workers.

    Tokens and credentials are never shown.
    """


@subscriptions.command(
    "list", epilog=example("pushkit subscriptions list --state disabled --limit 20")
)
@database_option
@click.option(
    "--state",
    type=click.Choice([state.value for state in SubscriptionState]),
    help="In this state.  [default: any but withdrawn]",
)
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
    """List subscriptions, oldest first.

    A withdrawn one is kept for its dead letters: its task has ended.
    """
    chosen = _filter(wanted, SubscriptionState(state) if state else None)
    found = _look(database, lambda admin: admin.find(chosen, after=after, limit=limit))
    if as_json:
        click.echo(json.dumps([subscription_document(each) for each in found], indent=2))
        return
    headings = ("ID", "STATE", "TASK", "OWNER", "CONFIG", "A2A", "ORIGIN", "SEQ", "FAILING SINCE")
    click.echo(table(headings, *map(subscription_row, found)))
    if len(found) == limit:
        click.echo(f"there may be more: --after {found[-1].id}", err=True)


@subscriptions.command(epilog=example("pushkit subscriptions show sub_019bd4… --json"))
@click.argument("subscription_id", metavar="ID")
@database_option
@json_option
def show(*, subscription_id: str, database: str, as_json: bool) -> None:
    """Show the subscription ID, and how many of its deliveries are in which state."""
    report = _look(database, lambda admin: admin.show(subscription_id))
    if report is None:
        raise ConfigError(f"there is no subscription {subscription_id!r}: {_SEE}")
    found = subscription_document(report.subscription)
    counts = {state.value: count for state, count in report.deliveries.items()}
    if as_json:
        click.echo(json.dumps({**found, "deliveries": counts}, indent=2))
        return
    for name, value in found.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        click.echo(f"{name:16} {'-' if shown in (None, '') else shown}")
    click.echo(f"{'deliveries':16} {', '.join(f'{n} {state}' for state, n in counts.items())}")


@subscriptions.command(epilog=example("pushkit subscriptions pause sub_019bd4…"))
@_chosen_options
def pause(*, ids: tuple[str, ...], database: str, everything: bool, **wanted: str | None) -> None:
    """Keep deliveries back until `resume`; updates are stored meanwhile."""
    chosen = _chosen(ids, wanted, everything=everything)
    _tell("paused", _run(database, lambda admin: admin.pause(chosen)))


@subscriptions.command(epilog=example("pushkit subscriptions resume --owner alice"))
@_chosen_options
def resume(*, ids: tuple[str, ...], database: str, everything: bool, **wanted: str | None) -> None:
    """Deliver what was kept back, in order, and what comes."""
    chosen = _chosen(ids, wanted, everything=everything)
    _tell("resumed", _run(database, lambda admin: admin.resume(chosen)))


@subscriptions.command(epilog=example("pushkit subscriptions disable sub_019bd4…"))
@_chosen_options
def disable(*, ids: tuple[str, ...], database: str, everything: bool, **wanted: str | None) -> None:
    """Send nothing any more, and cancel what is unfinished.

    Until `enable`, or until the client registers the same subscription again. `pause` keeps it back
    instead.
    """
    chosen = _chosen(ids, wanted, everything=everything)
    _tell("disabled", _run(database, lambda admin: admin.disable(chosen)))


@subscriptions.command(epilog=example("pushkit subscriptions enable sub_019bd4… --resend"))
@_chosen_options
@click.option("--resend", is_flag=True, help="Bring back what was cancelled with it.")
def enable(
    *,
    ids: tuple[str, ...],
    database: str,
    everything: bool,
    resend: bool,
    **wanted: str | None,
) -> None:
    """Revive what was disabled: by 410, by nothing but failures, or by hand.

    Deliveries that were cancelled with it are sent with --resend: ids and seqs stay, and they go
    ahead of what is pending.
    """
    chosen = _chosen(ids, wanted, everything=everything)
    changed = _run(database, lambda admin: admin.enable(chosen, resend=resend))
    if resend:
        click.echo(f"{len(changed.deliveries)} cancelled deliveries pending again")
    elif changed.ids:
        click.echo(
            "what was cancelled with it stays so:"
            " `pushkit outbox resend --state cancelled --cancelled-by disabled` sends it",
            err=True,
        )
    _tell("enabled", changed)


@subscriptions.command(epilog=example("pushkit subscriptions test sub_019bd4…"))
@_chosen_options
def test(*, ids: tuple[str, ...], database: str, everything: bool, **wanted: str | None) -> None:
    """Have a test notification sent, whatever the filter is; print the ids of the deliveries.

    A running worker sends it, in its turn: `pushkit outbox show` says what became of it.
    """
    chosen = _chosen(ids, wanted, everything=everything)
    changed = _run(database, lambda admin: admin.test(chosen))
    for delivery_id in changed.deliveries:
        click.echo(delivery_id)
    _tell("will be tested", changed, otherwise="disabled, or their task has ended: not tested")


@subscriptions.command(epilog=example("pushkit subscriptions remove sub_019bd4… --yes"))
@_chosen_options
@click.confirmation_option(prompt="Remove them, and cancel what is unfinished?")
def remove(*, ids: tuple[str, ...], database: str, everything: bool, **wanted: str | None) -> None:
    """Remove subscriptions, and cancel what is unfinished of them for good."""
    chosen = _chosen(ids, wanted, everything=everything)
    _tell("removed", _run(database, lambda admin: admin.remove(chosen)))


def _look(database: str, work: Callable[[SubscriptionAdmin], Awaitable[_R]]) -> _R:
    """Do what only reads: nothing can be written."""
    return asyncio.run(_work_on(checked_database(database), Access.READ, work))


def _run(database: str, work: Callable[[SubscriptionAdmin], Awaitable[_R]]) -> _R:
    """Do what writes, in an outbox that is there."""
    return asyncio.run(_work_on(checked_database(database), Access.WRITE, work))


async def _work_on(
    location: str, access: Access, work: Callable[[SubscriptionAdmin], Awaitable[_R]]
) -> _R:
    async with opened(open_outbox(location), access) as database:
        return await work(SubscriptionAdmin(database))


def _chosen(
    ids: tuple[str, ...], wanted: dict[str, str | None], *, everything: bool
) -> tuple[str, ...] | SubscriptionFilter:
    by_filter = any(value is not None for value in wanted.values())
    if [bool(ids), by_filter, everything].count(True) != 1:
        raise click.UsageError("expected either ids, or a filter, or --all")
    return ids or _filter(wanted)


def _filter(
    wanted: dict[str, str | None], state: SubscriptionState | None = None
) -> SubscriptionFilter:
    return SubscriptionFilter(
        state=state,
        tenant=wanted["tenant"],
        owner=wanted["owner"],
        task_id=wanted["task"],
        origin=wanted["origin"],
    )


def _tell(done: str, changed: Changed, *, otherwise: str | None = None) -> None:
    plural = "" if len(changed.ids) == 1 else "s"
    click.echo(f"{len(changed.ids)} subscription{plural} {done}", err=done == "will be tested")
    if changed.unchanged:
        click.echo(f"{len(changed.unchanged)} {otherwise or f'not: {done} already'}", err=True)
    if changed.missing:
        raise ConfigError(f"there is no subscription {', '.join(changed.missing)}: {_SEE}")
    if not changed.ids and not changed.unchanged:
        raise ConfigError(f"no subscription matches: {_SEE}")
