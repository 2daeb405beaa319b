"""`pushkit outbox`: shows and changes the deliveries in a sender's outbox."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import click

from pushkit.cli.databases import Outbox, outbox_option
from pushkit.cli.options import filter_options
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.documents import report_document
from pushkit.errors import ConfigError
from pushkit.outbox.inspection import DeliveryFilter
from pushkit.outbox.states import DeliveryState
from pushkit.secrets.sealing import SecretKeys
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.terminal.command import LazyGroup, json_option
from pushkit.terminal.options import Page, age_option, choice_option, page_options
from pushkit.terminal.output import (
    columns,
    document,
    example,
    harmless,
    lines_of,
    numbered,
    table_of,
)

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
_OF_ORIGINS: Final = columns("origin pending in_flight dead")


def _admin_of(database: Database) -> OutboxAdmin:
    return OutboxAdmin(database, vault=Vault(SecretKeys.from_environment()))


outbox_of_operators = outbox_option(_admin_of)


@click.group(
    cls=LazyGroup,
    modules=dict.fromkeys(("errors", "redrive", "resend", "retry-now"), "pushkit.cli.outbox_again"),
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
@outbox_of_operators
@filter_options(
    DeliveryFilter,
    state=choice_option("--state", of=DeliveryState, help="Only those in this state."),
)
@page_options()
def list_(*, outbox: Outbox[OutboxAdmin], wanted: DeliveryFilter, page: Page) -> None:
    """List deliveries, oldest first, without their bodies."""
    found = outbox.look(lambda admin: admin.find(wanted, after=page.after, limit=page.limit))
    page.show(found, document, _COLUMNS)


@outbox.command(epilog=example("pushkit outbox show dlv_019bd4… --body"))
@click.argument("delivery_id", metavar="ID")
@outbox_of_operators
@click.option("--body", "with_body", is_flag=True, help="Also show the body.")
@click.option("--answers", "with_answers", is_flag=True, help="Also show the stored answers.")
@json_option
def show(
    *,
    delivery_id: str,
    outbox: Outbox[OutboxAdmin],
    with_body: bool,
    with_answers: bool,
    as_json: bool,
) -> None:
    """Show the delivery ID with all of its attempts."""
    report = outbox.look(lambda admin: admin.show(delivery_id))
    if report is None:
        raise ConfigError(f"there is no delivery {delivery_id!r}: see `pushkit outbox list`")
    if as_json:
        found = report_document(report, with_body=with_body, with_answers=with_answers)
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(lines_of(document(report.delivery)))
    click.echo(f"\n{table_of(_OF_ATTEMPTS, report.attempts)}")
    if with_answers:
        for attempt in report.attempts:
            click.echo(f"\nanswer to attempt {attempt.number}:")
            click.echo("(not stored)" if attempt.answer is None else harmless(attempt.answer))
    if with_body:
        click.echo(f"\n{_SEALED if report.body is None else harmless(report.body)}")


@outbox.command(epilog=example("pushkit outbox cancel dlv_019bd4…"))
@click.argument("ids", nargs=-1, required=True)
@outbox_of_operators
def cancel(*, ids: tuple[str, ...], outbox: Outbox[OutboxAdmin]) -> None:
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
@outbox_of_operators
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
    outbox: Outbox[OutboxAdmin],
    older_than: timedelta | None,
    states: tuple[DeliveryState, ...],
    keep: int | None,
) -> None:
    """Delete finished deliveries and their attempts, in batches."""
    if older_than is None and keep is None:
        raise click.UsageError("expected --older-than or --keep")
    purged = outbox.change(
        lambda admin: admin.purge(older_than=older_than, states=states, per_task=keep)
    )
    click.echo(f"purged {purged}")


@outbox.command(epilog=example("pushkit outbox erase task-1 --yes"))
@click.argument("task")
@outbox_of_operators
@click.option("--tenant", default="", show_default=False, help="The tenant of the task.")
@click.confirmation_option(prompt="Erase the task's deliveries, attempts and subscriptions?")
def erase(*, task: str, outbox: Outbox[OutboxAdmin], tenant: str) -> None:
    """Delete the deliveries, attempts and subscriptions of TASK."""
    erased = outbox.change(lambda admin: admin.erase(task, tenant=tenant))
    if not any(erased):
        raise ConfigError(
            f"found no subscription or delivery of the task {task!r} of tenant {tenant!r}:"
            " --tenant names another one, and `pushkit outbox list` the tasks"
        )
    subscriptions = numbered(erased.subscriptions, "subscription")
    deliveries = numbered(erased.deliveries, "delivery")
    click.echo(f"erased {subscriptions} and {deliveries} of {task}")


@outbox.command(epilog=example("pushkit outbox stats --json"))
@outbox_of_operators
@json_option
def stats(*, outbox: Outbox[OutboxAdmin], as_json: bool) -> None:
    """Count deliveries by state, error and destination."""
    found = outbox.look(lambda admin: admin.stats())
    if as_json:
        click.echo(json.dumps(document(found), indent=2))
        return
    for state, count in found.states.items():
        click.echo(f"{state.value:12} {count}")
    if found.oldest_pending_at is not None:
        waited = datetime.now(UTC) - found.oldest_pending_at
        click.echo(f"oldest       pending for {max(int(waited.total_seconds()), 0)} s")
    for error, count in found.errors.items():
        local = found.local_faults.get(error, 0)
        hint = f" ({local} wait because of a fault on this side)" if local else ""
        click.echo(f"{error:20} {count}{hint}")
    if found.origins:
        click.echo(f"\n{table_of(_OF_ORIGINS, found.origins)}")
