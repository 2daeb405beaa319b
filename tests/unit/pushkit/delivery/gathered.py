"""Chunks and whole tasks for the tests of gathering, and what was stored and posted of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pushkit import (
    Artifact,
    ArtifactUpdate,
    Filter,
    Message,
    PushSender,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from pushkit.bounded_json import JsonValue
from pushkit.outbox.model import Delivery
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, deliver_due

HOOK = {"url": "https://client.example.com/hook"}
SECOND = timedelta(seconds=1)
GATHERED = Filter(min_interval=SECOND)


async def gathering_sender(senders: Senders, webhook: Webhook, version: str) -> PushSender:
    """Return a sender whose webhook gets its task gathered, in a version of A2A."""
    sender = await senders.open()
    await sender.subscribe("task-1", {"url": webhook.url()}, version=version, filter=GATHERED)
    return sender


def chunk(
    text: str,
    *,
    append: bool = True,
    last: bool = False,
    artifact_id: str = "artifact-1",
    metadata: Mapping[str, JsonValue] | None = None,
) -> ArtifactUpdate:
    found = Artifact(artifact_id=artifact_id, parts=(TextPart(text=text),))
    return ArtifactUpdate(
        task_id="task-1",
        context_id="context-1",
        artifact=found,
        append=append,
        last_chunk=last,
        metadata=metadata or {},
    )


def task(*texts: str, state: TaskState = TaskState.WORKING, says: str = "") -> Task:
    message = Message(message_id="m", role=Role.AGENT, parts=(TextPart(text=says),))
    artifact = Artifact(artifact_id="artifact-1", parts=tuple(TextPart(text=t) for t in texts))
    found = TaskStatus(state=state, message=message if says else None)
    return Task(id="task-1", context_id="context-1", status=found, artifacts=(artifact,))


def texts(body: bytes) -> str:
    """Return what a body says: the words of its artifact, or its state."""
    document: Any = json.loads(body)
    if "artifactUpdate" in document:
        return " ".join(part["text"] for part in document["artifactUpdate"]["artifact"]["parts"])
    if "statusUpdate" in document:
        return str(document["statusUpdate"]["status"]["state"])
    found = [part["text"] for each in document.get("artifacts", []) for part in each["parts"]]
    return " ".join([document["status"]["state"], *found])


async def stored(sender: PushSender, state: str = "pending") -> list[Delivery]:
    return [each for each in await sender.deliveries("task-1") if each.state == state]


async def waiting(sender: PushSender) -> list[tuple[int, str]]:
    return [(each.seq, texts(each.body)) for each in await stored(sender)]


def posted(webhook: Webhook) -> list[str]:
    return [texts(each.body) for each in webhook.received]


async def put_off(sender: PushSender) -> None:
    """Post a first chunk, so that the next one waits for the interval."""
    await sender.notify(chunk("first", append=False))
    assert await deliver_due(sender) == 1
