"""Agents that do not push, or badly, with `pushkit gateway` in front of them, as a command."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from pushkit import KeyRing, save_key_ring
from pushkit.a2a import Part, Role, StatusUpdate, TaskSnapshot, TaskState, TaskStatus, TextPart
from pushkit.bounded_json import JsonObject
from receiver import Notification
from tests.eventually import eventually
from tests.ports import free_port
from tests.verification.interop.agents import (
    Agent,
    agent_cell,
    artifacts_of,
    check_order,
    check_version,
    receiving,
    trusted_pushkit,
)
from tests.verification.interop.cell import Cause, Cell, Direction
from tests.verification.interop.client import Client
from tests.verification.interop.framework_cells import FAKE_ANSWER
from tests.verification.interop.processes import TOKEN, MismatchError, end, running

__all__ = ["LANGGRAPH", "LANGGRAPH_PATH", "gateway_cells"]

_SDK_ANSWER = "héllo <b>&"
# LangGraph names the assistant of a graph so.
_ASSISTANT = uuid.uuid5(uuid.UUID("6ba7b821-9dad-11d1-80b4-00c04fd430c8"), "agent")
LANGGRAPH, LANGGRAPH_PATH = "langgraph-api 0.16.7", f"a2a/{_ASSISTANT}/"
_AGNO = Cause(
    "agno 3.1 answers message/stream alone at its card's URL, and its tasks:get is none of A2A's"
    " bindings: nobody who follows its card can send a message otherwise, or ask for a task",
    "Input should be 'message/stream'",
)


def gateway_cells() -> list[Cell]:
    """Return the agents, each in the versions of A2A that it speaks."""
    return [
        _cell("a2a-sdk 1.3.0"),
        _cell("a2a-sdk 1.3.0 (0.3 client)"),
        _cell("a2a-sdk 0.3.26"),
        _cell("pydantic-ai 2.62.0", "fasta2a"),
        _cell("pydantic-ai 2.62.0 (0.3 client)", "fasta2a"),
        _cell("google-adk 2.13.0", "adk"),
        _cell("google-adk 2.13.0 (0.3 client)", "adk"),
        _cell("google-adk 1.39.1", "adk"),
        _cell(LANGGRAPH, "langgraph", path=LANGGRAPH_PATH),
        _cell("a2akit 0.0.32", "a2akit"),
        _cell(
            "agno 3.1.10",
            "agno",
            path="a2a/agents/helper/",
            rpc="v1/message:stream",
            cause=_AGNO,
        ),
        _cell("@a2a-js/sdk 1.3.0"),
        _cell("@a2a-js/sdk 0.3.14"),
        _cell("a2a-go 2.4.0"),
        _cell("a2a-go 2.4.0 (0.3 client)"),
        _cell("a2a-java 0.3.3.Final"),
    ]


def _cell(
    peer: str, framework: str = "", *, path: str = "", rpc: str = "", cause: Cause | None = None
) -> Cell:
    answer = FAKE_ANSWER if framework else _SDK_ANSWER

    async def attempt(agent: Agent) -> str:
        return await _tried(agent, answer, path, rpc)

    program = ("plain_agent.py", framework) if framework else ()
    direction, scheme = Direction.BEHIND, "JWT, token"
    return agent_cell(attempt, peer, *program, direction=direction, scheme=scheme, cause=cause)


@dataclass(slots=True, kw_only=True)
class _Front:
    """A gateway in front of an agent, and the webhook that hears of its tasks."""

    folder: Path
    upstream: str
    port: int
    agent: Client
    client: Client
    hook: str
    called: list[Notification]
    answer: str
    checked: set[str] = field(default_factory=set)  # ids of tasks

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Run the gateway; a killed one ends with the block, too."""
        issuer = f"http://127.0.0.1:{self.port}"
        command = (
            *(sys.executable, "-m", "pushkit.cli.main", "gateway"),
            *("--upstream", self.upstream, "--listen", f"127.0.0.1:{self.port}"),
            *("--issuer", issuer, "--keys", str(self.folder / "keys.json")),
            *("--database", str(self.folder / "outbox.db"), "--shared-configs"),
            *("--allow", "127.0.0.1:*"),
        )
        async with running(*command, port=self.port) as process:
            yield process

    @property
    def config(self) -> JsonObject:
        """The push config that comes with a message."""
        return {"url": self.hook, "token": TOKEN}

    def hold(self) -> None:
        """Let the agent's work take until it is released."""
        (self.folder / "hold").touch()

    def release(self) -> None:
        (self.folder / "hold").unlink()

    def holder(self, task_id: str) -> str | None:
        """Return which gateway watches a task."""
        with contextlib.closing(sqlite3.connect(self.folder / "outbox.db")) as database:
            query = "SELECT holder FROM pushkit_watches WHERE task_id = ?"
            row = database.execute(query, (task_id,)).fetchone()
        return None if row is None else str(row[0])

    async def streams(self) -> bool:
        """Return whether the gateway's card, which must be right otherwise, says so."""
        url = f"http://127.0.0.1:{self.port}/.well-known/agent-card.json"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            card = await answer.json()
        if card["capabilities"].get("pushNotifications") is not True:
            raise MismatchError("expected pushNotifications in the card")
        if self.upstream in json.dumps(card):
            raise MismatchError("the card names the agent")
        return card["capabilities"].get("streaming") is True

    async def is_over(self, task_id: str) -> bool:
        """Ask the agent itself whether it has done a task."""
        task: Any = await self.agent.task(task_id)
        return task["status"]["state"] in ("completed", "TASK_STATE_COMPLETED")

    def of(self, task_id: str) -> list[Notification]:
        return [each for each in self.called if each.task_id == task_id]

    async def heard(self, what: str, task_id: str | None = None) -> str:
        """Wait for the first notification of a task that is new; return the id of the task."""

        def new() -> list[str]:
            ids = {str(each.task_id) for each in self.called} - self.checked
            return [each for each in ids if task_id in (None, each)]

        try:
            return (await eventually(new))[0]
        except TimeoutError:
            raise MismatchError(f"{what}: no notification arrived") from None

    async def ended(self, what: str, task_id: str | None = None) -> None:
        """Wait for the end of a task, and check what was told of it."""
        task_id = await self.heard(what, task_id)

        def is_over() -> bool:
            return any(each.state is not None and each.state.terminal for each in self.of(task_id))

        try:
            await eventually(is_over)
        except TimeoutError:
            states = [str(each.state) for each in self.of(task_id)]
            raise MismatchError(f"{what}: no end arrived; what did: {states}") from None
        self.checked.add(task_id)

    def check(self) -> None:
        """Compare all that arrived with what was expected. Raises MismatchError."""
        tasks = defaultdict(list)
        for each in self.called:
            tasks[str(each.task_id)].append(each)
        if set(tasks) != self.checked:
            raise MismatchError(f"expected {len(self.checked)} tasks, found {len(tasks)}")
        for called in tasks.values():
            _check(called, self.client.version, self.answer)


