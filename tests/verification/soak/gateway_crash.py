"""Repeatedly kill gateways, and break the agent's streams, and check what webhooks were told.

python -m tests.verification.soak.gateway_crash --kills 1000
    [--database postgresql://… --gateways 2] [--seed 7]

Tasks begin in every way: with a message that is answered early or streamed, in A2A 1.0 and 0.3, or
at the agent itself, with a config that is set later. Some cannot be joined again, some wait for
their client in between. Whenever the kill comes:

- the last state of each task is told, of all whose client heard that its config was stored,
- nothing is told that the agent did not say,
- what is told is told in order, and no update is stored twice.

Judged by the rows of the outbox, and by what arrived at the webhook.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from pushkit import KeyRing, PushSender
from pushkit.bounded_json import JsonObject
from pushkit.outbox.states import DeliveryState
from pushkit.progress import advance
from tests.eventually import eventually
from tests.served import answering, served
from tests.verification.interop.client import Client
from tests.verification.interop.processes import MismatchError
from tests.verification.soak import killing
from tests.verification.soak.killing import Process, count_unfinished, reading
from tests.verification.soak.webhook_process import reserved_port

CLIENTS = 8  # at once
_PATIENCE = 180.0  # seconds in which everything must be told, in the end
_UNREACHABLE = (aiohttp.ClientError, TimeoutError, ConnectionError)
_MODES = ("", "mute", "asking", "asking mute")


@dataclass(slots=True)
class Report(killing.Report):
    """The counts of a run."""

    BROKEN = ("lost", "made_up", "overtaken", "twice", "unfinished", "tracebacks")

    kills: int = 0
    breaks: int = 0
    tasks: int = 0
    updates: int = 0
    arrived: int = 0
    lost: int = 0
    made_up: int = 0
    overtaken: int = 0
    twice: int = 0
    unfinished: int = 0
    tracebacks: int = 0
    wrong: list[str] = field(default_factory=list)


class Killer:
    """Runs gateways, kills them, runs them again.

    Args:
        folder: For the gateways' logs, and a database on SQLite, unless one is given.
        database: A path or a DSN.
        seed: Of the moments of the kills, and of all else.
        gateways: How many at once.
    """

    def __init__(
        self, folder: Path, *, database: str | None = None, seed: int = 0, gateways: int = 1
    ) -> None:
        self._location = database or f"{folder}/outbox.db"
        self._folder = folder
        self._seed = seed
        self._gateways = gateways
        self._random = random.Random(seed)
        self._agent = ""
        self._hooks = ""
        self._ports: list[int] = []
        self._acknowledged: dict[str, str] = {}  # the config's version, by task
        self._arrived = defaultdict[str, list[str]](list)  # delivery ids, by task
        self.report = Report()

    async def run(self, kills: int) -> Report:
        """Kill so many times, let everything be told, and count."""
        agent = Process("gateway_process", "--seed", str(self._seed))
        with contextlib.ExitStack() as ports:
            self._ports = [ports.enter_context(reserved_port()) for _ in range(self._gateways)]
            async with served(answering(self._receive)) as self._hooks:
                self._agent = (await agent.start()).removeprefix("AT ")
                try:
                    await self._run(kills)
                finally:
                    await agent.kill()
        return self.report

    async def _run(self, kills: int) -> None:
        gateways = [self._gateway(place) for place in range(self._gateways)]
        await asyncio.gather(*[each.start() for each in gateways])
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            self._session = session
            busy = [asyncio.create_task(self._begin_tasks()) for _ in range(CLIENTS)]
            busy.append(asyncio.create_task(self._answer_tasks()))
            left = iter(range(kills))
            await asyncio.gather(*[self._lives(each, left) for each in gateways])
            for each in busy[:-1]:
                each.cancel()
            await asyncio.wait(busy[:-1])
            await self._finish()
            self._read_logs()
            busy[-1].cancel()
            await asyncio.wait(busy)
            failed = [each for each in busy if not each.cancelled()]
        for process in gateways:
            await process.kill()
        for each in failed:
            each.result()

    def _gateway(self, place: int) -> Process:
        return Process(
            "gateway_process",
            *("--upstream", self._agent, "--database", self._location),
            *("--port", str(self._ports[place]), "--log", f"{self._folder}/gateway-{place}.log"),
        )

    async def _lives(self, gateway: Process, left: Iterator[int]) -> None:
        for _ in left:
            await asyncio.sleep(self._random.uniform(0.0, 2.0))
            if self._random.random() < 0.5:
                await self._session.post(f"{self._agent}/control/break")
                self.report.breaks += 1
                await asyncio.sleep(self._random.uniform(0.0, 0.5))
            await gateway.kill()
            self.report.kills += 1
            advance(1)
            await gateway.start()

    # --- clients --------------------------------------------------------------------------------

    async def _begin_tasks(self) -> None:
        ways = (self._sent, self._sent, self._streamed, self._set_later)
        while True:
            mode, version = self._random.choice(_MODES), self._random.choice(("1.0", "0.3"))
            with contextlib.suppress(*_UNREACHABLE):
                task_id = await self._random.choice(ways)(mode, version)
                if task_id is not None:
                    self._acknowledged[task_id] = version
            await asyncio.sleep(self._random.uniform(0.05, 1.0))

    async def _answer_tasks(self) -> None:
        """Send the message that tasks wait for, now and again until one arrives."""
        while True:
            async with self._session.get(f"{self._agent}/control/waiting") as answer:
                waiting = await answer.json()
            for task_id in waiting:
                with contextlib.suppress(*_UNREACHABLE):
                    await self._sent("", self._acknowledged.get(task_id, "1.0"), task_id)
            await asyncio.sleep(0.2)

    async def _sent(self, mode: str, version: str, task_id: str | None = None) -> str | None:
        """Send a message that is answered early."""
        task: JsonObject | None = None if task_id is None else {"id": task_id}
        with contextlib.suppress(MismatchError):
            config: JsonObject = {"url": f"{self._hooks}/{version}"}
            found = await self._client(version).send(mode, early=True, config=config, task=task)
            return str(found["id"])
        return None

    async def _streamed(self, mode: str, version: str) -> str | None:
        """Send a message that is answered with a stream; leave it at some time."""
        client, events, task_id = self._client(version), self._random.randint(1, 20), None
        config: JsonObject = {"url": f"{self._hooks}/{version}"}
        method, params = client.message(mode, config=config, stream=True)
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self._session.post(client.url, json=body) as answer:
            async for line in answer.content:
                if line.startswith(b"data:"):
                    result = json.loads(line[5:])["result"]
                    if task_id is None:
                        task_id = str((result["task"] if version == "1.0" else result)["id"])
                        self._acknowledged[task_id] = version
                    events -= 1
                if not events:
                    break
        return task_id

    async def _set_later(self, mode: str, version: str) -> str | None:
        """Begin a task at the agent itself; set a config for it at the gateway."""
        begun = await Client(url=f"{self._agent}/", version="1.0").send(mode)
        task_id = str(begun["id"])
        await asyncio.sleep(self._random.uniform(0.0, 0.5))
        with contextlib.suppress(MismatchError):
            hook = f"{self._hooks}/{version}"
            await self._client(version).register("JSON-RPC", task_id, hook, "the-token")
            # A config of a task that has ended is told nothing.
            return None if await self._is_over(task_id) else task_id
        return None

    async def _is_over(self, task_id: str) -> bool:
        async with self._session.get(f"{self._agent}/control/truth") as answer:
            return (await answer.json())[task_id]["last"] is not None

    def _client(self, version: str) -> Client:
        """Return a client of some gateway."""
        return Client(url=f"http://127.0.0.1:{self._random.choice(self._ports)}/", version=version)

    async def _receive(self, request: web.Request) -> web.Response:
        told = Told.read(await request.read())
        self._arrived[told.task_id].append(request.headers["webhook-id"])
        if self._random.random() < 0.02:
            return web.Response(status=503)
        return web.Response(status=202)

    # --- the end --------------------------------------------------------------------------------

    async def _finish(self) -> None:
        """Wait until all is told; judge."""
        sender = PushSender(
            issuer="https://agent.example.com",
            keys=KeyRing.create(datetime.now(UTC)),
            database=self._location,
        )
        await sender.open()
        try:
            async with reading(self._location) as self._database:
                with contextlib.suppress(TimeoutError):
                    await eventually(lambda: self._is_quiet(sender), within=_PATIENCE)
                self.report.unfinished = await sender.watches().count()
                async with self._session.get(f"{self._agent}/control/truth") as answer:
                    truth = await answer.json()
                for task_id, of_task in truth.items():
                    await self._judge(sender, task_id, of_task)
        finally:
            await sender.close()

    def _read_logs(self) -> None:
        for log in sorted(self._folder.glob("*.log")):
            lines = log.read_text().splitlines()
            at = [n for n, line in enumerate(lines) if line.startswith("Traceback")]
            self.report.tracebacks += len(at)
            self.report.wrong += ["\n".join(lines[n - 1 : n + 30]) for n in at[:2]]

    async def _is_quiet(self, sender: PushSender) -> bool:
        if await sender.watches().count():
            return False
        return not await self._database.read(count_unfinished())

    async def _judge(self, sender: PushSender, task_id: str, truth: dict[str, Any]) -> None:
        by_subscription = defaultdict[str, list[Told]](list)
        arrived = set(self._arrived[task_id])
        for stored in await sender.deliveries(task_id):
            if stored.state is DeliveryState.CANCELLED:
                continue  # its chunks are in the next one, with more
            told = Told.read(stored.body)
            by_subscription[stored.subscription_id].append(told)
            self.report.updates += 1
            if stored.id not in arrived:
                self._note(f"lost ({stored.state}, {stored.last_error})", task_id, truth, [told])
        self.report.tasks += task_id in self._acknowledged
        self.report.arrived += len(self._arrived[task_id])
        if task_id in self._acknowledged and not by_subscription:
            self._note("lost", task_id, truth, [])
        for updates in by_subscription.values():
            if updates[-1].number != truth["last"] and task_id in self._acknowledged:
                self._note("lost", task_id, truth, updates)
            if not all(each.is_true(truth) for each in updates):
                self._note("made_up", task_id, truth, updates)
            last, number = -1, -1
            for each in updates:
                last, number = number, each.number
                if each.first < last or number < last:
                    self._note("overtaken", task_id, truth, updates)
                elif (each.is_event and each.first == last) or (each.is_whole and number == last):
                    self._note("twice", task_id, truth, updates)

    def _note(self, what: str, task_id: str, truth: dict[str, Any], told: list[Told]) -> None:
        name = what.partition(" ")[0]
        setattr(self.report, name, getattr(self.report, name) + 1)
        if len(self.report.wrong) < 20:
            by = self._acknowledged.get(task_id)
            self.report.wrong.append(
                f"{what}: {task_id} ({by}): {' '.join(map(str, told))} of {truth}"
            )


@dataclass(frozen=True, slots=True)
class Told:
    """What one delivery tells of a task, in the agent's numbers."""

    task_id: str
    state: str | None
    status: int | None
    chunks: tuple[int, ...]
    is_event: bool = False  # a status or chunks
    is_whole: bool = False  # a whole task of 1.0; those of 0.3 tell what is so, again

    @classmethod
    def read(cls, body: bytes) -> Told:
        """Read a body."""
        document = json.loads(body)
        if document.get("kind") == "task":
            return cls._of_task(document, is_whole=False)
        [(name, value)] = document.items()
        if name == "task":
            return cls._of_task(value, is_whole=True)
        if name == "artifactUpdate":
            chunks = _chunks(value["artifact"])
            return cls(value["taskId"], None, None, chunks, is_event=True)
        state, number = _status(value["status"])
        return cls(value["taskId"], state, number, (), is_event=True)

    @classmethod
    def _of_task(cls, task: dict[str, Any], *, is_whole: bool) -> Told:
        chunks = tuple(n for each in task.get("artifacts", ()) for n in _chunks(each))
        return cls(task["id"], *_status(task["status"]), chunks, is_whole=is_whole)

    def __str__(self) -> str:
        kind = "event" if self.is_event else "task"
        return f"{kind}({self.state}:{self.status},{','.join(map(str, self.chunks))})"

    @property
    def number(self) -> int:
        """The last number that it tells."""
        return max(*self.chunks, self.status or 0, 0)

    @property
    def first(self) -> int:
        """The first number that is news in it: a whole task repeats what was told."""
        return min(self.chunks) if self.is_event and self.chunks else self.number

    def is_true(self, truth: dict[str, Any]) -> bool:
        """Return whether the agent said it."""
        if self.status is not None and truth["states"].get(str(self.status)) != self.state:
            return False
        if self.is_event:
            start = truth["chunks"].index(self.chunks[0]) if self.chunks else 0
        else:
            start = 0
        return tuple(truth["chunks"][start : start + len(self.chunks)]) == self.chunks


def _chunks(artifact: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(n) for part in artifact["parts"] for n in part["text"].split())


def _status(status: dict[str, Any]) -> tuple[str, int]:
    state = status["state"].removeprefix("TASK_STATE_").replace("-", "_").upper()
    parts = status.get("message", {}).get("parts", ())
    return state, int(parts[0]["text"]) if parts else 0


if __name__ == "__main__":
    sys.exit(killing.run(__doc__, Killer, gateways=1))
