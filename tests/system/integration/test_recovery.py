"""A receiver that was restored has its agent send again what it lacks; numbers go on for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner
from pytest_aiohttp.plugin import AiohttpServer

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.events import Event, EventKind
from pushkit.integrations.push_config_api import PushConfigApi, push_config_app
from pushkit.keys.jwks import parse_jwks
from receiver import Notification, Receiver, TrustedSender
from receiver.cli import cli
from receiver.inbox.inspection import InboxGap
from receiver.recovery import Recovery, RecoveryFailedError
from tests.eventually import DEADLINE, eventually
from tests.served import answering

TOKEN = "client-token"
ISSUER = "https://agent.example.com"


def update(state: TaskState = TaskState.WORKING) -> StatusUpdate:
    return StatusUpdate(task_id="task-1", context_id="c", status=TaskStatus(state=state))


def owner(request: web.Request) -> str | None:
    return "alice" if request.headers.get("Authorization") == f"Bearer {TOKEN}" else None


@dataclass
class World:
    """An agent with its API, and a receiver whose inbox is set back to what it was."""

    sender: PushSender
    keys: Any
    port: int  # of the receiver
    folder: Path
    url: str  # of the agent's API
    serve: Any  # aiohttp's
    server: Any = None  # what it serves of the receiver
    delivered: int = 0
    seqs: list[int | None] = field(default_factory=list)  # of all callbacks

    async def on_update(self, notification: Notification) -> None:
        self.seqs.append(notification.seq)

    async def start(self, recovery: Recovery | None = None) -> Receiver:
        """Start a receiver, as a process of its own would."""
        trusted = TrustedSender(name="agent", issuer=ISSUER, keys=self.keys)
        url = f"http://127.0.0.1:{self.port}"
        receiver = Receiver(url=url, senders=[trusted], database=self.folder / "inbox.db")
        receiver.on_update(self.on_update)
        if recovery is not None:
            receiver.on_update(senders=["agent"])(recovery.missing)
        self.server = await self.serve(receiver.app(), port=self.port)
        return receiver

    async def notify(self, number: int) -> None:
        """Notify updates, and wait until they are called back and settled."""
        called, delivered = len(self.seqs) + number, self.delivered + number
        for _ in range(number):
            await self.sender.notify(update())
        await eventually(lambda: len(self.seqs) >= called and self.delivered >= delivered)

    async def lose(self) -> None:
        """Three of five notifications are lost with the disk."""
        receiver = await self.start()
        expected = await receiver.expect(version="1.0")
        await self.sender.subscribe("task-1", expected.as_json(), version="1.0", owner="alice")
        await self.notify(2)
        await self.server.close()
        inbox = self.folder / "inbox.db"
        backup = inbox.read_bytes()
        await self.start()
        await self.notify(3)
        await self.server.close()
        for each in self.folder.glob("inbox.db*"):
            each.unlink()
        inbox.write_bytes(backup)
        self.seqs.clear()


@pytest.fixture
async def world(
    tmp_path: Path, aiohttp_server: AiohttpServer, unused_tcp_port: int
) -> AsyncIterator[World]:
    ring, database = KeyRing.create(datetime.now(UTC)), tmp_path / "outbox.db"
    sender = PushSender(issuer=ISSUER, keys=ring, database=database, allow=["127.0.0.1:*"])
    api = PushConfigApi(sender, task_exists=None)
    server = await aiohttp_server(push_config_app(api, owner=owner))
    url, keys = f"http://127.0.0.1:{server.port}/", parse_jwks(sender.jwks().body).keys
    world = World(sender, keys, unused_tcp_port, tmp_path, url, aiohttp_server)

    def on_event(event: Event) -> None:
        if event.kind is EventKind.DELIVERED:
            world.delivered += 1

    sender.events.add(on_event)
    async with sender:
        yield world


async def recover(world: World, *more: str) -> Any:
    where = ["--database", str(world.folder / "inbox.db"), "--sender", "agent"]
    command = ["inbox", "recover", *where, "--agent", world.url, *more]
    environment = {"RECEIVER_RECOVER_TOKEN": TOKEN}
    return await asyncio.to_thread(CliRunner().invoke, cli, command, env=environment)


async def told_of_another_task(world: World) -> None:
    """Start the receiver, and let it hear of a task that the lost inbox did not have."""
    receiver = await world.start()
    expected = await receiver.expect(version="1.0")
    await world.sender.subscribe("task-0", expected.as_json(), version="1.0", owner="alice")
    await world.sender.notify(replace(update(), task_id="task-0"))
    await eventually(lambda: world.seqs == [1])


async def test_an_operator_has_sent_again_what_came_after_the_backup(world: World) -> None:
    await world.lose()
    await world.start()

    assert "0 notifications" in (await recover(world, "--task", "task-2")).output
    asked = await recover(world)

    assert (asked.exit_code, asked.output) == (0, "3 notifications sent again\n")
    await eventually(lambda: len(world.seqs) == 3)
    assert world.seqs == [3, 4, 5]


async def test_a_config_that_the_client_removed_does_not_keep_others_from_being_recovered(
    world: World,
) -> None:
    await world.lose()
    await told_of_another_task(world)
    await world.sender.unsubscribe("task-0", owner="alice")

    asked = await recover(world)

    assert asked.output == "3 notifications sent again\n"
    assert "config 'task-0' of task 'task-0'" in str(asked.exception)
    assert "-32001" in str(asked.exception)


async def test_an_agent_without_the_extension_is_asked_for_one_config_only(
    world: World, aiohttp_server: AiohttpServer
) -> None:
    await world.lose()
    await told_of_another_task(world)
    calls: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        calls.append(await request.json())
        error = {"code": -32601, "message": "Method not found"}
        return web.json_response({"jsonrpc": "2.0", "id": 1, "error": error})

    server = await aiohttp_server(answering(answer))
    world.url = f"http://127.0.0.1:{server.port}/"

    asked = await recover(world)

    assert "-32601" in str(asked.exception)
    assert len(calls) == 1


async def test_a_callback_has_sent_again_what_is_missing_before_an_update(world: World) -> None:
    recovery = Recovery(world.url, token=TOKEN)
    await world.lose()
    receiver = await world.start(recovery)

    await world.notify(1)

    await eventually(lambda: len(world.seqs) == 4)
    assert sorted(filter(None, world.seqs)) == [3, 4, 5, 6]
    assert await receiver.inbox.gaps("agent") == [InboxGap("task-1", "task-1", 7, None)]
    await recovery.close()


async def test_an_agent_that_refuses_is_an_error_that_holds_no_token(world: World) -> None:
    for recovery, code in (
        (Recovery(world.url, token="wrong-token"), "status 401"),
        (Recovery(world.url, token=TOKEN), "-32001"),
        (Recovery(f"{world.url}tasks", token=TOKEN), "status 404"),
    ):
        with pytest.raises(RecoveryFailedError, match=code) as refused:
            await recovery.ask("another-task", "c", from_seq=1)
        assert "token" not in str(refused.value)
        await recovery.close()


@pytest.mark.parametrize("answer", ["no JSON", '{"result": {"seqs": 7, "nextSeq": 1}}', "[]"])
async def test_a_hostile_answer_ends(aiohttp_server: AiohttpServer, answer: str) -> None:
    async def reply(_: web.Request) -> web.Response:
        return web.Response(text=answer)

    server = await aiohttp_server(answering(reply))
    recovery = Recovery(f"http://127.0.0.1:{server.port}/")
    if "result" in answer:
        assert await recovery.ask("task-1", None, from_seq=1) == 0
    else:
        with pytest.raises(RecoveryFailedError):
            await recovery.ask("task-1", None, from_seq=1)
    await recovery.close()


async def test_an_agent_that_always_has_a_rest_is_asked_no_further_than_wanted(
    aiohttp_server: AiohttpServer,
) -> None:
    asked: list[int] = []

    async def reply(request: web.Request) -> web.Response:
        asked.append((await request.json())["params"]["fromSeq"])
        result = {"seqs": [], "nextSeq": asked[-1] + 1}
        return web.json_response({"jsonrpc": "2.0", "id": 1, "result": result})

    server = await aiohttp_server(answering(reply))
    recovery = Recovery(f"http://127.0.0.1:{server.port}/")
    async with asyncio.timeout(DEADLINE):
        await recovery.ask("task-1", None, from_seq=3, to_seq=5)
    await recovery.close()

    assert asked == [3, 4, 5]


async def test_what_comes_after_a_config_was_removed_and_set_again_is_not_late(
    world: World,
) -> None:
    receiver, heard = await world.start(), list[Notification]()
    expected = await receiver.expect(version="1.0")
    for _ in range(2):
        await world.sender.subscribe("task-1", expected.as_json(), version="1.0", owner="alice")
        await world.sender.notify(update(TaskState.INPUT_REQUIRED))
        after = heard[-1] if heard else None
        heard.append(await receiver.wait("task-1", after=after, timeout=DEADLINE))
        await world.sender.unsubscribe("task-1", owner="alice")

    assert [(each.seq, each.late) for each in heard] == [(1, False), (2, False)]
