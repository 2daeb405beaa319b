"""pushkit against what sends and verifies by weak profiles: the first A2A samples, trpc-a2a-go."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from pytest_aiohttp.plugin import AiohttpServer

from pushkit import (
    Algorithm,
    Artifact,
    ArtifactUpdate,
    Profile,
    PushSender,
    RetryPolicy,
    SenderOptions,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    wait_schedule,
)
from pushkit.keys.jwks import JWKS_PATH
from receiver import SenderProfile
from tests.verification.interop.conftest import MakeReceiver, OurSide, attempted
from tests.verification.interop.weak_profiles import (
    SamplesSender,
    SamplesWebhook,
    TrpcSender,
    TrpcWebhook,
    compact,
    marshal,
    spaced_and_escaped,
)
from tests.verification.interop.webhooks import sending

STATUS = TaskStatus(state=TaskState.WORKING)
WORKING = StatusUpdate(task_id="task-1", context_id="c", status=STATUS)
TEXT = "héllo <b>&\u2028 漢字 \U0001f600"
TASK: dict[str, Any] = {
    "id": "task-1",
    "contextId": "context-1",
    "kind": "task",
    "status": {"state": "completed", "timestamp": "2026-01-01T00:00:00.5+00:00"},
    "artifacts": [{"artifactId": "a", "parts": [{"kind": "text", "text": TEXT}]}],
    "metadata": {"ratio": 0.1, "large": 1e20, "count": 3, "none": None},
}
MakeWebhook = Callable[[type[SamplesWebhook] | type[TrpcWebhook]], Awaitable[Any]]


# --- from our sender to their verifiers ---------------------------------------------------------


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[tuple[PushSender, str]]:
    """Our sender with an RS256 key, and its issuer; it does not try twice."""
    options = SenderOptions(retry=RetryPolicy(wait=wait_schedule([3600])))
    async with sending(tmp_path, Algorithm.RS256, options=options) as ours:
        yield ours


@pytest.fixture
def push(ours: tuple[PushSender, str]) -> PushSender:
    return ours[0]


@pytest.fixture
def webhook_of(ours: tuple[PushSender, str], aiohttp_server: AiohttpServer) -> MakeWebhook:
    async def make(kind: type[SamplesWebhook] | type[TrpcWebhook]) -> Any:
        webhook = kind(f"{ours[1]}{JWKS_PATH}")
        server = await aiohttp_server(webhook.app())
        webhook.url = str(server.make_url("/notify"))
        return webhook

    return make


async def notify(
    push: PushSender,
    url: str,
    update: TaskUpdate = WORKING,
    profile: Profile = Profile.STANDARD,
    version: str = "1.0",
) -> list[int | None]:
    """Send one update; return what the webhook answered to all of its task."""
    await push.subscribe("task-1", {"url": url}, version=version, profile=profile)
    await push.notify(update)
    await attempted(push, "task-1")
    return [delivery.last_status for delivery in await push.deliveries("task-1")]


@pytest.mark.parametrize(
    ("version", "update"),
    [
        pytest.param("1.0", WORKING, id="1.0"),
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
async def test_the_samples_verifier_accepts_what_their_profile_sends(
    push: PushSender, webhook_of: MakeWebhook, version: str, update: TaskUpdate
) -> None:
    webhook = await webhook_of(SamplesWebhook)
    assert await notify(push, webhook.url, update, Profile.A2A_SAMPLES, version) == [200]
    assert webhook.refused == []
    assert len(webhook.accepted) == 1


async def test_the_samples_verifier_refuses_the_standard_profile_for_its_audience(
    push: PushSender, webhook_of: MakeWebhook
) -> None:
    webhook = await webhook_of(SamplesWebhook)
    assert await notify(push, webhook.url) == [500]
    [refusal] = webhook.refused
    assert isinstance(refusal, jwt.InvalidAudienceError)


async def test_the_verifier_of_trpc_accepts_our_full_token(
    push: PushSender, webhook_of: MakeWebhook
) -> None:
    webhook = await webhook_of(TrpcWebhook)
    assert await notify(push, webhook.url) == [200]
    assert await notify(push, webhook.url) == [200, 200]
    assert webhook.refused == []
    assert webhook.fetches == 1


async def test_the_verifier_of_trpc_takes_no_other_key_type(
    tmp_path: Path, webhook_of: MakeWebhook, push: PushSender
) -> None:
    """It never asks for its set again either: such a receiver needs RS256 from the start."""
    webhook = await webhook_of(TrpcWebhook)
    await notify(push, webhook.url)
    (tmp_path / "elliptic").mkdir()
    async with sending(tmp_path / "elliptic", Algorithm.ES256) as (elliptic, _):
        assert await notify(elliptic, webhook.url) == [401]
    assert webhook.refused == ["the key is not in the set"]


# --- from their senders to our receiver ---------------------------------------------------------


@dataclass
class Theirs:
    """A sender, how it writes JSON, and our receiver, which trusts it."""

    sender: SamplesSender
    write: Callable[[Any], bytes]
    ours: OurSide

    async def send(self, *, token: str | None = None) -> int:
        token = self.sender.token(TASK) if token is None else token
        return await self.sender.send(self.ours.url, self.write(TASK), token)


@pytest.fixture(
    params=[
        pytest.param((SamplesSender, compact, SenderProfile.A2A_SAMPLES), id="samples"),
        pytest.param((SamplesSender, spaced_and_escaped, SenderProfile.A2A_SAMPLES), id="spaced"),
        pytest.param((TrpcSender, marshal, SenderProfile.TRPC_A2A_GO), id="trpc"),
    ]
)
async def theirs(request: pytest.FixtureRequest, receive_from: MakeReceiver) -> Theirs:
    kind, write, profile = request.param
    sender = kind()
    return Theirs(sender, write, await receive_from(profile, sender.jwks()))


async def test_our_receiver_accepts_what_their_sender_sends(theirs: Theirs) -> None:
    assert await theirs.send() == 202
    [notification] = await theirs.ours.settled("task-1")
    assert notification.state is TaskState.COMPLETED
    assert notification.body == theirs.write(TASK)
    assert notification.kid == theirs.sender.kid


async def test_an_identical_request_is_not_called_back_twice(theirs: Theirs) -> None:
    token = theirs.sender.token(TASK)
    assert [await theirs.send(token=token) for _ in range(3)] == [202, 200, 200]
    assert len(await theirs.ours.settled("task-1")) == 1


@pytest.mark.parametrize("seconds", [-310, 310])
async def test_our_receiver_refuses_a_token_outside_the_window(
    theirs: Theirs, seconds: int
) -> None:
    token = theirs.sender.token(TASK, issued_at=int(time.time()) + seconds)
    assert await theirs.send(token=token) == 401


async def test_a_second_member_of_the_same_name_is_no_second_reading(
    receive_from: MakeReceiver,
) -> None:
    """Parsed and written again, the last member would win, and the hash would be the signed one."""
    samples = SamplesSender()
    ours = await receive_from(SenderProfile.A2A_SAMPLES, samples.jwks())
    doubled = b'{"status":{"state":"failed"},' + compact(TASK)[1:]
    assert json.loads(doubled) == TASK
    assert await samples.send(ours.url, doubled, samples.token(TASK)) == 401


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


async def test_the_samples_profile_accepts_what_trpc_sends(receive_from: MakeReceiver) -> None:
    """The raw bytes are tried first, so that Go's escapes do not matter."""
    go = TrpcSender()
    ours = await receive_from(SenderProfile.A2A_SAMPLES, go.jwks())
    body = marshal(TASK)
    assert b"\\u003cb\\u003e" in body
    assert await go.send(ours.url, body, go.token(TASK)) == 202


async def test_a_body_of_no_version_is_not_taken_for_a_notification(
    receive_from: MakeReceiver,
) -> None:
    """Its examples post an object of their own: signed, and still no A2A."""
    go = TrpcSender()
    ours = await receive_from(SenderProfile.TRPC_A2A_GO, go.jwks())
    said = {"task_id": "task-1", "status": "completed", "timestamp": "now"}
    assert await go.send(ours.url, marshal(said), go.token(said)) == 422


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
