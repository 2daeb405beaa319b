"""pushkit against the first A2A samples, in both directions."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import aiohttp
import jwt
import pytest

from pushkit import (
    Artifact,
    ArtifactUpdate,
    Profile,
    PushSender,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
)
from receiver import SenderProfile
from tests.verification.interop.a2a_samples import (
    SamplesSender,
    SamplesWebhook,
    compact,
    spaced_and_escaped,
)
from tests.verification.interop.conftest import MakeReceiver, attempted

if TYPE_CHECKING:
    from pytest_aiohttp.plugin import AiohttpServer

STATUS = TaskStatus(state=TaskState.WORKING)
TEXT = "héllo <b>&\u2028 漢字 \U0001f600"
TASK: dict[str, Any] = {
    "id": "task-1",
    "contextId": "context-1",
    "kind": "task",
    "status": {"state": "completed", "timestamp": "2026-01-01T00:00:00.5+00:00"},
    "artifacts": [{"artifactId": "a", "parts": [{"kind": "text", "text": TEXT}]}],
    "metadata": {"ratio": 0.1, "large": 1e20, "count": 3, "none": None},
}


@pytest.fixture
async def webhook(push_jwks_url: str, aiohttp_server: AiohttpServer) -> SamplesWebhook:
    webhook = SamplesWebhook(push_jwks_url)
    server = await aiohttp_server(webhook.app())
    webhook.url = str(server.make_url("/notify"))
    return webhook


async def notify(
    push: PushSender, webhook: SamplesWebhook, update: TaskUpdate, profile: Profile, version: str
) -> int | None:
    """Send one update and return what the webhook answered."""
    await push.subscribe("task-1", {"url": webhook.url}, version=version, profile=profile)
    await push.notify(update)
    await attempted(push, "task-1")
    [delivery] = await push.deliveries("task-1")
    return delivery.last_status


@pytest.mark.parametrize(
    ("version", "update"),
    [
        pytest.param(
            "1.0", StatusUpdate(task_id="task-1", context_id="c", status=STATUS), id="1.0"
        ),
        pytest.param(
            "1.0",
            ArtifactUpdate(
                task_id="task-1",
                context_id="c",
                artifact=Artifact(artifact_id="a", parts=(TextPart(text=TEXT),)),
            ),
            id="1.0 beyond ASCII",
        ),
        pytest.param(
            "0.3",
            TaskSnapshot(
                task=Task(
                    id="task-1",
                    context_id="c",
                    status=STATUS,
                    metadata={"ratio": 0.1, "large": 1e20, "count": 3, "text": TEXT},
                )
            ),
            id="0.3",
        ),
    ],
)
async def test_its_verifier_accepts_what_the_samples_profile_sends(
    push: PushSender, webhook: SamplesWebhook, version: str, update: TaskUpdate
) -> None:
    assert await notify(push, webhook, update, Profile.A2A_SAMPLES, version) == 200
    assert webhook.refused == []
    assert len(webhook.accepted) == 1


async def test_its_verifier_refuses_the_standard_profile_for_its_audience(
    push: PushSender, webhook: SamplesWebhook
) -> None:
    update = StatusUpdate(task_id="task-1", context_id="c", status=STATUS)
    assert await notify(push, webhook, update, Profile.STANDARD, "1.0") == 500
    [refusal] = webhook.refused
    assert isinstance(refusal, jwt.InvalidAudienceError)


@pytest.mark.parametrize("write", [compact, spaced_and_escaped])
async def test_our_receiver_accepts_what_its_sender_sends(
    receive_from: MakeReceiver, write: Any
) -> None:
    samples = SamplesSender()
    ours = await receive_from(SenderProfile.A2A_SAMPLES, samples.jwks())
    assert await samples.send(ours.url, write(TASK), samples.token(TASK)) == 202
    [notification] = await ours.settled("task-1")
    assert notification.state is TaskState.COMPLETED
    assert notification.body == write(TASK)
    assert notification.kid == samples.kid


@pytest.mark.parametrize("write", [compact, spaced_and_escaped])
async def test_our_receiver_refuses_an_altered_body(receive_from: MakeReceiver, write: Any) -> None:
    samples = SamplesSender()
    ours = await receive_from(SenderProfile.A2A_SAMPLES, samples.jwks())
    altered = {**TASK, "status": {"state": "failed"}}
    assert await samples.send(ours.url, write(altered), samples.token(TASK)) == 401


async def test_a_second_member_of_the_same_name_is_no_second_reading(
    receive_from: MakeReceiver,
) -> None:
    """Parsed and written again, the last member would win, and the hash would be the signed one."""
    samples = SamplesSender()
    ours = await receive_from(SenderProfile.A2A_SAMPLES, samples.jwks())
    doubled = b'{"status":{"state":"failed"},' + compact(TASK)[1:]
    assert json.loads(doubled) == TASK
    assert await samples.send(ours.url, doubled, samples.token(TASK)) == 401


async def test_an_identical_request_is_not_called_back_twice(receive_from: MakeReceiver) -> None:
    samples = SamplesSender()
    ours = await receive_from(SenderProfile.A2A_SAMPLES, samples.jwks())
    body, token = spaced_and_escaped(TASK), samples.token(TASK)
    answers = [await samples.send(ours.url, body, token) for _ in range(3)]
    assert answers == [202, 200, 200]
    assert len(await ours.settled("task-1")) == 1


async def test_the_same_signature_over_another_spelling_is_refused(
    receive_from: MakeReceiver,
) -> None:
    """One JWT fits two spellings of one JSON: the second is another body under the same id."""
    samples = SamplesSender()
    ours = await receive_from(SenderProfile.A2A_SAMPLES, samples.jwks())
    token = samples.token(TASK)
    assert await samples.send(ours.url, compact(TASK), token) == 202
    assert await samples.send(ours.url, spaced_and_escaped(TASK), token) == 409
    assert len(await ours.settled("task-1")) == 1


async def test_our_receiver_refuses_a_token_over_five_minutes_old(
    receive_from: MakeReceiver,
) -> None:
    samples = SamplesSender()
    ours = await receive_from(SenderProfile.A2A_SAMPLES, samples.jwks())
    token = samples.token(TASK, issued_at=int(time.time()) - 310)
    assert await samples.send(ours.url, compact(TASK), token) == 401


async def test_our_receiver_refuses_another_key_of_the_same_name(
    receive_from: MakeReceiver,
) -> None:
    samples, forger = SamplesSender(), SamplesSender()
    ours = await receive_from(SenderProfile.A2A_SAMPLES, samples.jwks())
    forger.kid = samples.kid
    assert await samples.send(ours.url, compact(TASK), forger.token(TASK)) == 401


async def test_no_other_profile_hashes_a_second_time(receive_from: MakeReceiver) -> None:
    samples = SamplesSender()
    ours = await receive_from(SenderProfile.TRPC_A2A_GO, samples.jwks())
    assert await samples.send(ours.url, spaced_and_escaped(TASK), samples.token(TASK)) == 401


async def test_the_webhook_proves_its_url(webhook: SamplesWebhook) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(webhook.url, params={"validationToken": "abc"}) as answer,
    ):
        assert await answer.text() == "abc"
