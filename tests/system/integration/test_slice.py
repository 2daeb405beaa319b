"""A config that is removed and set again: what follows goes on where the one before ended."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.keys.jwks import parse_jwks
from receiver import Notification, Receiver, TrustedSender
from tests.eventually import DEADLINE

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_aiohttp.plugin import AiohttpServer


async def test_what_comes_after_a_config_was_removed_and_set_again_is_not_late(
    tmp_path: Path, aiohttp_server: AiohttpServer, unused_tcp_port: int
) -> None:
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(datetime.now(UTC)),
        database=tmp_path / "outbox.db",
        allow=["127.0.0.1:*"],
    )
    keys = parse_jwks(sender.jwks().body).keys
    receiver = Receiver(
        url=f"http://127.0.0.1:{unused_tcp_port}",
        senders=[TrustedSender(name="agent", issuer="https://agent.example.com", keys=keys)],
        database=tmp_path / "inbox.db",
    )
    await aiohttp_server(receiver.app(), port=unused_tcp_port)
    expected = await receiver.expect(version="1.0")
    heard: list[Notification] = []
    async with sender:
        for _ in range(2):
            await sender.subscribe("task-1", expected.as_json(), version="1.0", owner="alice")
            status = TaskStatus(state=TaskState.INPUT_REQUIRED)
            await sender.notify(StatusUpdate(task_id="task-1", context_id="c", status=status))
            after = heard[-1] if heard else None
            heard.append(await receiver.wait("task-1", after=after, timeout=DEADLINE))
            await sender.unsubscribe("task-1", owner="alice")

    assert [(each.seq, each.late) for each in heard] == [(1, False), (2, False)]
