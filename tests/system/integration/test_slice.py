"""One update through the whole house: notify, sign, post, verify, call back."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.keys.jwks import parse_jwks
from receiver import Notification, Receiver, TrustedSender
from tests.eventually import DEADLINE

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aiohttp.plugin import AiohttpServer


def both_sides(folder: Path, port: int) -> tuple[PushSender, Receiver]:
    """Return a sender, and a receiver that trusts it, at a port of loopback."""
    ring = KeyRing.create(datetime.now(UTC))
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=ring,
        database=folder / "outbox.db",
        allow=["127.0.0.1:*"],
    )
    receiver = Receiver(
        url=f"http://127.0.0.1:{port}",
        senders=[
            TrustedSender(
                name="agent",
                issuer="https://agent.example.com",
                keys=parse_jwks(sender.jwks().body).keys,
            )
        ],
        database=folder / "inbox.db",
    )
    return sender, receiver


def update(state: TaskState) -> StatusUpdate:
    return StatusUpdate(task_id="task-1", context_id="context-1", status=TaskStatus(state=state))


async def test_a_status_update_reaches_the_callback_once(
    tmp_path: Path, aiohttp_server: AiohttpServer, unused_tcp_port: int
) -> None:
    sender, receiver = both_sides(tmp_path, unused_tcp_port)
    called: asyncio.Queue[Notification] = asyncio.Queue()

    @receiver.on_status("completed")
    async def completed(notification: Notification) -> None:
        await called.put(notification)

    await aiohttp_server(receiver.app(), port=unused_tcp_port)
    expected = await receiver.expect(version="1.0")
    async with sender:
        await sender.subscribe("task-1", expected.as_json(), version="1.0", owner="alice")
        for state in (TaskState.WORKING, TaskState.COMPLETED):
            await sender.notify(update(state))
        notification = await asyncio.wait_for(called.get(), DEADLINE)
        waited = await receiver.wait("task-1", timeout=DEADLINE)

    assert notification.state is TaskState.COMPLETED
    assert notification.seq == 2
    assert notification.sender == "agent"
    assert waited.delivery_id == notification.delivery_id
    assert called.empty()


async def test_what_comes_after_a_config_was_removed_and_set_again_is_not_late(
    tmp_path: Path, aiohttp_server: AiohttpServer, unused_tcp_port: int
) -> None:
    sender, receiver = both_sides(tmp_path, unused_tcp_port)
    await aiohttp_server(receiver.app(), port=unused_tcp_port)
    expected = await receiver.expect(version="1.0")
    heard: list[Notification] = []
    async with sender:
        for _ in range(2):
            await sender.subscribe("task-1", expected.as_json(), version="1.0", owner="alice")
            await sender.notify(update(TaskState.INPUT_REQUIRED))
            after = heard[-1] if heard else None
            heard.append(await receiver.wait("task-1", after=after, timeout=DEADLINE))
            await sender.unsubscribe("task-1", owner="alice")

    assert [(each.seq, each.late) for each in heard] == [(1, False), (2, False)]
