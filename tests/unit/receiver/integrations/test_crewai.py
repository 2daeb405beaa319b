"""CrewAI's result store over a receiver, with the 0.3 types that a2a-sdk 1.x ships."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from a2a.compat.v0_3 import types as v0_3

from pushkit.keys.jwks import parse_jwks
from receiver import Receiver, TaskPolicy, TrustedSender
from receiver.integrations.crewai import ReceiverResults
from receiver.testing import SigningAgent

URL = "https://client.example.com/a2a/push"
TOKEN = "a-token-of-16-or-more"


@pytest.fixture(autouse=True)
def _sdk_of_0_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "a2a.types", v0_3)


@pytest.fixture
def agent() -> SigningAgent:
    return SigningAgent(webhook_url=URL, token=TOKEN)


@pytest.fixture
async def receiver(agent: SigningAgent, tmp_path: Path) -> AsyncIterator[Receiver]:
    trusted = TrustedSender(
        name="agent",
        issuer=agent.issuer,
        keys=parse_jwks(json.dumps(agent.jwks()).encode()).keys,
        tokens=[TOKEN],
        tasks=TaskPolicy.ANY,
    )
    receiver = Receiver(
        url="https://client.example.com", senders=[trusted], database=tmp_path / "inbox.db"
    )
    async with receiver:
        yield receiver


async def arrives(receiver: Receiver, agent: SigningAgent) -> None:
    draft = agent.draft("task-1")
    completed = replace(draft, body=draft.body.replace(b"WORKING", b"COMPLETED"))
    request = replace(completed.request(), target="/a2a/push")
    assert (await receiver.receive(request)).status < 300


async def test_a_crew_waits_for_the_end_of_a_task(receiver: Receiver, agent: SigningAgent) -> None:
    results = ReceiverResults(receiver)
    waiting = asyncio.create_task(
        results.wait_for_result(task_id="task-1", timeout=30, poll_interval=2)
    )
    await arrives(receiver, agent)
    task = await waiting
    assert isinstance(task, v0_3.Task)
    assert (task.id, task.status.state) == ("task-1", v0_3.TaskState.completed)
    assert await results.get_result("task-1") == task


async def test_a_crew_waits_no_longer_than_it_says(receiver: Receiver) -> None:
    assert await ReceiverResults(receiver).wait_for_result("task-1", timeout=0.05) is None


async def test_a_crew_in_another_thread_waits_in_the_receivers_loop(
    receiver: Receiver, agent: SigningAgent
) -> None:
    results = ReceiverResults(receiver)
    await arrives(receiver, agent)
    crew = asyncio.to_thread(lambda: asyncio.run(results.wait_for_result("task-1", timeout=30)))
    assert (await crew).id == "task-1"
