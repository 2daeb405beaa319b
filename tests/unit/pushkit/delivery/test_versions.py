"""Subscribers of all A2A versions get bodies of their own version."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pushkit import (
    Artifact,
    ArtifactUpdate,
    Message,
    PushSender,
    Role,
    StatusUpdate,
    TaskSnapshot,
    TextPart,
    WireVersion,
    decode_update,
)
from pushkit.a2a import parse_update
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, deliver_due, status, task

CONFIGS: dict[WireVersion, Callable[[str], dict[str, Any]]] = {
    WireVersion.V0_1: lambda url: {"id": "task-1", "pushNotificationConfig": {"url": url}},
    WireVersion.V0_3: lambda url: {"taskId": "task-1", "pushNotificationConfig": {"url": url}},
    WireVersion.V1_0: lambda url: {"taskId": "task-1", "url": url},
    WireVersion.AGENTVAULT_0_2: lambda url: {"webhookUrl": url},
}


async def subscribe_all(sender: PushSender, webhook: Webhook) -> None:
    for version, config in CONFIGS.items():
        url = webhook.url(f"/{version}")
        await sender.subscribe("task-1", config(url), version=version, owner=version)


def bodies(webhook: Webhook) -> dict[str, Any]:
    return {each.path.removeprefix("/"): json.loads(each.body) for each in webhook.received}


async def test_each_version_gets_its_own_body_of_a_status(
    sender: PushSender, webhook: Webhook
) -> None:
    await subscribe_all(sender, webhook)
    await sender.notify(status(), snapshot=task())
    await deliver_due(sender)

    found = bodies(webhook)
    assert found["0.1"].keys() == {"id", "taskId", "status", "final"}
    assert found["0.3"]["kind"] == "task"
    assert found["1.0"].keys() == {"statusUpdate"}
    assert found["agentvault-0.2"].keys() == {"taskId", "state", "timestamp"}
    for each in webhook.received:
        stated = each.headers.one("A2A-Version")
        update = decode_update(each.body, stated)
        assert update.origin == stated == each.path.removeprefix("/")
        assert update.task_id == "task-1"
        assert update.state == "working"


async def test_each_version_gets_its_own_body_of_an_artifact(
    sender: PushSender, webhook: Webhook
) -> None:
    await subscribe_all(sender, webhook)
    artifact = Artifact(artifact_id="a", parts=(TextPart(text="hi"),))
    update = ArtifactUpdate(task_id="task-1", context_id="c", artifact=artifact)
    await sender.notify(update, snapshot=replace(task(), artifacts=(artifact,)))
    await deliver_due(sender)

    found = bodies(webhook)
    assert found["0.1"]["artifacts"] == [{"parts": [{"type": "text", "text": "hi"}], "index": 0}]
    assert found["0.3"]["artifacts"][0]["artifactId"] == "a"
    assert found["1.0"]["artifactUpdate"]["artifact"]["artifactId"] == "a"
    assert found["agentvault-0.2"]["artifact"] == {"id": "a", "type": "text", "content": "hi"}


LARGE = Artifact(artifact_id="a", parts=(TextPart(text="x" * 500),))
NAMELESS = Message(message_id="", role=Role.AGENT, parts=(TextPart(text="hi"),))


@pytest.mark.parametrize("is_whole", [False, True], ids=["a status", "the task itself"])
@pytest.mark.parametrize(
    ("cannot_be_sent", "reason"),
    [
        pytest.param({"artifacts": (LARGE,)}, "expected at most 500", id="too large"),
        pytest.param({"history": (NAMELESS,)}, "history.0.messageId: expected", id="not encoded"),
    ],
)
async def test_a_0_3_client_gets_the_status_of_a_task_that_cannot_be_sent_whole(
    senders: Senders,
    caplog: pytest.LogCaptureFixture,
    *,
    cannot_be_sent: dict[str, Any],
    reason: str,
    is_whole: bool,
) -> None:
    sender = await senders.open(max_body_bytes=500)
    await sender.subscribe("task-1", {"url": "https://client.example.com/a2a"}, version="0.3")
    snapshot = replace(task(state="completed"), **cannot_be_sent)

    if is_whole:
        result = await sender.notify(TaskSnapshot(task=snapshot))
    else:
        result = await sender.notify(status("completed"), snapshot=snapshot)

    assert result.refused == ()
    [delivery] = await sender.deliveries("task-1")
    said = json.loads(delivery.body)
    assert said.keys() == {"kind", "id", "contextId", "status"}
    assert said["status"]["state"] == "completed"
    assert "clients of A2A 0.3 get only its status: " in caplog.text
    assert reason in caplog.text


def nested(levels: int) -> dict[str, Any]:
    value: Any = "innermost"
    for _ in range(levels):
        value = [value]
    return {"deep": value}


LONG = replace(NAMELESS, message_id="m", parts=(TextPart(text="x" * 500),))
DEEP = replace(NAMELESS, message_id="m", metadata=nested(61))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(NAMELESS, "message.messageId: expected", id="without an id"),
        pytest.param(LONG, "expected at most 500", id="too large"),
        pytest.param(DEEP, "nested deeper than 64 levels", id="too deep"),
    ],
)
async def test_a_0_3_client_gets_the_end_of_a_task_without_a_message_that_cannot_be_sent(
    senders: Senders, caplog: pytest.LogCaptureFixture, *, message: Message, reason: str
) -> None:
    sender = await senders.open(max_body_bytes=500)
    await sender.subscribe("task-1", {"url": "https://client.example.com/a2a"}, version="0.3")
    await sender.subscribe(
        "task-1", {"url": "https://client.example.com/a2a"}, version="1.0", owner="bob"
    )
    said = status("completed")

    result = await sender.notify(replace(said, status=replace(said.status, message=message)))

    assert [each.owner for each in result.refused] == ["bob"]
    [delivery] = await sender.deliveries("task-1")
    update = decode_update(delivery.body)
    assert isinstance(update, TaskSnapshot)
    assert (update.state, update.task.status.message) == ("completed", None)
    assert "clients of A2A 0.3 get only its status: " in caplog.text
    assert reason in caplog.text


async def test_bodies_are_nested_no_deeper_than_receivers_accept(sender: PushSender) -> None:
    await sender.subscribe("task-1", {"url": "https://client.example.com/a2a"}, version="1.0")
    artifact = Artifact(artifact_id="a", parts=(TextPart(text="x"),), metadata=nested(61))
    refused: list[tuple[str, str]] = []
    for update in (
        replace(status(), metadata=nested(61)),
        # Three levels enclose these: response, event, metadata; and an artifact is a fourth.
        replace(status(), metadata=nested(62)),
        ArtifactUpdate(task_id="task-1", context_id="context-1", artifact=artifact),
    ):
        result = await sender.notify(update)
        refused += [(each.code, each.message) for each in result.refused]

    sent = [decode_update(each.body) for each in await sender.deliveries("task-1")]
    assert [each.metadata for each in sent if isinstance(each, StatusUpdate)] == [nested(61)]
    assert refused == [("invalid_update", "nested deeper than 64 levels")] * 2


async def test_every_version_gets_a_test_notification_of_its_own(
    sender: PushSender, webhook: Webhook
) -> None:
    await subscribe_all(sender, webhook)
    for version in CONFIGS:
        assert len(await sender.send_test("task-1", owner=version)) == 1
    await deliver_due(sender)
    assert {each.path for each in webhook.received} == {f"/{version}" for version in CONFIGS}
    for each in webhook.received:
        assert decode_update(each.body).origin == each.path.removeprefix("/")


async def test_a_delivery_states_the_version_of_its_body_after_the_subscription_has_another(
    sender: PushSender, webhook: Webhook
) -> None:
    for version in (WireVersion.V0_3, WireVersion.V0_1):
        config = CONFIGS[version](webhook.url(f"/{version}"))
        await sender.subscribe("task-1", config, version=version)
        await sender.notify(status(), snapshot=task())
    await deliver_due(sender)
    stated = [each.headers.one("A2A-Version") for each in webhook.received]
    assert stated == ["0.3", "0.1"]
    assert [decode_update(each.body).origin for each in webhook.received] == stated


async def test_an_update_of_a_later_kind_is_sent_as_it_is_and_the_task_to_earlier_clients(
    sender: PushSender, webhook: Webhook
) -> None:
    await subscribe_all(sender, webhook)
    document: dict[str, Any] = {"messageUpdate": {"taskId": "task-1", "generation": 7}}
    result = await sender.notify(parse_update(document), snapshot=task())
    await deliver_due(sender)

    found = bodies(webhook)
    assert found["1.0"] == document
    assert found["0.3"]["kind"] == "task"
    assert found["0.1"]["id"] == "task-1"
    [refused] = result.refused  # AgentVault has no notification of a task
    assert refused.code == "invalid_update"
