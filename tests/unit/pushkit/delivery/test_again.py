"""retry_now, resend and redrive, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from pushkit import BreakerPolicy, DeliveryFilter, DeliveryState, PushSender
from pushkit.delivery.answers import SUBSCRIPTION_MISSING, TOO_OLD, classify_response
from pushkit.delivery.error_codes import ERROR_CODES, is_error_code
from pushkit.errors import OutboundError, OwnershipError, PushkitError, TransportError
from pushkit.outbox.changes import WhyNot
from pushkit.outbox.states import CancelledBy
from pushkit.webhook import Headers
from tests.clock import START
from tests.eventually import eventually
from tests.unit.pushkit.delivery.conftest import (
    Senders,
    Webhook,
    asks_to_wait,
    deliver_due,
    enqueue,
    states,
    status,
)

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL

EVERYTHING = DeliveryFilter()


BUSY = asks_to_wait(status=429)


async def subscribe(sender: PushSender, webhook: Webhook, tasks: int) -> list[str]:
    names = [f"task-{number}" for number in range(1, tasks + 1)]
    for task_id in names:
        await sender.subscribe(task_id, {"url": webhook.url()}, version="1.0", owner="alice")
    return names


# --- retry_now ----------------------------------------------------------------------------------


async def test_retry_now_sends_one_delivery_to_a_destination_that_asked_to_wait(
    sender: PushSender, webhook: Webhook
) -> None:
    webhook.replies_with(BUSY, BUSY, 200)
    first, *others = await subscribe(sender, webhook, 4)
    await sender.notify(status(task_id=first))
    await deliver_due(sender)
    for task_id in others:
        await sender.notify(status(task_id=task_id))
    await deliver_due(sender)
    assert len(webhook.received) == 1  # the whole destination waits

    assert len((await sender.outbox.retry_now(EVERYTHING)).ids) == 4
    await deliver_due(sender)
    assert len(webhook.received) == 2  # one request, answered with Retry-After again

    await sender.outbox.retry_now(EVERYTHING)
    await deliver_due(sender)
    assert len(webhook.received) == 6
    assert await states(sender) == [DeliveryState.DELIVERED] * 4


async def test_retry_now_sends_one_delivery_through_an_open_breaker(
    senders: Senders, webhook: Webhook
) -> None:
    hours = timedelta(hours=1)
    breaker = BreakerPolicy(failures=2, first_wait=hours, longest_wait=hours)
    sender = await senders.open(breaker=breaker)
    webhook.replies_with(500, 500, 500)
    tasks = await subscribe(sender, webhook, 4)
    for task_id in tasks[:2]:
        await sender.notify(status(task_id=task_id))
    await deliver_due(sender)
    for task_id in tasks[2:]:
        await sender.notify(status(task_id=task_id))
    await sender.outbox.retry_now(EVERYTHING)
    await deliver_due(sender)
    assert len(webhook.received) == 3  # one probe, which failed
    await sender.outbox.retry_now(EVERYTHING)
    await deliver_due(sender)
    assert await states(sender) == [DeliveryState.DELIVERED] * 4


async def test_retry_now_leaves_other_destinations_waiting(
    sender: PushSender, webhook: Webhook
) -> None:
    webhook.replies_with(BUSY)
    await subscribe(sender, webhook, 1)
    await enqueue(sender, webhook.url(), owner="bob")
    webhook.replies_with(BUSY)
    await deliver_due(sender)
    retried = await sender.outbox.retry_now(DeliveryFilter(owner="bob"))
    assert len(retried.ids) == 1
    await deliver_due(sender)
    delivered = DeliveryFilter(state=DeliveryState.DELIVERED)
    assert [found.owner for found in await sender.outbox.find(delivered)] == ["bob"]


@pytest.mark.slow
async def test_retry_now_finds_one_of_many_waiting_destinations(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(concurrency=4, concurrency_per_host=4)
    owners = [f"owner-{number}" for number in range(60)]
    for task_id, replies in (("task-1", [BUSY] * len(owners)), ("task-2", [])):
        webhook.replies_with(*replies)
        for owner in owners:
            await sender.subscribe(task_id, {"url": webhook.url()}, version="1.0", owner=owner)
        await sender.notify(status(task_id=task_id))
        await deliver_due(sender)
    assert len(webhook.received) == len(owners)  # one request each: they all wait
    await sender.outbox.retry_now(DeliveryFilter(owner="owner-7"))
    await deliver_due(sender)
    delivered = await sender.outbox.find(DeliveryFilter(state=DeliveryState.DELIVERED))
    assert [found.owner for found in delivered] == ["owner-7"] * 2


async def test_retry_now_keeps_pauses_and_order(sender: PushSender, webhook: Webhook) -> None:
    webhook.replies_with(500)
    await subscribe(sender, webhook, 2)
    ids = []
    for task_id in ("task-1", "task-1", "task-2"):
        ids += (await sender.notify(status(task_id=task_id))).ids
    await sender.pause("task-2", owner="alice")
    await sender.worker.run_once()
    retried = await sender.outbox.retry_now(ids[1:])
    assert (set(retried.ids), retried.behind, retried.paused) == (set(ids[1:]), 1, 1)
    await deliver_due(sender)
    assert [request.id for request in webhook.received] == ids[:1]
    retried = await sender.outbox.retry_now(EVERYTHING)
    assert retried.ids == (ids[0],)
    await deliver_due(sender)
    assert [request.id for request in webhook.received] == [ids[0], *ids[:2]]


async def test_retry_now_reports_deliveries_that_are_not_pending(
    sender: PushSender, webhook: Webhook
) -> None:
    await subscribe(sender, webhook, 1)
    [delivered] = (await sender.notify(status())).ids
    await deliver_due(sender)
    retried = await sender.outbox.retry_now([delivered, "dlv_unknown"])
    assert (retried.ids, dict(retried.reasons)) == ((), {"delivered": 1, "unknown": 1})
    await deliver_due(sender)
    assert len(webhook.received) == 1


async def test_retry_now_covers_more_than_one_batch(
    sender: PushSender, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pushkit.delivery.admin._BATCH", 2)
    webhook.replies_with(BUSY)
    for task_id in await subscribe(sender, webhook, 5):
        await sender.notify(status(task_id=task_id))
        if not webhook.received:
            await sender.worker.run_once()
    dry = await sender.outbox.retry_now(EVERYTHING, dry_run=True)
    assert len(dry.ids) == 5
    await deliver_due(sender)
    assert len(webhook.received) == 1
    await sender.outbox.retry_now(EVERYTHING)
    await deliver_due(sender)
    assert len(webhook.received) == 6


# --- resend and redrive -------------------------------------------------------------------------


async def test_resent_deliveries_keep_their_order_id_and_seq(
    sender: PushSender, webhook: Webhook
) -> None:
    await subscribe(sender, webhook, 1)
    ids = []
    for _ in range(3):
        ids += (await sender.notify(status())).ids
    await sender.outbox.cancel(ids[:2])
    resent = await sender.outbox.resend(DeliveryFilter(state=DeliveryState.CANCELLED))
    assert sorted(resent.ids) == sorted(ids[:2])
    await deliver_due(sender)
    assert [request.id for request in webhook.received] == ids
    assert [found.seq for found in await sender.deliveries("task-1")] == [1, 2, 3]


async def test_resend_skips_superseded_deliveries_unless_they_are_named(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(coalesce=True, max_backlog_per_subscription=1)
    await subscribe(sender, webhook, 1)
    [superseded] = (await sender.notify(status())).ids
    await sender.notify(status())
    cancelled = DeliveryFilter(state=DeliveryState.CANCELLED)
    [found] = await sender.outbox.find(cancelled)
    assert (found.id, found.cancelled_by) == (superseded, CancelledBy.SUPERSEDED)
    assert (await sender.outbox.resend(cancelled, dry_run=True)).ids == ()
    by_name = DeliveryFilter(state=DeliveryState.CANCELLED, cancelled_by=CancelledBy.SUPERSEDED)
    assert (await sender.outbox.resend(by_name, dry_run=True)).ids == (superseded,)
    assert (await sender.outbox.resend([superseded])).ids == (superseded,)


async def test_resend_skips_deliveries_superseded_by_an_older_version(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(coalesce=True, max_backlog_per_subscription=1)
    await subscribe(sender, webhook, 1)
    await sender.notify(status())
    await sender.notify(status())
    await senders.execute("UPDATE pushkit_deliveries SET cancelled_by = NULL")
    cancelled = DeliveryFilter(state=DeliveryState.CANCELLED)
    assert (await sender.outbox.resend(cancelled, dry_run=True)).ids == ()


async def test_resend_skips_deliveries_of_a_removed_subscription(
    sender: PushSender, webhook: Webhook
) -> None:
    await subscribe(sender, webhook, 1)
    [cancelled] = (await sender.notify(status())).ids
    await sender.unsubscribe("task-1", owner="alice")
    for dry_run in (True, False):
        resent = await sender.outbox.resend([cancelled], dry_run=dry_run)
        assert (resent.ids, dict(resent.reasons)) == ((), {"subscription_removed": 1})


async def test_a_dry_run_reports_what_the_redrive_changes(
    sender: PushSender, webhook: Webhook
) -> None:
    webhook.replies_with(400, 400)
    for task_id in await subscribe(sender, webhook, 2):
        await sender.notify(status(task_id=task_id))
    await deliver_due(sender)
    await sender.disable("task-2", owner="alice")
    dry = await sender.outbox.redrive(EVERYTHING, dry_run=True)
    assert await states(sender) == [DeliveryState.DEAD] * 2
    assert dry == await sender.outbox.redrive(EVERYTHING)
    assert (len(dry.ids), dict(dry.reasons)) == (1, {"subscription_disabled": 1})


# --- error codes --------------------------------------------------------------------------------


def subclasses_of(error: type[PushkitError]) -> Iterator[type[PushkitError]]:
    yield error
    for each in error.__subclasses__():
        yield from subclasses_of(each)


def test_every_error_code_of_an_attempt_is_listed() -> None:
    answers = {classify_response(status, Headers(), START).error for status in range(300, 600)}
    failures = {
        error.code for kind in (TransportError, OwnershipError) for error in subclasses_of(kind)
    }
    assert all(map(is_error_code, {code for code in answers if code} | failures))
    assert failures | {TOO_OLD, SUBSCRIPTION_MISSING} <= set(ERROR_CODES)
    assert all(is_error_code(error.code) for error in subclasses_of(OutboundError))
    assert not any(map(is_error_code, ("", "time_out", "status_", "status_1000", "error 500")))


async def test_retry_now_of_what_is_under_way_leaves_its_destination_waiting(
    sender: PushSender, webhook: Webhook
) -> None:
    await sender.start()
    for task in ("asks to wait", "under way", "behind"):
        await sender.subscribe(task, {"url": webhook.url(f"/{task[0]}")}, version="1.0")
    await sender.subscribe("other", {"url": webhook.url("/o")}, version="1.0", owner="bob")
    webhook.replies_with(asks_to_wait(), path="/a")
    is_answered = webhook.replies_after(path="/u")
    [under_way] = (await sender.notify(status(task_id="under way"))).ids
    await webhook.until_received(1, "/u")
    await sender.notify(status(task_id="asks to wait"))
    await webhook.until_received(1, "/a")

    [waiting] = await eventually(sender.outbox.destinations)
    await sender.notify(status(task_id="behind"))
    retried = await sender.outbox.retry_now([under_way])
    assert (retried.ids, dict(retried.reasons)) == ((), {WhyNot.IN_FLIGHT: 1})
    assert await sender.outbox.destinations() == [waiting]
    for number in range(1, 4):  # another owner's updates are sent meanwhile
        await sender.notify(status(task_id="other"))
        await webhook.until_received(number, "/o")
    assert webhook.at("/b") == []
    is_answered.set()
