"""`pushkit subscriptions`: shows, pauses, disables, tests and removes subscriptions."""

from __future__ import annotations

import json
from typing import Any, Final, TypeAlias

import click

from pushkit.cli.databases import Outbox, outbox_option
from pushkit.cli.options import filter_options
from pushkit.delivery.documents import subscription_document
from pushkit.delivery.subscription_admin import Changed, SubscriptionAdmin
from pushkit.errors import ConfigError
from pushkit.outbox.inspection import SubscriptionFilter
from pushkit.subscriptions.model import SubscriptionState
from pushkit.terminal.command import json_option
from pushkit.terminal.options import (
    ListPage,
    choice_option,
    chosen_options,
    page_options,
    with_place,
)
from pushkit.terminal.output import columns, example, lines_of, numbered
from pushkit.webui.api import json_of

_COLUMNS: Final = columns(
    "id state TASK=key.task_id key.owner CONFIG=key.config_id A2A=version origin SEQ=last_seq"
    " failing_since"
)
_Outbox: TypeAlias = Outbox[SubscriptionAdmin]
_outbox = outbox_option(SubscriptionAdmin)
_Chosen: TypeAlias = tuple[str, ...] | SubscriptionFilter

_chosen_options = chosen_options(
    SubscriptionFilter, filter_options(SubscriptionFilter), all_says="Every subscription."
)


@click.group(
    epilog=example(
        "pushkit subscriptions list --database outbox.db --owner alice",
        "pushkit subscriptions show sub_019bd4…",
        "pushkit subscriptions pause --origin https://client.example.com:443",
        "pushkit subscriptions enable sub_019bd4… --resend",
    )
)
def subscriptions() -> None:
    """List, pause, disable, test or remove subscriptions.

    Workers may run meanwhile. Tokens and credentials are never shown.
    """


@subscriptions.command(
    "list", epilog=example("pushkit subscriptions list --state disabled --limit 20")
)
@_outbox
@filter_options(
    SubscriptionFilter,
    state=choice_option(
        "--state", of=SubscriptionState, help="Only in this state.  [default: all but withdrawn]"
    ),
)
@page_options()
def list_(*, outbox: _Outbox, wanted: SubscriptionFilter, page: ListPage) -> None:
    """List subscriptions, oldest first.

    A withdrawn subscription belongs to an ended task, and is kept for its dead letters.
    """
    found = outbox.look(lambda admin: admin.find(wanted, after=page.after, limit=page.limit))
    page.show(found, lambda each: json_of(subscription_document(each)), _COLUMNS)


@subscriptions.command(epilog=example("pushkit subscriptions show sub_019bd4… --json"))
@click.argument("subscription_id", metavar="ID")
@_outbox
@json_option
def show(*, subscription_id: str, outbox: _Outbox, as_json: bool) -> None:
    """Show the subscription ID, and count its deliveries by state.

    Only the newest 4,000 deliveries are counted.
    """
    report = outbox.look(lambda admin: admin.show(subscription_id))
    if report is None:
        raise ConfigError(f"there is no subscription {subscription_id!r}: {_see()}")
    found: Any = json_of(subscription_document(report.subscription))
    counts = {state.value: count for state, count in report.deliveries.items()}
    if as_json:
        click.echo(json.dumps({**found, "deliveries": counts}, indent=2))
        return
    click.echo(lines_of(found))
    click.echo(f"{'deliveries':16} {', '.join(f'{n} {state}' for state, n in counts.items())}")


@subscriptions.command(epilog=example("pushkit subscriptions pause sub_019bd4…"))
@_outbox
@_chosen_options
def pause(*, outbox: _Outbox, chosen: _Chosen) -> None:
    """Store updates without delivering them, until `resume`."""
    _print_changed("paused", outbox.change(lambda admin: admin.pause(chosen)))


@subscriptions.command(epilog=example("pushkit subscriptions resume --owner alice"))
@_outbox
@_chosen_options
def resume(*, outbox: _Outbox, chosen: _Chosen) -> None:
    """Deliver again, beginning with what was stored since `pause`."""
    _print_changed("resumed", outbox.change(lambda admin: admin.resume(chosen)))


@subscriptions.command(epilog=example("pushkit subscriptions disable sub_019bd4…"))
@_outbox
@_chosen_options
def disable(*, outbox: _Outbox, chosen: _Chosen) -> None:
    """Send nothing any more, and cancel unfinished deliveries.

    Lasts until `enable`, or until the client registers the same subscription again. To keep the
    deliveries, use `pause` instead.
    """
    _print_changed("disabled", outbox.change(lambda admin: admin.disable(chosen)))


@subscriptions.command(epilog=example("pushkit subscriptions enable sub_019bd4… --resend"))
@_outbox
@_chosen_options
@click.option("--resend", is_flag=True, help="Also send the deliveries that disabling cancelled.")
def enable(*, outbox: _Outbox, chosen: _Chosen, resend: bool) -> None:
    """Enable subscriptions that were disabled.

    A 410, failures or an operator disable them. With --resend, the deliveries that disabling
    cancelled are sent, with the same ids and seqs, and before pending ones.
    """
    changed = outbox.change(lambda admin: admin.enable(chosen, resend=resend))
    if resend:
        resent = numbered(len(changed.deliveries), "cancelled delivery")
        click.echo(f"{resent} pending again")
    elif changed.ids:
        first, *others = changed.ids
        resending = "pushkit outbox resend --state cancelled --cancelled-by disabled"
        click.echo(
            "deliveries that disabling cancelled stay cancelled:"
            f" `{with_place(f'{resending} --subscription {first}')}` sends"
            f" {'those of one' if others else 'them'}",
            err=True,
        )
    _print_changed("enabled", changed)


@subscriptions.command(epilog=example("pushkit subscriptions test sub_019bd4…"))
@_outbox
@_chosen_options
def test(*, outbox: _Outbox, chosen: _Chosen) -> None:
    """Queue a test notification, and print the delivery's id.

    It is sent whatever states a subscription filters: a running worker sends it after deliveries
    that wait already, and `pushkit outbox show` shows the result.
    """
    changed = outbox.change(lambda admin: admin.test(chosen))
    for delivery_id in changed.deliveries:
        click.echo(delivery_id)
    otherwise = "not tested: disabled, or the task has ended"
    _print_changed("will be tested", changed, otherwise=otherwise)


@subscriptions.command(epilog=example("pushkit subscriptions remove sub_019bd4… --yes"))
@_outbox
@_chosen_options
@click.confirmation_option(prompt="Remove them, and cancel their unfinished deliveries?")
def remove(*, outbox: _Outbox, chosen: _Chosen) -> None:
    """Remove subscriptions, and cancel their unfinished deliveries.

    This cannot be undone.
    """
    _print_changed("removed", outbox.change(lambda admin: admin.remove(chosen)))


def _print_changed(done: str, changed: Changed, *, otherwise: str | None = None) -> None:
    those = numbered(len(changed.ids), "subscription")
    click.echo(f"{those} {done}", err=done == "will be tested")
    if changed.unchanged:
        click.echo(
            f"{len(changed.unchanged)} {otherwise or f'unchanged: {done} already'}", err=True
        )
    if changed.missing:
        raise ConfigError(f"there is no subscription {', '.join(changed.missing)}: {_see()}")
    if not changed.ids and not changed.unchanged:
        raise ConfigError(f"no subscription matches: {_see()}")


def _see() -> str:
    return f"see `{with_place('pushkit subscriptions list')}`"
