"""pushkit's own receiver, in its own process, under the public test kit."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from pushkit.webhook import WebhookRequest
from receiver.testing import ReceiverUnderTest, SigningAgent, check_receiver
from tests.eventually import DEADLINE, eventually
from tests.verification.soak.agent_process import ISSUER
from tests.verification.soak.webhook_process import TOKEN, Settings, reserved_port, start

pytestmark = pytest.mark.slow

COPIES = 1000


class ReceiverProcess(ReceiverUnderTest):
    """A receiver that appends its calls to a file, and is killed for a restart."""

    def __init__(self, settings: Settings, agent: SigningAgent) -> None:
        self.agent = agent
        self._settings = settings
        self._process = start(settings)

    async def callbacks(self) -> Sequence[str]:
        lines = self._settings.calls.read_text("utf-8").splitlines()
        # One of the two callbacks, so that a delivery counts once.
        return [line.split()[-1] for line in lines if " first " in line and "BEGIN" in line]

    async def restart(self) -> None:
        self.kill()
        self._process = start(self._settings)
        await self.listening()

    async def listening(self) -> None:
        async def connected() -> bool:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._settings.port)
                writer.close()
                await writer.wait_closed()
                return True
            assert self._process.is_alive(), self._settings.log.read_text("utf-8")
            return False

        await eventually(connected)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._process.close()


async def copies(subject: ReceiverProcess, request: WebhookRequest) -> Counter[int]:
    """Send copies at once, each over a connection of its own; return the statuses."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send() -> int:
            async with session.post(
                subject.agent.webhook_url, data=request.body, headers=list(request.headers)
            ) as response:
                return response.status

        return Counter(await asyncio.gather(*(send() for _ in range(COPIES))))


@pytest.fixture(params=["aiohttp", "asgi"])
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ReceiverProcess]:
    """Run it behind each of the edges, with its inbox on SQLite."""
    (tmp_path / "calls").touch()
    with reserved_port() as port:
        agent = SigningAgent(
            webhook_url=f"http://127.0.0.1:{port}/a2a/push", issuer=ISSUER, token=TOKEN
        )
        (tmp_path / "jwks.json").write_text(json.dumps(agent.jwks()), "utf-8")
        settings = Settings(
            port=port,
            database=str(tmp_path / "inbox.db"),
            jwks=tmp_path / "jwks.json",
            calls=tmp_path / "calls",
            log=tmp_path / "log",
            lease=timedelta(seconds=60),
            seed=0,
            edge=request.param,
        )
        running = ReceiverProcess(settings, agent)
        try:
            await running.listening()
            yield running
        finally:
            running.kill()


async def test_the_receiver_keeps_every_promise(subject: ReceiverProcess) -> None:
    deadline = timedelta(seconds=DEADLINE)

    assert await check_receiver(subject, subject.agent, deadline=deadline, rounds=10) == []


async def test_a_thousand_copies_over_as_many_sockets_are_one_callback_also_after_a_restart(
    subject: ReceiverProcess,
) -> None:
    draft = subject.agent.draft("task-1")
    request = draft.request()

    first = await copies(subject, request)
    await until_settled(subject, seq=2)
    await subject.restart()
    again = await copies(subject, request)
    await until_settled(subject, seq=3)

    assert first[202] == 1
    assert set(first) <= {200, 202, 503}
    assert set(again) <= {200, 503}
    assert again[200] > 0
    assert Counter(await subject.callbacks())[draft.delivery_id] == 1


async def until_settled(subject: ReceiverProcess, seq: int) -> None:
    """Wait until the accepted notifications of the task were called back and settled.

    By one more update of the task, which is not called back before.
    """
    draft = subject.agent.draft("task-1", seq)
    answer = await subject.post(draft.request())
    assert answer is not None
    assert answer.status == 202

    async def called() -> bool:
        return draft.delivery_id in await subject.callbacks()

    await eventually(called)
