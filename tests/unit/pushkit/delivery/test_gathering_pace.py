"""Gathering in time: the interval, what may have been sent, and a stream of tokens."""

from __future__ import annotations

import pytest

from pushkit import (
    Filter,
    PushSender,
    TaskState,
)
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, claim, deliver_due, status
from tests.unit.pushkit.delivery.gathered import (
    GATHERED,
    chunk,
    gathering_sender,
    posted,
    put_off,
    stored,
    task,
    texts,
    waiting,
)


@pytest.fixture
async def sender(senders: Senders, webhook: Webhook) -> PushSender:
    return await gathering_sender(senders, webhook, "1.0")


@pytest.fixture
async def older(senders: Senders, webhook: Webhook) -> PushSender:
    return await gathering_sender(senders, webhook, "0.3")


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


async def test_a_config_that_is_set_again_ends_the_wait(
    sender: PushSender, webhook: Webhook
) -> None:
    await put_off(sender)
    await sender.notify(chunk("a"))
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    assert await deliver_due(sender) == 1


async def test_a_test_notification_ends_the_wait(sender: PushSender) -> None:
    await put_off(sender)
    await sender.notify(chunk("a"))
    await sender.send_test("task-1")
    assert await deliver_due(sender) == 2


async def test_a_clock_that_is_set_back_delays_no_longer_than_the_interval(
    sender: PushSender, clock: Clock
) -> None:
    await put_off(sender)
    clock.advance(-3600)
    await sender.notify(chunk("a"))
    clock.advance(1)
    assert await deliver_due(sender) == 1


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
