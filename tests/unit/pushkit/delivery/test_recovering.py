"""`PushSender.progress` and `recover`, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio

import pytest

from pushkit import PushSender
from pushkit.errors import InvalidPushConfigError
from pushkit.outbox.clients import Recovered, WantedDeliveries
from pushkit.subscriptions.model import SubscriptionKey
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, deliver_due, status

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL
KEY = SubscriptionKey("", "task-1", "alice", "task-1")


@pytest.fixture
async def sender(sender: PushSender, webhook: Webhook) -> PushSender:
    """Return a sender for which the config of `KEY` is registered."""
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="alice")
    return sender


async def test_a_large_config_is_recovered_in_steps(sender: PushSender, webhook: Webhook) -> None:
    await asyncio.gather(*(sender.notify(status()) for _ in range(201)))
    await deliver_due(sender)

    first = await sender.recover(KEY)
    assert first == Recovered(tuple(range(1, 201)), 201)
    assert await sender.recover(KEY, WantedDeliveries(from_seq=201)) == Recovered((201,), None)
    progress = await sender.progress(KEY)
    assert progress is not None
    assert (progress.waiting, progress.delivered_seq) == (201, 0)

    await deliver_due(sender)
    assert len(webhook.received) == 402
    assert len({each.id for each in webhook.received}) == 201
    assert await sender.recover(KEY._replace(config_id="other")) is None
    assert await sender.progress(KEY._replace(owner="bob")) is None


async def test_progress_tells_the_newest_failure_that_was_not_made_good(
    sender: PushSender, webhook: Webhook
) -> None:

    async def last_error(*answers: int) -> str | None:
        for answer in answers:
            webhook.replies_with(answer)
            await sender.notify(status())
            await deliver_due(sender)
        progress = await sender.progress(KEY)
        assert progress is not None
        return progress.last_error

    assert await last_error(422, 200) == "unprocessable"
    [dead, _] = await sender.deliveries("task-1")
    webhook.replies_with(200)
    await sender.outbox.redrive([dead.id])
    await deliver_due(sender)
    assert await last_error(200) is None


async def test_calls_at_once_share_one_bound(senders: Senders, webhook: Webhook) -> None:
    sender = await senders.open(max_recovered_per_owner=5)
    keys = [KEY._replace(task_id=f"task-{n}", config_id="c") for n in range(4)]
    for key in keys:
        config = {"id": "c", "url": webhook.url()}
        await sender.subscribe(key.task_id, config, version="1.0", owner="alice")
        for _ in range(2):
            await sender.notify(status(task_id=key.task_id))
    await deliver_due(sender)

    found = await asyncio.gather(*map(sender.recover, keys), return_exceptions=True)

    recovered = [each for each in found if isinstance(each, Recovered)]
    assert sum(len(each.seqs) for each in recovered) == 5
    others = [each for each in found if not isinstance(each, Recovered)]
    assert [type(each) for each in others] == [InvalidPushConfigError]


async def test_a_call_reads_only_so_many_deliveries(
    sender: PushSender, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook.replies_with(422)
    for _ in range(5):
        await sender.notify(status())
    await deliver_due(sender)
    progress = await sender.progress(KEY)
    assert progress is not None
    assert (progress.dead, progress.last_error) == (1, "unprocessable")

    monkeypatch.setattr("pushkit.outbox.clients._MOST_READ", 2)

    progress = await sender.progress(KEY)
    assert progress is not None
    assert (progress.dead, progress.delivered_seq) == (0, 5)
    assert await sender.recover(KEY, WantedDeliveries(to_seq=3)) == Recovered((1, 2), 3)
    assert await sender.recover(KEY, WantedDeliveries(3, 3)) == Recovered((3,), None)


@pytest.mark.parametrize(
    "wanted", [WantedDeliveries(10**30), WantedDeliveries(-(10**30), -1), WantedDeliveries(2, 1)]
)
async def test_a_range_without_any_is_no_error(
    sender: PushSender, wanted: WantedDeliveries
) -> None:
    await sender.notify(status())
    await deliver_due(sender)
    assert await sender.recover(KEY, wanted) == Recovered((), None)
    assert await sender.recover(KEY, WantedDeliveries(-(10**30), 10**30)) == Recovered((1,), None)


async def test_what_may_be_answered_and_is_not_settled_yet_is_sent_again(
    sender: PushSender, webhook: Webhook
) -> None:
    for _ in range(2):
        await sender.notify(status())
    answering = webhook.replies_after()
    delivering = asyncio.create_task(deliver_due(sender))
    await webhook.until_received(1)

    assert await sender.recover(KEY, WantedDeliveries(to_seq=1)) == Recovered((1,), None)
    answering.set()
    await delivering

    first, second = dict.fromkeys(each.id for each in webhook.received)
    assert sorted(each.id for each in webhook.received) == sorted([first, first, second])
    report = await sender.outbox.show(first)
    assert report is not None
    assert (report.delivery.state, len(report.attempts)) == ("delivered", 2)
