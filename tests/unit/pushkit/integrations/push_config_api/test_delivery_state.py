"""`GetPushDeliveryState` and `EnablePushNotifications`, over every binding of the API."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from pushkit import (
    PushSender,
    RetryPolicy,
    StatusUpdate,
    TaskState,
    TaskStatus,
    wait_schedule,
)
from pushkit.delivery.error_codes import ERROR_CODES, told_to_client
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, deliver_due
from tests.unit.pushkit.integrations.push_config_api.conftest import Server

NAMED = {"taskId": "task-1", "id": "c"}


@pytest.fixture
async def sender(senders: Senders) -> PushSender:
    retry = RetryPolicy(wait=wait_schedule([3600], jitter=0))
    return await senders.open(retry=retry, disable_after=timedelta(hours=2))


async def notify(sender: PushSender, *states: str) -> None:
    for state in states:
        status = TaskStatus(state=TaskState(state))
        await sender.notify(StatusUpdate(task_id="task-1", context_id="c-1", status=status))


async def subscribe(sender: PushSender, webhook: Webhook, **more: Any) -> None:
    config = {"id": "c", "url": webhook.url()}
    await sender.subscribe("task-1", config, version="1.0", owner="alice", **more)


async def state(server: Server, **more: Any) -> Any:
    answer = await server.call("GetPushDeliveryState", NAMED, **more)
    return answer.get("result", answer.get("error"))


async def test_it_says_how_far_the_deliveries_are(
    server: Server, sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    await subscribe(sender, webhook)
    idle = {"state": "active", "lastSeq": 0, "deliveredSeq": 0, "waiting": 0, "dead": 0}
    assert await state(server) == NAMED | idle

    webhook.replies_with(200, 422, 503)
    await notify(sender, "working", "working", "working", "working")
    await deliver_due(sender)
    failing: dict[str, Any] = {"lastSeq": 4, "deliveredSeq": 1, "waiting": 2, "dead": 1}
    failing |= {"failingSince": "2026-01-01T12:00:00Z", "lastError": "status_503"}
    assert await state(server) == NAMED | {"state": "active", "lastStatus": 503, **failing}

    clock.advance(3600)
    await deliver_due(sender)
    works: dict[str, Any] = {"lastSeq": 4, "deliveredSeq": 4, "waiting": 0, "dead": 1}
    works |= {"lastError": "unprocessable", "lastStatus": 422}
    assert await state(server) == NAMED | {"state": "active", **works}


@pytest.mark.parametrize("version", ["0.1", "0.3", "1.0", None])
async def test_clients_of_every_version_may_ask(
    server: Server, sender: PushSender, webhook: Webhook, version: str | None
) -> None:
    await sender.subscribe("task-1", {"url": webhook.url()}, version="0.3", owner="alice")
    headers = {"A2A_Version": version} if version else {}
    found = await server.call("GetPushDeliveryState", {"taskId": "task-1"}, **headers)
    assert found["result"]["id"] == "task-1"


async def test_http_json_has_it_below_the_config(
    server: Server, sender: PushSender, webhook: Webhook
) -> None:
    await subscribe(sender, webhook)
    path = "/tasks/task-1/pushNotificationConfigs/c"
    found = await server.request("GET", f"{path}/deliveryState")
    assert (found.status_code, found.json()["lastSeq"]) == (200, 0)
    enabled = await server.post(b"{}", f"{path}/enable")
    assert (enabled.status_code, enabled.json()["state"]) == (200, "active")
    other = await server.post(b'{"id": "d"}', f"{path}/enable")
    assert other.status_code == 400
    for method, wrong in (("POST", "deliveryState"), ("GET", "enable")):
        assert (await server.request(method, f"{path}/{wrong}", content=b"{}")).status_code == 405
    assert (await server.request("GET", f"{path}/other")).status_code == 404


async def test_only_the_owner_of_a_config_learns_of_it(
    server: Server, sender: PushSender, webhook: Webhook
) -> None:
    await subscribe(sender, webhook)
    assert (await state(server, user="bob"))["code"] == -32001
    webhook.replies_with(410)
    await notify(sender, "working")
    await deliver_due(sender)
    theirs = await server.call("EnablePushNotifications", NAMED, user="bob")
    assert theirs["error"]["code"] == -32001
    assert (await state(server))["state"] == "disabled"
    elsewhere = await server.call("GetPushDeliveryState", {"taskId": "other", "id": "c"})
    assert elsewhere["error"]["code"] == -32001


@pytest.mark.parametrize(("replies", "by"), [([500, 500, 500], "failing"), ([410], "gone")])
async def test_what_failures_disabled_is_enabled_by_its_client(
    server: Server,
    sender: PushSender,
    webhook: Webhook,
    clock: Clock,
    *,
    replies: list[int],
    by: str,
) -> None:
    await subscribe(sender, webhook)
    webhook.replies_with(*replies)
    await notify(sender, "working")
    for _ in replies:
        await deliver_due(sender)
        clock.advance(3600)
    found = await state(server)
    assert (found["state"], found["disabledBy"], found["waiting"]) == ("disabled", by, 0)
    assert found["lastError"] == {"failing": "status_500", "gone": "gone"}[by]
    assert found["disabledAt"].endswith("Z")

    enabled = (await server.call("EnablePushNotifications", NAMED))["result"]

    assert (enabled["state"], "disabledBy" in enabled) == ("active", False)
    await notify(sender, "completed")
    await deliver_due(sender)
    assert (await state(server))["deliveredSeq"] == 2


async def test_what_an_operator_disabled_stays_so(
    server: Server, sender: PushSender, webhook: Webhook
) -> None:
    await subscribe(sender, webhook)
    await sender.disable("task-1", owner="alice")
    refused = await server.call("EnablePushNotifications", NAMED)
    assert refused["error"]["code"] == -32602
    assert (await state(server))["disabledBy"] == "operator"


async def test_a_finished_task_can_still_be_asked_about(
    server: Server, sender: PushSender, webhook: Webhook
) -> None:
    await subscribe(sender, webhook)
    await notify(sender, "working", "completed")
    await deliver_due(sender)
    found = await state(server)
    assert (found["state"], found["deliveredSeq"]) == ("withdrawn", 2)


async def test_an_answers_body_is_never_told(
    server: Server, sender: PushSender, webhook: Webhook
) -> None:
    await subscribe(sender, webhook)
    webhook.replies_with(lambda: web.Response(status=500, text="internal-detail"))
    await notify(sender, "working")
    await deliver_due(sender)
    assert "internal-detail" not in str(await state(server))


def test_faults_of_the_sender_are_one_code() -> None:
    of_this_side = {code for code in ERROR_CODES if told_to_client(code) == "sender_fault"}
    assert {"key_file", "storage", "egress_proxy", "worker_died", "oauth"} <= of_this_side
    assert told_to_client("another_error_of_this_side") == "sender_fault"
    kept = {"timeout", "gone", "tls_failure", "status_500"}
    assert {told_to_client(code) for code in kept} == kept
    assert told_to_client("status_418") == "status_418"


def test_a_name_that_is_private_is_as_one_that_is_not_there() -> None:
    assert told_to_client("address_refused") == told_to_client("dns_failure") == "unreachable"
