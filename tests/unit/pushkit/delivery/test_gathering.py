"""Gathering chunks of an artifact, and whole tasks that say the same; on both databases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pushkit import (
    Artifact,
    ArtifactUpdate,
    Filter,
    Message,
    PushSender,
    Role,
    SecretKeys,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from pushkit.bounded_json import JsonValue
from pushkit.outbox.model import Delivery
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import (
    HOOK,
    ON_SQLITE,
    Senders,
    Webhook,
    claim,
    deliver_due,
    status,
)

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


pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL


@pytest.fixture
async def sender(senders: Senders, webhook: Webhook) -> PushSender:
    return await gathering_sender(senders, webhook, "1.0")


# --- chunks ------------------------------------------------------------------------------------


async def test_chunks_that_wait_become_one_with_a_new_id_and_the_last_seq(
    sender: PushSender,
) -> None:
    ids = [(await sender.notify(chunk(word, append=word != "a"))).ids[0] for word in "abc"]
    [gathered] = await stored(sender)
    assert (gathered.id, gathered.seq, texts(gathered.body)) == (ids[-1], 3, "a b c")
    assert not json.loads(gathered.body)["artifactUpdate"].get("append")
    others = await stored(sender, "cancelled")
    assert [(each.id, each.last_error) for each in others] == [
        (each, "superseded") for each in ids[:-1]
    ]


async def test_chunks_that_arrive_in_one_transaction_become_one(sender: PushSender) -> None:
    await asyncio.gather(*(sender.notify(chunk(word)) for word in "abc"))
    [(seq, said)] = await waiting(sender)
    assert (seq, sorted(said.split())) == (3, ["a", "b", "c"])


async def test_append_and_last_chunk_are_what_the_chunks_say_together(sender: PushSender) -> None:
    await sender.notify(chunk("a"))
    await sender.notify(chunk("b", last=True))
    [gathered] = await stored(sender)
    found = json.loads(gathered.body)["artifactUpdate"]
    assert (found["append"], found["lastChunk"]) == (True, True)
    await sender.notify(chunk("c"))  # behind the last one: nothing says what that would be
    assert await waiting(sender) == [(2, "a b"), (3, "c")]


async def test_a_chunk_that_begins_the_artifact_anew_stands_for_those_before(
    sender: PushSender,
) -> None:
    await sender.notify(chunk("draft", append=False))
    await sender.notify(chunk("final", append=False, last=True))
    assert await waiting(sender) == [(2, "final")]


async def test_of_metadata_the_newer_values_stay(sender: PushSender) -> None:
    await sender.notify(chunk("a", metadata={"event": 1, "model": "m"}))
    await sender.notify(chunk("b", metadata={"event": 2}))
    [gathered] = await stored(sender)
    found = json.loads(gathered.body)["artifactUpdate"]
    assert found["metadata"] == {"event": 2, "model": "m"}


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(status("working"), id="a status"),
        pytest.param(chunk("x", artifact_id="artifact-2"), id="another artifact"),
    ],
)
async def test_nothing_is_gathered_over_what_stands_between(
    sender: PushSender, between: StatusUpdate | ArtifactUpdate
) -> None:
    await sender.notify(chunk("a"))
    await sender.notify(between)
    await sender.notify(chunk("b"))
    assert [(seq, said) for seq, said in await waiting(sender) if seq != 2] == [(1, "a"), (3, "b")]


async def test_a_chunk_that_names_its_artifact_anew_is_not_gathered(sender: PushSender) -> None:
    await sender.notify(chunk("a"))
    found = chunk("b")
    await sender.notify(replace(found, artifact=replace(found.artifact, name="Report")))
    assert await waiting(sender) == [(1, "a"), (2, "b")]


async def test_a_gathered_body_is_no_longer_than_bodies_may_be(senders: Senders) -> None:
    sender = await senders.open(max_body_bytes=600)
    await sender.subscribe("task-1", HOOK, version="1.0", filter=GATHERED)
    for _ in range(10):
        await sender.notify(chunk("#" * 100))
    bodies = [each.body for each in await stored(sender)]
    assert 1 < len(bodies) < 10
    assert max(map(len, bodies)) <= 600
    assert sum(body.count(b"#") for body in bodies) == 1000


async def test_what_is_gathered_needs_no_more_of_the_backlog(senders: Senders) -> None:
    sender = await senders.open(max_backlog=2, max_backlog_per_subscription=2)
    await sender.subscribe("task-1", HOOK, version="1.0", filter=GATHERED)
    await sender.notify(status())
    for word in "abc":
        assert (await sender.notify(chunk(word))).ids
    assert (await sender.notify(chunk("x", artifact_id="artifact-2"))).refused
    assert await waiting(sender) == [(1, "TASK_STATE_WORKING"), (4, "a b c")]


async def test_sealed_bodies_are_gathered(senders: Senders) -> None:
    secrets = SecretKeys.generate()
    sender = await senders.open(secrets=secrets, seal_bodies=True)
    await sender.subscribe("task-1", HOOK, version="1.0", filter=GATHERED)
    for word in "ab":
        await sender.notify(chunk(word))
    assert await waiting(sender) == [(2, "a b")]
    other = await senders.open(secrets=SecretKeys.generate(), seal_bodies=True)
    await other.notify(chunk("c"))  # it cannot read what waits
    assert len((await other.notify(status())).ids) == 1


# --- the interval ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["working", "input-required", "auth-required", "completed"])
async def test_a_state_goes_at_once_behind_the_chunks_before_it(
    sender: PushSender, webhook: Webhook, state: str
) -> None:
    await put_off(sender)
    await sender.notify(chunk("a"))
    await sender.notify(status(state))
    assert await deliver_due(sender) == 2
    assert posted(webhook)[1] == "a"


async def test_a_paused_subscription_gathers_and_a_state_ends_its_wait(
    sender: PushSender, webhook: Webhook
) -> None:
    await put_off(sender)
    await sender.pause("task-1")
    for word in "ab":
        await sender.notify(chunk(word))
    await sender.notify(status())
    assert await deliver_due(sender) == 0
    await sender.resume("task-1")
    assert await deliver_due(sender) == 2
    assert posted(webhook) == ["first", "a b", "TASK_STATE_WORKING"]


# --- never what may have been sent -------------------------------------------------------------


async def test_a_chunk_that_is_sent_again_is_not_gathered(sender: PushSender) -> None:
    [first] = (await sender.notify(chunk("a"))).ids
    await deliver_due(sender)
    await sender.outbox.resend([first])
    await sender.notify(chunk("b"))
    assert [each.id == first for each in await stored(sender)] == [True, False]


# --- whole tasks of 0.3 ------------------------------------------------------------------------


@pytest.fixture
async def older(senders: Senders, webhook: Webhook) -> PushSender:
    return await gathering_sender(senders, webhook, "0.3")


async def test_a_whole_task_replaces_a_waiting_one_of_the_same_status(older: PushSender) -> None:
    await older.notify(chunk("a"), snapshot=task("a"))
    await older.notify(chunk("b"), snapshot=task("a", "b"))
    assert await waiting(older) == [(2, "working a b")]
    [before] = await stored(older, "cancelled")
    assert before.last_error == "superseded"


async def test_a_status_that_differs_is_never_swallowed(older: PushSender) -> None:
    snapshots = [
        task("a"),
        task("a", says="half way"),
        task("a", says="nearly"),
        task("a", state=TaskState.INPUT_REQUIRED),
        task("a", state=TaskState.INPUT_REQUIRED),
        task("a", state=TaskState.COMPLETED),
    ]
    for each in snapshots:
        await older.notify(chunk("a"), snapshot=each)
    assert [seq for seq, _ in await waiting(older)] == [1, 2, 3, 4, 5, 6]
    assert await deliver_due(older) == 6


async def test_a_status_message_that_went_to_the_history_is_not_lost(older: PushSender) -> None:
    """Strands streams each word as a message, and a2a-sdk 0.3 keeps them in the history."""
    words = [Message(message_id=w, role=Role.AGENT, parts=(TextPart(text=w),)) for w in "abc"]
    for number, word in enumerate(words):
        spoken = replace(task(), history=tuple(words[:number]))
        spoken = replace(spoken, status=replace(spoken.status, message=word))
        await older.notify(status(), snapshot=spoken)
    [only] = await stored(older)
    document = json.loads(only.body)
    said = [*document["history"], document["status"]["message"]]
    assert [each["messageId"] for each in said] == ["a", "b", "c"]


@pytest.mark.parametrize("state", ["input-required", "completed"])
async def test_a_state_goes_at_once_whatever_the_snapshot_says(
    older: PushSender, webhook: Webhook, state: str
) -> None:
    await older.notify(chunk("a"), snapshot=task("a"))
    assert await deliver_due(older) == 1
    await older.notify(chunk("b"), snapshot=task("a", "b"))
    await older.notify(status(state), snapshot=task("a", "b"))
    assert await deliver_due(older) == 2
    assert posted(webhook) == ["working a", "working a b", "working a b"]


async def test_a_task_without_its_artifacts_does_not_replace_a_whole_one(
    older: PushSender,
) -> None:
    await older.notify(chunk("a"), snapshot=task("a"))
    await older.notify(status())  # without a snapshot, the status alone
    assert len(await waiting(older)) == 2


# --- in time, as SQLite's clock goes -----------------------------------------------------------


@ON_SQLITE
async def test_a_first_chunk_goes_at_once_and_the_next_ones_together_after_the_interval(
    sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    await put_off(sender)
    for word in "abc":
        clock.advance(0.1)
        await sender.notify(chunk(word))
        assert await deliver_due(sender) == 0
    clock.advance(0.7)
    assert await deliver_due(sender) == 1
    assert posted(webhook) == ["first", "a b c"]
    clock.advance(5)
    await sender.notify(chunk("d"))
    assert await deliver_due(sender) == 1


@ON_SQLITE
async def test_a_config_that_is_set_again_ends_the_wait(
    sender: PushSender, webhook: Webhook
) -> None:
    await put_off(sender)
    await sender.notify(chunk("a"))
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    assert await deliver_due(sender) == 1


@ON_SQLITE
async def test_a_test_notification_ends_the_wait(sender: PushSender) -> None:
    await put_off(sender)
    await sender.notify(chunk("a"))
    await sender.send_test("task-1")
    assert await deliver_due(sender) == 2


@ON_SQLITE
async def test_a_clock_that_is_set_back_delays_no_longer_than_the_interval(
    sender: PushSender, clock: Clock
) -> None:
    await put_off(sender)
    clock.advance(-3600)
    await sender.notify(chunk("a"))
    clock.advance(1)
    assert await deliver_due(sender) == 1


@ON_SQLITE
async def test_a_chunk_that_was_attempted_is_not_gathered(
    sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    webhook.replies_with(503)
    await sender.notify(chunk("a"))
    assert await deliver_due(sender) == 1
    for word in "bc":
        await sender.notify(chunk(word))
    assert await waiting(sender) == [(1, "a"), (3, "b c")]
    clock.advance(3600)
    await deliver_due(sender)
    assert posted(webhook) == ["a", "a", "b c"]


@ON_SQLITE
async def test_a_chunk_that_a_dead_worker_had_is_not_gathered(
    senders: Senders, sender: PushSender, clock: Clock
) -> None:
    for word in ("a", "x", "b"):
        await sender.notify(chunk(word, artifact_id=f"artifact-{word}"))
    dead = await senders.open()
    assert await claim(dead)
    clock.advance(3600)
    await claim(sender)  # notes the death of the other one
    await sender.notify(chunk("b", artifact_id="artifact-b"))
    assert (await waiting(sender))[-1] == (4, "b")
    assert await stored(sender, "cancelled") == []


@ON_SQLITE
async def test_whole_tasks_of_one_status_are_posted_once_an_interval(
    older: PushSender, webhook: Webhook, clock: Clock
) -> None:
    for number in range(1, 21):
        await older.notify(chunk("x"), snapshot=task(*"x" * number))
        await deliver_due(older)
        clock.advance(0.1)
    clock.advance(1)
    await deliver_due(older)
    assert [len(said.split()) - 1 for said in posted(webhook)] == [1, 11, 20]


@ON_SQLITE
@pytest.mark.parametrize(
    ("version", "share"), [pytest.param("1.0", 0.2, id="1.0"), pytest.param("0.3", 0.05, id="0.3")]
)
async def test_a_stream_of_400_words_is_a_post_a_second(
    senders: Senders,
    webhook: Webhook,
    clock: Clock,
    version: str,
    share: float,
) -> None:
    sender = await senders.open()
    for path, wanted in (("/each", Filter()), ("/gathered", GATHERED)):
        config = {"id": path, "url": webhook.url(path)}
        await sender.subscribe("task-1", config, version=version, filter=wanted)
    words = [f"word-{number}" for number in range(400)]
    await sender.notify(status("submitted"), snapshot=task(state=TaskState.SUBMITTED))
    await sender.notify(status(), snapshot=task())
    for number, word in enumerate(words):  # forty words a second: ten seconds
        update = chunk(word, append=number > 0, last=number == 399)
        await sender.notify(update, snapshot=task(*words[: number + 1]))
        await deliver_due(sender)
        clock.advance(0.025)
    await sender.notify(status("completed"), snapshot=task(*words, state=TaskState.COMPLETED))
    await deliver_due(sender)
    each, gathered = webhook.at("/each"), webhook.at("/gathered")
    assert len(each) == 403
    assert len(gathered) <= 14
    sizes = [sum(len(request.body) for request in found) for found in (each, gathered)]
    assert sizes[1] < share * sizes[0]
    if version == "1.0":
        said = [texts(request.body) for request in gathered]
        assert " ".join(each for each in said if "TASK" not in each).split() == words
    assert texts(gathered[-1].body).lower().endswith(("completed", words[-1]))
