"""pushkit against trpc-a2a-go, in both directions."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from pushkit import Algorithm, KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from receiver import SenderProfile
from tests.verification.interop.conftest import MakeReceiver, attempted
from tests.verification.interop.trpc_a2a_go import TrpcSender, TrpcWebhook, marshal

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aiohttp.plugin import AiohttpServer

TASK: dict[str, Any] = {
    "id": "task-1",
    "contextId": "context-1",
    "kind": "task",
    "status": {"state": "completed"},
    "artifacts": [
        {"artifactId": "a", "parts": [{"kind": "text", "text": "<b>héllo</b> & 漢字\u2028"}]}
    ],
}


@pytest.fixture
async def webhook(push_jwks_url: str, aiohttp_server: AiohttpServer) -> TrpcWebhook:
    webhook = TrpcWebhook(push_jwks_url)
    server = await aiohttp_server(webhook.app())
    webhook.url = str(server.make_url("/notify"))
    return webhook


def working() -> StatusUpdate:
    return StatusUpdate(
        task_id="task-1", context_id="c", status=TaskStatus(state=TaskState.WORKING)
    )


async def test_its_verifier_accepts_our_full_token(push: PushSender, webhook: TrpcWebhook) -> None:
    await push.subscribe("task-1", {"url": webhook.url}, version="1.0")
    for _ in range(2):
        await push.notify(working())
        await attempted(push, "task-1")
    assert [row.last_status for row in await push.deliveries("task-1")] == [200, 200]
    assert webhook.refused == []
    assert webhook.fetches == 1


async def test_its_verifier_takes_no_other_key_type(
    tmp_path: Path, webhook: TrpcWebhook, push: PushSender
) -> None:
    """It never asks for its set again either: such a receiver needs RS256 from the start."""
    await push.subscribe("task-1", {"url": webhook.url}, version="1.0")
    await push.notify(working())
    await attempted(push, "task-1")
    elliptic = PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(datetime.now(UTC), Algorithm.ES256),
        database=tmp_path / "elliptic.db",
        allow=["127.0.0.1:*"],
    )
    async with elliptic:
        await elliptic.subscribe("task-2", {"url": webhook.url}, version="1.0")
        await elliptic.notify(
            StatusUpdate(
                task_id="task-2", context_id="c", status=TaskStatus(state=TaskState.WORKING)
            )
        )
        await attempted(elliptic, "task-2")
        [delivery] = await elliptic.deliveries("task-2")
    assert delivery.last_status == 401
    assert webhook.refused == ["the key is not in the set"]


async def test_our_receiver_accepts_what_its_sender_sends(receive_from: MakeReceiver) -> None:
    go = TrpcSender()
    ours = await receive_from(SenderProfile.TRPC_A2A_GO, go.jwks())
    body = marshal(TASK)
    assert b"\\u003cb\\u003e" in body
    assert await go.send(ours.url, body, go.token(body)) == 202
    [notification] = await ours.settled("task-1")
    assert notification.state is TaskState.COMPLETED
    assert notification.body == body
    assert notification.kid == go.kid


async def test_the_samples_profile_accepts_it_as_well(receive_from: MakeReceiver) -> None:
    """The raw bytes are tried first, so that Go's escapes do not matter."""
    go = TrpcSender()
    ours = await receive_from(SenderProfile.A2A_SAMPLES, go.jwks())
    body = marshal(TASK)
    assert await go.send(ours.url, body, go.token(body)) == 202


async def test_our_receiver_refuses_an_altered_body(receive_from: MakeReceiver) -> None:
    go = TrpcSender()
    ours = await receive_from(SenderProfile.TRPC_A2A_GO, go.jwks())
    body = marshal(TASK)
    altered = body.replace(b"\\u003c", b"<")
    assert await go.send(ours.url, altered, go.token(body)) == 401


async def test_an_identical_request_is_not_called_back_twice(receive_from: MakeReceiver) -> None:
    go = TrpcSender()
    ours = await receive_from(SenderProfile.TRPC_A2A_GO, go.jwks())
    body = marshal(TASK)
    token = go.token(body)
    assert [await go.send(ours.url, body, token) for _ in range(3)] == [202, 200, 200]
    assert len(await ours.settled("task-1")) == 1


@pytest.mark.parametrize("seconds", [-310, 310])
async def test_our_receiver_refuses_a_token_outside_the_window(
    receive_from: MakeReceiver, seconds: int
) -> None:
    go = TrpcSender()
    ours = await receive_from(SenderProfile.TRPC_A2A_GO, go.jwks())
    body = marshal(TASK)
    token = go.token(body, issued_at=int(time.time()) + seconds)
    assert await go.send(ours.url, body, token) == 401


async def test_a_body_of_no_version_is_not_taken_for_a_notification(
    receive_from: MakeReceiver,
) -> None:
    """Its examples post an object of their own: signed, and still no A2A."""
    go = TrpcSender()
    ours = await receive_from(SenderProfile.TRPC_A2A_GO, go.jwks())
    body = marshal({"task_id": "task-1", "status": "completed", "timestamp": "now"})
    assert await go.send(ours.url, body, go.token(body)) == 422


@pytest.mark.parametrize(
    ("expires_in", "status"), [pytest.param(300, 202, id=""), pytest.param(-120, 401, id="expired")]
)
async def test_our_receiver_accepts_what_version_2_sends(
    receive_from: MakeReceiver, expires_in: int, status: int
) -> None:
    """Rebuilt from its description: A2A 1.0, its media type, and `exp`."""
    go = TrpcSender()
    ours = await receive_from(SenderProfile.TRPC_A2A_GO, go.jwks())
    done = {"state": "TASK_STATE_COMPLETED"}
    body = marshal({"statusUpdate": {"taskId": "task-1", "contextId": "c", "status": done}})
    token = go.signed(body, exp=int(time.time()) + expires_in)
    media_type = {"Content-Type": "application/a2a+json"}
    assert await go.send(ours.url, body, token, **media_type) == status
