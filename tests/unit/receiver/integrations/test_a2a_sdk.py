"""The helper for a2a-sdk clients: a real agent, a real client, a receiver in FastAPI."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from a2a.client import Client, ClientConfig, create_client
from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface
from a2a.utils.errors import TaskNotFoundError
from fastapi import FastAPI
from starlette.applications import Starlette

from pushkit import KeyRing, PushSender, TaskState, UpdateKind, save_key_ring
from pushkit.integrations.a2a_sdk import A2AIntegration
from receiver import Receiver, TaskPolicy, TrustedSender
from receiver.integrations.a2a_sdk import NoTaskError, PushClient
from tests.asgi_server import serving
from tests.eventually import DEADLINE

ISSUER = "https://agent.example.com"


class AskingAgent(AgentExecutor):
    """Asks a question, then completes; answers `hello` with a message."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        text = context.get_user_input()
        if text == "hello":
            await event_queue.enqueue_event(new_text_message("hello yourself"))
            return
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is not None:
            await updater.add_artifact([new_text_part(f"for {text}")], name="result")
            await updater.complete()
            return
        task = new_task_from_user_message(context.message)
        task.id, task.context_id = context.task_id, context.context_id
        await event_queue.enqueue_event(task)
        await updater.start_work()
        await updater.requires_input(updater.new_agent_message([new_text_part("for whom?")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


def agent_app(url: str, push: PushSender) -> Starlette:
    interface = AgentInterface(url=f"{url}/", protocol_binding="JSONRPC", protocol_version="1.0")
    card = AgentCard(
        name="Asking agent",
        description="Asks.",
        version="1.0.0",
        supported_interfaces=[interface],
        capabilities=AgentCapabilities(push_notifications=True, streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )
    a2a = A2AIntegration(push, task_store=InMemoryTaskStore())
    routes = [*a2a.routes, *a2a.agent_routes(AskingAgent(), card)]
    return Starlette(routes=routes, lifespan=a2a.lifespan)


@dataclass(frozen=True)
class Ends:
    """Both ends: an SDK client of a running agent, and a receiver that is mounted and running."""

    url: str
    receiver: Receiver


@pytest.fixture
async def ends(tmp_path: Path, unused_tcp_port_factory: object) -> AsyncIterator[Ends]:
    assert callable(unused_tcp_port_factory)
    agent_port, hook_port = unused_tcp_port_factory(), unused_tcp_port_factory()
    keys = tmp_path / "keys.json"
    save_key_ring(keys, KeyRing.create(datetime.now(UTC)))
    push = PushSender(
        issuer=ISSUER, keys=keys, database=tmp_path / "outbox.db", allow=["127.0.0.1:*"]
    )
    url = f"http://127.0.0.1:{agent_port}"
    receiver = Receiver(
        url=f"http://127.0.0.1:{hook_port}/hooks",
        senders=[
            TrustedSender(
                name="agent",
                issuer=ISSUER,
                jwks_url=f"{url}/.well-known/jwks.json",
                tasks=TaskPolicy.BIND,
            )
        ],
        database=tmp_path / "inbox.db",
        allow=["127.0.0.1:*"],
    )
    client_app = FastAPI(lifespan=receiver.lifespan)
    client_app.mount("/hooks", receiver.asgi())
    async with (
        serving(agent_app(url, push), port=agent_port),
        serving(client_app, port=hook_port),
    ):
        yield Ends(url=url, receiver=receiver)


@contextlib.asynccontextmanager
async def client_of(ends: Ends, *, streaming: bool) -> AsyncIterator[Client]:
    client = await create_client(ends.url, ClientConfig(streaming=streaming))
    async with client:
        yield client


@pytest.mark.parametrize("streaming", [False, True], ids=["polling", "streaming"])
@pytest.mark.slow
async def test_a_conversation_is_awaited(ends: Ends, *, streaming: bool) -> None:
    async with client_of(ends, streaming=streaming) as client:
        push = PushClient(client, ends.receiver, sender="agent")
        task = await push.send("Please.")
        asked = await task.wait(timeout=DEADLINE)
        assert asked.state is TaskState.INPUT_REQUIRED
        await task.reply("Alice")
        done = await task.wait(after=asked, timeout=DEADLINE)
        assert done.state is TaskState.COMPLETED
        updates = [update async for update in task.updates()]
    assert {update.task_id for update in updates} == {task.task_id}
    assert [update.seq for update in updates] == list(range(1, len(updates) + 1))
    [artifact] = [u for u in updates if u.kind is UpdateKind.ARTIFACT_UPDATE]
    assert b"for Alice" in artifact.body


async def test_an_agent_that_answers_at_once_opens_no_task(ends: Ends) -> None:
    async with client_of(ends, streaming=False) as client:
        sent = await PushClient(client, ends.receiver).send("hello")
    assert sent.task_id is None
    assert sent.message is not None
    assert sent.message.parts[0].text == "hello yourself"
    with pytest.raises(NoTaskError):
        await sent.wait(timeout=1)


async def test_a_message_that_could_not_be_sent_leaves_no_token_behind(
    ends: Ends, tmp_path: Path
) -> None:
    async with client_of(ends, streaming=False) as client:
        message = new_text_message("hi", task_id="no-such-task")
        with pytest.raises(TaskNotFoundError):
            await PushClient(client, ends.receiver).send(message)
    assert not list(live_tokens(tmp_path / "inbox.db"))


async def test_a_forgotten_task_is_no_longer_accepted(ends: Ends, tmp_path: Path) -> None:
    async with client_of(ends, streaming=False) as client:
        task = await PushClient(client, ends.receiver).send("Please.")
        await task.wait(timeout=DEADLINE)
        assert len(list(live_tokens(tmp_path / "inbox.db"))) == 1
        await task.forget()
    assert not list(live_tokens(tmp_path / "inbox.db"))


def live_tokens(database: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        sql = "SELECT token_sha256 FROM pushkit_expected WHERE withdrawn_at IS NULL"
        return [row[0] for row in connection.execute(sql)]
