"""Agents of frameworks, each as its page of docs/frameworks has it, with a model that is a fake."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from http import HTTPStatus
from typing import Any

import aiohttp

from pushkit.a2a import TaskState
from tests.ports import free_port
from tests.verification.interop.agents import (
    Agent,
    agent_cell,
    agent_to_receiver,
    artifacts_of,
    command_of,
)
from tests.verification.interop.cell import Cell, Direction
from tests.verification.interop.environments import PEERS
from tests.verification.interop.processes import MismatchError, line_of, running

__all__ = ["FAKE_ANSWER", "framework_cells"]


def framework_cells() -> list[Cell]:
    """Return the frameworks, each in the versions of A2A that it speaks."""
    return [
        _cell("google-adk 2.13.0", "adk"),
        _cell("google-adk 2.13.0 (0.3 client)", "adk"),
        _cell("google-adk 1.39.1", "adk"),
        _cell("strands-agents 1.62.0", "strands"),
        _cell("strands-agents 1.62.0 (message/stream)", "strands", stream=True),
        _cell("agent-framework-a2a 1.0.0b261022", "agent-framework"),
        _cell(_CREWAI, "crewai"),
        _cell("pydantic-ai 2.62.0", "pydantic-ai"),
        _cell("pydantic-ai 2.62.0 (0.3 client)", "pydantic-ai"),
        Cell(
            peer=_CREWAI,
            direction=Direction.ITS_CLIENT,
            version="0.3",
            scheme="JSON-RPC, its result store",
            attempt=_crewai_waits,
        ),
    ]


_CREWAI = "crewai 1.15.30"
FAKE_ANSWER = " ".join(f"word{number}" for number in range(40))  # of peers/fake_models.py


def _cell(peer: str, page: str, **details: Any) -> Cell:
    async def attempt(agent: Agent) -> str:
        called = await agent_to_receiver(agent)
        last = [each.state for each in called if each.state is not None][-1]
        if last is not TaskState.COMPLETED:
            raise MismatchError(f"expected a completed task, found {last}")
        await _asked_by_the_page(agent.command)
        expected = "success (no tool calls)" if page == "pydantic-ai" else FAKE_ANSWER
        if expected not in (texts := artifacts_of(called)):
            raise MismatchError(f"expected {expected!r:.60}, found {texts!r:.120}")
        kinds = Counter(each.update.kind.value for each in called)
        told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        return f"{called[-1].seq} updates in {len(called)} notifications ({told})"

    details |= {"direction": Direction.INSIDE, "scheme": "JWT, token", "sender": "pushkit"}
    return agent_cell(attempt, peer, "page_agent.py", page, **details)


async def _crewai_waits() -> None:
    """Let CrewAI delegate a task, and wait for the notification in its result store."""
    command = await asyncio.to_thread(command_of, _CREWAI, "crewai_client.py")
    port, agent_port = free_port(), free_port()
    agent = (sys.executable, str(PEERS / "answering_agent.py"), "--port", str(agent_port))
    url = f"http://127.0.0.1:{agent_port}"
    client = (*command, "--port", str(port), "--agent", url)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            running(*agent, "--folder", folder, port=agent_port),
            running(*client, "--folder", folder, port=port) as process,
        ):
            told = json.loads(await line_of(process, b'{"status"'))
    if told != {"status": "completed", "result": "the answer"}:
        raise MismatchError(f"expected the answer, found {told}")


async def _asked_by_the_page(agent: tuple[str, ...]) -> None:
    """Let the client of docs/frameworks ask an agent, and see that it hears of the end."""
    port, agent_port = free_port(), free_port()
    client = (sys.executable, str(PEERS / "page_agent.py"), "README", "--port", str(port))
    with tempfile.TemporaryDirectory() as folder:
        async with (
            running(*agent, "--port", str(agent_port), "--folder", folder, port=agent_port),
            running(
                *client, "--agent-port", str(agent_port), "--folder", folder, port=port
            ) as process,
            aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
        ):
            async with session.post("/ask", params={"text": "hello"}) as answer:
                if answer.status != HTTPStatus.OK:
                    raise MismatchError(f"/ask was answered {answer.status}")
            await line_of(process, b"completed ")
