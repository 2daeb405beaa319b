"""`RecoverPushNotifications`: what the outbox keeps is sent again, within bounds."""

from __future__ import annotations

from typing import Any

import pytest

from pushkit import PushSender
from pushkit.events import Event, OutboxChanged
from tests.clock import Clock
from tests.emitted import emitted
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, deliver_due
from tests.unit.pushkit.integrations.push_config_api.conftest import Server
from tests.unit.pushkit.integrations.push_config_api.test_delivery_state import (
    NAMED,
    notify,
    subscribe,
)

DAY = 86_400


@pytest.fixture
async def sender(senders: Senders, events: list[Event]) -> PushSender:
    return await senders.open(on_event=events.append, max_recovered_per_owner=5)


@pytest.fixture(autouse=True)
async def _subscribed(sender: PushSender, webhook: Webhook) -> None:
    await subscribe(sender, webhook)


async def recover(server: Server, user: str = "alice", **wanted: Any) -> Any:
    answer = await server.call("RecoverPushNotifications", NAMED | wanted, user=user)
    return answer.get("result", answer.get("error"))


async def deliver(sender: PushSender, webhook: Webhook, *states: str) -> list[str]:
    """Notify updates, deliver them, and return the ids that arrived."""
    await notify(sender, *states)
    webhook.received.clear()
    await deliver_due(sender)
    return [each.id for each in webhook.received]


async def test_a_range_is_sent_again_with_the_same_ids(
    server: Server,
    sender: PushSender,
    webhook: Webhook,
    events: list[Event],
) -> None:
    ids = await deliver(sender, webhook, *["working"] * 4)
    assert await recover(server, fromSeq=2, toSeq=3) == {"seqs": [2, 3]}
    assert await deliver(sender, webhook, "working") == [*ids[1:3], webhook.received[-1].id]
    assert [each.count for each in emitted(events, OutboxChanged)] == [2]


async def test_a_time_is_sent_again(
    server: Server,
    sender: PushSender,
    webhook: Webhook,
    clock: Clock,
) -> None:
    for _ in range(3):
        await deliver(sender, webhook, "working")
        clock.advance(60)
    since = {"since": "2026-01-01T12:01:00Z"}
    assert await recover(server, **since, until="2026-01-01T12:02:00Z") == {"seqs": [2]}
    await deliver_due(sender)
    assert await recover(server, **since) == {"seqs": [2, 3]}


async def test_http_json_has_it_below_the_config(
    server: Server,
    sender: PushSender,
    webhook: Webhook,
) -> None:
    await deliver(sender, webhook, "working", "working")
    path = "/tasks/task-1/pushNotificationConfigs/c/recover"
    found = await server.post(b'{"fromSeq": 2}', path)
    assert (found.status_code, found.json()) == (200, {"seqs": [2]})


async def test_a_task_that_has_ended_can_be_recovered(
    server: Server,
    sender: PushSender,
    webhook: Webhook,
) -> None:
    ids = await deliver(sender, webhook, "working", "completed")
    assert await sender.subscriptions("task-1", owner="alice") == []
    assert await recover(server) == {"seqs": [1, 2]}
    assert await deliver(sender, webhook) == ids


async def test_dead_letters_and_what_was_cancelled_with_the_config_come_again(
    server: Server,
    sender: PushSender,
    webhook: Webhook,
) -> None:
    webhook.replies_with(422, 410)
    await deliver(sender, webhook, "working", "working", "working", "working")
    refused = await recover(server)
    assert refused["code"] == -32602
    assert "enable it" in refused["message"]
    await server.call("EnablePushNotifications", NAMED)
    assert await recover(server) == {"seqs": [1, 2, 3, 4]}
    assert len(await deliver(sender, webhook)) == 4


async def test_what_is_pending_or_an_operator_cancelled_does_not_come_again(
    server: Server, sender: PushSender
) -> None:
    await notify(sender, "working", "working")
    first, _ = await sender.deliveries("task-1")
    await sender.outbox.cancel([first.id])
    assert await recover(server) == {"seqs": []}


async def test_an_owner_recovers_only_so_many_in_a_day_over_all_tenants(
    server: Server,
    sender: PushSender,
    webhook: Webhook,
    clock: Clock,
) -> None:
    await subscribe(sender, webhook, tenant="acme")
    await deliver(sender, webhook, *["working"] * 4)
    assert await recover(server) == {"seqs": [1, 2, 3, 4]}
    await deliver_due(sender)
    assert await recover(server) == {"seqs": [1], "nextSeq": 2}
    refused = [await recover(server), await recover(server, tenant="acme")]
    assert [each["code"] for each in refused] == [-32602, -32602]
    assert "tomorrow" in refused[0]["message"]
    await deliver_due(sender)
    clock.advance(DAY)
    assert await recover(server) == {"seqs": [1, 2, 3, 4]}


async def test_one_owners_bound_is_not_anothers(
    server: Server,
    sender: PushSender,
    webhook: Webhook,
) -> None:
    await sender.subscribe("task-1", {"id": "c", "url": webhook.url()}, version="1.0", owner="bob")
    await deliver(sender, webhook, *["working"] * 5)
    assert len((await recover(server))["seqs"]) == 5
    assert len((await recover(server, user="bob"))["seqs"]) == 5


async def test_only_the_owner_of_a_config_recovers_it(
    server: Server,
    sender: PushSender,
    webhook: Webhook,
) -> None:
    await deliver(sender, webhook, "working")
    assert (await recover(server, user="bob"))["code"] == -32001
    assert await deliver(sender, webhook) == []


async def test_a_config_that_was_removed_is_not_found(
    server: Server,
    sender: PushSender,
    webhook: Webhook,
) -> None:
    await deliver(sender, webhook, "working")
    await sender.unsubscribe("task-1", owner="alice")
    assert (await recover(server))["code"] == -32001


@pytest.mark.parametrize("wanted", [{"fromSeq": "x"}, {"since": "yesterday"}, {"until": 7}])
async def test_a_wrong_parameter_is_refused(server: Server, wanted: dict[str, Any]) -> None:
    assert (await recover(server, **wanted))["code"] == -32602


@pytest.mark.parametrize("last", [-1, -(2**70)])
async def test_a_range_that_ends_before_the_first_is_empty(
    server: Server, sender: PushSender, webhook: Webhook, last: int
) -> None:
    await deliver(sender, webhook, "working")
    assert await recover(server, toSeq=last) == {"seqs": []}