def _check(called: list[Notification], version: str, answer: str) -> None:
    check_version(called, version)
    check_order(called)
    states = [each.state for each in called if each.state is not None]
    if [each for each in states if each.terminal] != [TaskState.COMPLETED]:
        raise MismatchError(f"expected a completed task, found {[str(each) for each in states]}")
    if not states[-1].terminal:
        raise MismatchError(f"expected nothing after the end, found {[str(s) for s in states]}")
    said = [_said(each) for each in called]
    for before, after in itertools.pairwise(said):
        if before is not None and before == after:
            raise MismatchError(f"the same was told twice: {before}")
    if answer not in (texts := [*artifacts_of(called), *_history_of(called[-1])]):
        raise MismatchError(f"expected the answer {answer!r}, found {texts}")


def _history_of(notification: Notification) -> list[str]:
    """Return what the agent said in a task's history: LangGraph has its answer only there."""
    update = notification.update
    history = update.task.history if isinstance(update, TaskSnapshot) else ()
    said = [each for each in history if each.role is Role.AGENT]
    return ["".join(_texts(each.parts)).strip() for each in said]


def _said(notification: Notification) -> tuple[str, ...] | None:
    """Return what a notification says of a task's state; None for a chunk of an artifact."""
    update = notification.update
    if isinstance(update, TaskSnapshot):
        return ("task", *_words(update.task.status), *artifacts_of([notification]))
    return ("status", *_words(update.status)) if isinstance(update, StatusUpdate) else None


