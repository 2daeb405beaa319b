"""Snapshots on registration: first, with nothing missed, whatever happens meanwhile."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from pushkit import Artifact, Filter, PushSender, SecretKeys, Task, TextPart
from pushkit.a2a import Message, Part, Role, UnknownPart
from pushkit.delivery.snapshots import HELD_FOR
from pushkit.errors import InvalidPushConfigError, InvalidUpdateError, StorageError
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import (
    ON_SQLITE,
    Senders,
    Webhook,
    deliver_due,
    status,
    task,
)

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL
STEPS = 7  # moments of a registration at which an update can come


@dataclass
class Agent:
    """A task store whose task changes at a step of a registration, and is notified then."""

    sender: PushSender
    at: int = 0  # the step at which the next change comes; 0 for never
    changes: int = 1  # how many come then
    number: int = 0  # how many changes are stored
    step: int = 0
    snapshots: list[int] = field(default_factory=list)

    async def turn(self) -> None:
        self.step += 1
        for _ in range(self.changes if self.step == self.at else 0):
            await self.change()

    async def change(self) -> None:
        self.number += 1
        await self.sender.notify(replace(status(), metadata={"n": self.number}))

    async def read(self, owner: str) -> Task:
        assert owner == "alice"
        await self.turn()
        found = replace(task(), metadata={"n": self.number})
        await self.turn()
        return found


def said(webhook: Webhook) -> list[tuple[str, int]]:
    """Return the kind of each notification, and the number of the change that it tells of."""
    found = []
    for each in webhook.at("/hook"):
        [(kind, inner)] = json.loads(each.body).items()
        found.append((kind, int(inner.get("metadata", {}).get("n", 0))))
    return found


async def subscribe(sender: PushSender, webhook: Webhook, snapshot: Any, **more: Any) -> int:
    more = {"version": "1.0", "owner": "alice"} | more
    found = await sender.subscribe("task-1", {"url": webhook.url()}, snapshot=snapshot, **more)
    return found.last_seq


@pytest.mark.parametrize("changes", [1, 2])
@pytest.mark.parametrize("at", range(1, STEPS + 1))
async def test_no_change_is_missed_and_none_comes_before_the_snapshot(
    senders: Senders, sender: PushSender, webhook: Webhook, *, at: int, changes: int
) -> None:
    """Changes at each step: around each read, and around each transaction."""
    agent = Agent(sender, at=at, changes=changes, number=3)
    write = sender._database.write_patiently

    async def write_between(make: Any) -> Any:
        await agent.turn()
        done = await write(make)
        await deliver_due(sender)  # as a worker does that is quick
        return done

    sender._database.write_patiently = write_between  # type: ignore[method-assign]
    assert await subscribe(sender, webhook, agent.read) == 1
    await agent.turn()  # after it
    await deliver_due(sender)

    (kind, in_snapshot), *others = said(webhook)
    assert kind == "task"
    assert {*range(1, in_snapshot + 1), *(n for _, n in others)} == set(range(1, agent.number + 1))
    assert agent.step == STEPS
    assert [n for _, n in others] == sorted(n for _, n in others)
    seqs = [each.claims(senders.public_keys()).seq for each in webhook.received]
    assert seqs == list(range(1, len(seqs) + 1))


async def test_a_task_that_is_not_there_yet_has_no_snapshot(
    sender: PushSender, webhook: Webhook
) -> None:
    async def none(_: str) -> None:
        return None

    assert await subscribe(sender, webhook, none) == 0


async def test_a_task_that_was_made_meanwhile_is_sent(sender: PushSender, webhook: Webhook) -> None:
    made: list[Task | None] = [None, task(), task(), task()]

    async def read(_: str) -> Task | None:
        return made.pop(0)

    assert await subscribe(sender, webhook, read) == 1
    assert await deliver_due(sender) == 1


async def test_registering_again_adds_a_snapshot_at_the_end(
    sender: PushSender, webhook: Webhook
) -> None:
    agent = Agent(sender)
    await subscribe(sender, webhook, agent.read)
    await agent.change()
    assert await subscribe(sender, webhook, agent.read) == 3
    await agent.change()
    await deliver_due(sender)
    assert said(webhook) == [("task", 0), ("statusUpdate", 1), ("task", 1), ("statusUpdate", 2)]


async def test_it_is_sent_whatever_the_filter(sender: PushSender, webhook: Webhook) -> None:
    wanted = Filter(kinds=["status-update"], min_interval=timedelta(seconds=1))
    await subscribe(sender, webhook, task(), filter=wanted)
    assert await deliver_due(sender) == 1


async def test_an_update_that_is_gathered_does_not_replace_a_held_snapshot(
    senders: Senders, sender: PushSender, webhook: Webhook
) -> None:
    async def read(_: str) -> Task:
        await sender.notify(status(), snapshot=task())
        return task()

    await subscribe(
        sender, webhook, read, version="0.3", filter=Filter(min_interval=timedelta(seconds=1))
    )
    await deliver_due(sender)
    assert [each.claims(senders.public_keys()).seq for each in webhook.received][:1] == [1]


@ON_SQLITE
async def test_what_an_agent_that_died_held_goes_out_when_the_hold_is_over(
    sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    reads = 0

    async def read(_: str) -> Task:
        nonlocal reads
        reads += 1
        if reads == 2:
            raise ConnectionError("the store is gone")
        return task()

    with pytest.raises(ConnectionError):
        await subscribe(sender, webhook, read)
    await sender.notify(status())
    assert await deliver_due(sender) == 0
    clock.advance(HELD_FOR.total_seconds() + 1)
    await deliver_due(sender)
    assert [kind for kind, _ in said(webhook)] == ["task", "statusUpdate"]


@ON_SQLITE
async def test_a_snapshot_that_went_before_it_was_filled_is_followed_by_another(
    sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    agent, reads = Agent(sender), 0

    async def read(owner: str) -> Task:
        nonlocal reads
        reads += 1
        if reads == 2:
            clock.advance(HELD_FOR.total_seconds() + 1)
            await deliver_due(sender)
            agent.number += 1  # stored, and notified before anybody had subscribed
        return await agent.read(owner)

    await subscribe(sender, webhook, read)
    await deliver_due(sender)
    assert said(webhook) == [("task", 0), ("task", 1)]


@ON_SQLITE
async def test_a_store_that_is_always_too_slow_is_an_error(
    sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    async def read(_: str) -> Task:
        clock.advance(HELD_FOR.total_seconds() + 1)
        return task()

    with pytest.raises(StorageError, match="took longer"):
        await subscribe(sender, webhook, read)


async def test_a_subscription_that_was_removed_meanwhile_gets_nothing(
    sender: PushSender, webhook: Webhook
) -> None:
    reads = 0

    async def read(_: str) -> Task:
        nonlocal reads
        reads += 1
        if reads == 2:
            await sender.unsubscribe("task-1", owner="alice")
        return task()

    await subscribe(sender, webhook, read)
    assert await deliver_due(sender) == 0


async def test_a_task_that_is_too_large_is_sent_without_its_artifacts(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(max_body_bytes=1000)
    large = replace(
        task(), artifacts=(Artifact(artifact_id="a", parts=(TextPart(text="x" * 2000),)),)
    )
    await subscribe(sender, webhook, large)
    await deliver_due(sender)
    [sent] = webhook.received
    assert json.loads(sent.body)["task"]["status"]["state"] == "TASK_STATE_WORKING"


@pytest.mark.parametrize("version", ["0.3", "1.0"])
@pytest.mark.parametrize("parts", [(UnknownPart(),), (TextPart(text="x" * 2000),)])
async def test_a_status_that_cannot_be_sent_with_its_message_is_sent_without(
    senders: Senders, webhook: Webhook, version: str, parts: tuple[Part, ...]
) -> None:
    sender = await senders.open(max_body_bytes=1000)
    said = Message(message_id="m", role=Role.AGENT, parts=parts)
    odd = replace(task(), status=replace(task().status, message=said))
    await subscribe(sender, webhook, odd, version=version)
    await deliver_due(sender)
    [sent] = webhook.received
    found = json.loads(sent.body)
    assert "message" not in found.get("task", found)["status"]


async def test_the_snapshot_of_another_task_is_refused(
    sender: PushSender, webhook: Webhook
) -> None:
    with pytest.raises(InvalidUpdateError, match="expected the task that is subscribed to"):
        await subscribe(sender, webhook, task("task-2"))
    assert await sender.subscriptions("task-1", owner="alice") == []


async def test_registering_again_and_again_does_not_fill_the_disk(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(max_backlog_per_subscription=3)
    for _ in range(3):
        await subscribe(sender, webhook, task())
    with pytest.raises(InvalidPushConfigError, match="too many unfinished"):
        await subscribe(sender, webhook, task())
    assert len(await sender.deliveries("task-1")) == 3


async def test_bodies_are_sealed_where_bodies_are(senders: Senders, webhook: Webhook) -> None:
    sender = await senders.open(secrets=SecretKeys.generate(), seal_bodies=True)
    agent = Agent(sender, number=7)
    await subscribe(sender, webhook, agent.read)
    [stored] = await sender.deliveries("task-1")
    assert json.loads(stored.body)["task"]["metadata"] == {"n": 7}
    await deliver_due(sender)
    assert said(webhook) == [("task", 7)]
