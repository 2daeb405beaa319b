"""Agents of frameworks, each as its page of docs/frameworks has it, with a model that is a fake."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from http import HTTPStatus
from pathlib import Path

import aiohttp

from pushkit.a2a import TaskState
from tests.ports import free_port
from tests.verification.interop.agents import Agent, agent_to_receiver, artifacts_of
from tests.verification.interop.cell import INSIDE, ITS_CLIENT, Cell
from tests.verification.interop.environments import PEERS, python_of
from tests.verification.interop.processes import PATIENCE, MismatchError, running

__all__ = ["FAKE_ANSWER", "PYDANTIC_AI", "fasta2a_agent", "framework_cells", "framework_python"]


def framework_cells() -> list[Cell]:
    """Return the frameworks, each in the versions of A2A that it speaks."""
    return [
        _cell("google-adk 2.13.0", "1.0", "adk", "google-adk[a2a]==2.13.0"),
        _cell("google-adk 2.13.0 (0.3 client)", "0.3", "adk", "google-adk[a2a]==2.13.0"),
        _cell("google-adk 1.39.1", "0.3", "adk", "google-adk[a2a]==1.39.1"),
        _cell("strands-agents 1.62.0", "0.3", "strands", "strands-agents[a2a]==1.62.0"),
        _cell(
            "strands-agents 1.62.0 (message/stream)",
            "0.3",
            "strands",
            "strands-agents[a2a]==1.62.0",
            stream=True,
        ),
        _cell(
            "agent-framework-a2a 1.0.0b261022",
            "1.0",
            "agent-framework",
            "agent-framework-a2a==1.0.0b261022",
            "a2a-sdk[http-server]",
        ),
        _cell(_CREWAI[0], "0.3", "crewai", _CREWAI[1]),
        _cell("pydantic-ai 2.62.0", "1.0", "pydantic-ai", *PYDANTIC_AI),
        _cell("pydantic-ai 2.62.0 (0.3 client)", "0.3", "pydantic-ai", *PYDANTIC_AI),
        Cell(
            peer=_CREWAI[0],
            direction=ITS_CLIENT,
            version="0.3",
            scheme="JSON-RPC, its result store",
            attempt=_crewai_waits,
        ),
    ]


def framework_python(peer: str, *requirements: str) -> Path:
    """Return the interpreter of a framework's environment."""
    name = peer.partition(" (")[0].replace(" ", "-")
    return python_of(f"framework-{name}", *requirements, "uvicorn")


async def fasta2a_agent() -> tuple[str, ...]:
    """Return the command of fasta2a's agent, installed where it is not yet."""
    python = await asyncio.to_thread(framework_python, "pydantic-ai 2.62.0", *PYDANTIC_AI)
    return (str(python), str(PEERS / "page_agent.py"), "pydantic-ai")


_CREWAI = ("crewai 1.15.30", "crewai[a2a]==1.15.30")
FAKE_ANSWER = " ".join(f"word{number}" for number in range(40))  # of peers/fake_models.py
PYDANTIC_AI = ("pydantic-ai==2.62.0", "fasta2a==2.1.1")


def _cell(peer: str, version: str, page: str, *requirements: str, stream: bool = False) -> Cell:
    async def attempt() -> str:
        python = await asyncio.to_thread(framework_python, peer, *requirements)
        command = (str(python), str(PEERS / "page_agent.py"), page)
        called = await agent_to_receiver(
            Agent(peer, command, version, sender="pushkit", stream=stream)
        )
        last = [each.state for each in called if each.state is not None][-1]
        if last is not TaskState.COMPLETED:
            raise MismatchError(f"expected a completed task, found {last}")
        await _asked_by_the_page(command)
        expected = "success (no tool calls)" if page == "pydantic-ai" else FAKE_ANSWER
        if expected not in (texts := artifacts_of(called)):
            raise MismatchError(f"expected {expected!r:.60}, found {texts!r:.120}")
        kinds = Counter(each.update.kind.value for each in called)
        told = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        return f"{called[-1].seq} updates in {len(called)} notifications ({told})"

    return Cell(
        peer=peer,
        direction=INSIDE,
        version=version,
        scheme="JWT, token",
        attempt=attempt,
    )


async def _crewai_waits() -> None:
    """Let CrewAI delegate a task, and wait for the notification in its result store."""
    python = await asyncio.to_thread(framework_python, *_CREWAI)
    port, agent_port = free_port(), free_port()
    agent = (sys.executable, str(PEERS / "answering_agent.py"), "--port", str(agent_port))
    url = f"http://127.0.0.1:{agent_port}"
    client = (str(python), str(PEERS / "crewai_client.py"), "--port", str(port), "--agent", url)
    with tempfile.TemporaryDirectory() as folder:
        async with (
            running(*agent, "--folder", folder, port=agent_port),
            running(*client, "--folder", folder, port=port) as process,
        ):
            told = json.loads(await _line(process, b'{"status"'))
    if told != {"status": "completed", "result": "the answer"}:
        raise MismatchError(f"expected the answer, found {told}")


async def _line(process: asyncio.subprocess.Process, start: bytes) -> bytes:
    """Return the next line of a peer that begins so."""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while line := await process.stdout.readline():
            if line.startswith(start):
                return line
    raise MismatchError("the peer ended by itself")


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
            await _line(process, b"completed ")