def _words(status: TaskStatus) -> tuple[str, ...]:
    return (status.state.value, *_texts(status.message.parts if status.message else ()))


def _texts(parts: Sequence[Part]) -> list[str]:
    return [part.text for part in parts if isinstance(part, TextPart)]


async def _tried(agent: Agent, answer: str, path: str, rpc: str) -> str:
    """Let an agent do tasks behind a gateway, which is killed in the middle of two of them."""
    port, agent_port, gateway_port = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_key_ring(folder / "keys.json", KeyRing.create(datetime.now(UTC)))
        command = (*agent.command, "--port", str(agent_port), "--sender", "none", "--folder", name)
        async with (
            running(*command, port=agent_port),
            receiving(trusted_pushkit(f"http://127.0.0.1:{gateway_port}"), folder, port) as called,
        ):
            front = _Front(
                folder=folder,
                upstream=f"http://127.0.0.1:{agent_port}/{path}".rstrip("/"),
                port=gateway_port,
                agent=Client(
                    url=f"http://127.0.0.1:{agent_port}/{path}{rpc}", version=agent.version
                ),
                client=Client(url=f"http://127.0.0.1:{gateway_port}/{rpc}", version=agent.version),
                hook=f"http://127.0.0.1:{port}/a2a/push",
                called=called,
                answer=answer,
            )
            await _asked_in_every_way(front)
            await _killed(front)
            front.check()
            updates = ", ".join(
                str(len(front.of(task_id))) for task_id in dict.fromkeys(n.task_id for n in called)
            )
    return f"{len(front.checked)} tasks, of {updates} notifications"


async def _asked_in_every_way(front: _Front) -> None:
    async with front.gateway() as gateway:
        await front.client.send("hi", config=front.config)
        await front.ended("a blocking message")
        if await front.streams():
            await front.client.send("hi", config=front.config, stream=True)
            await front.ended("a stream")
        front.hold()
        task = await front.client.send("hi", config=front.config, early=True)
        await front.heard("an early answer", str(task["id"]))
        front.release()
        await front.ended("an early answer", str(task["id"]))
        front.hold()
        task = await front.client.send("hi", early=True)
        await front.client.register("JSON-RPC", str(task["id"]), front.hook, TOKEN)
        front.release()
        await front.ended("a config for a task under way", str(task["id"]))
        await end(gateway)


async def _killed(front: _Front) -> None:
    """Kill the gateway: one task goes on after it is back, the other ends before that."""
    front.hold()
    async with front.gateway() as gateway:
        task_id = await _begun(front)
        gateway.kill()
    holder = front.holder(task_id)
    async with front.gateway() as gateway:
        await eventually(lambda: front.holder(task_id) != holder)
        front.release()
        await front.ended("killed and started again", task_id)
        front.hold()
        task_id = await _begun(front)
        gateway.kill()
    front.release()
    await eventually(lambda: front.is_over(task_id))
    async with front.gateway() as gateway:
        await front.ended("killed, and started again after the end", task_id)
        await end(gateway)


async def _begun(front: _Front) -> str:
    task = await front.client.send("hi", config=front.config, early=True)
    return await front.heard("before the kill", str(task["id"]))
