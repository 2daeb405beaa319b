"""The processes of `gateway_crash.py`: a gateway, which is killed, and the agent behind it.

The agent works off tasks of numbered steps: the text of each status and of each chunk is its
number. `POST /control/break` breaks the connections of all its streams, `GET /control/waiting` says
which tasks wait for their client, `GET /control/truth` what it did.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import logging
import os
import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from tenacity import stop_after_attempt

from pushkit import KeyRing, PushSender, RetryPolicy, SenderOptions, wait_schedule
from pushkit.delivery import watches
from pushkit.gateway import watcher
from pushkit.gateway.options import GatewayOptions
from pushkit.gateway.service import Service
from tests.unit.pushkit.gateway.agent import ScriptedAgent
from tests.verification.soak.killing import options
from tests.verification.soak.webhook_process import shared_port

_LEASE = timedelta(seconds=3)


class WorkingAgent(ScriptedAgent):
    """Works off each task; a message says how: `mute` tasks cannot be joined, `asking` ones wait.

    Attributes:
        truth: Of each task, the state at each number, the numbers of its chunks, and its last one.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.truth: dict[str, dict[str, Any]] = {}
        self._random = random.Random(seed)
        self._steps: dict[str, itertools.count[int]] = {}
        self._answers: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._mute: set[str] = set()
        self._working: set[asyncio.Task[None]] = set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.received.clear()
        if request.path == "/control/break":
            for task_id in list(self._streams):
                self.break_streams(task_id)
            return web.Response()
        if request.path == "/control/waiting":
            waiting = [
                task_id
                for task_id, task in self.tasks.items()
                if task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
            ]
            return web.json_response(waiting)
        if request.path == "/control/truth":
            return web.json_response(self.truth)
        return await super().handle(request)

    def _may_subscribe(self, task_id: str) -> bool:
        return task_id not in self._mute

    def _begun(self, params: dict[str, Any], user: str) -> dict[str, Any]:
        message = params["message"]
        task_id = message.get("taskId")
        if task_id in self.tasks:
            if self.tasks[task_id]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED":
                self._change(task_id, "WORKING")
                self._answers[task_id].set()
            return self.tasks[task_id]
        task = super()._begun(params, user)
        task_id, [part] = task["id"], message["parts"]
        self.truth[task_id] = {"states": {"0": "SUBMITTED"}, "chunks": [], "last": None}
        self._steps[task_id] = itertools.count(1)
        if "mute" in part["text"]:
            self._mute.add(task_id)
        working = asyncio.create_task(self._work(task_id, asks="asking" in part["text"]))
        self._working.add(working)
        working.add_done_callback(self._working.discard)
        return task

    async def _work(self, task_id: str, *, asks: bool) -> None:
        steps = self._random.randint(5, 20)
        for step in range(steps):
            await asyncio.sleep(self._random.choice((0.0, 0.02, 0.1, 0.3)))
            if asks and step == steps // 2:
                self._change(task_id, "INPUT_REQUIRED")
                await self._answers[task_id].wait()
            elif self._random.random() < 0.6:
                number = next(self._steps[task_id])
                self.truth[task_id]["chunks"].append(number)
                self.chunk(task_id, f"{number} ")
            else:
                self._change(task_id, "WORKING")
        number = self._change(task_id, self._random.choice(("COMPLETED", "FAILED")))
        self.truth[task_id]["last"] = number

    def _change(self, task_id: str, state: str) -> int:
        number = next(self._steps[task_id])
        self.truth[task_id]["states"][str(number)] = state
        self.status(task_id, f"TASK_STATE_{state}", str(number))
        return number


async def _serve_agent(arguments: argparse.Namespace) -> None:
    async with WorkingAgent(arguments.seed).served() as agent:
        print(f"AT {agent.origin}", flush=True)
        await asyncio.Event().wait()


async def _serve_gateway(arguments: argparse.Namespace) -> None:
    vars(watches).update(LEASE=_LEASE)
    vars(watcher).update(
        LEASE=_LEASE,
        _RENEWED_EVERY=_LEASE.total_seconds() / 3,
        _MARGIN=0.5,
        _CLAIMED_EVERY=0.2,
        _FIRST_PAUSE=0.2,
        _LONGEST_PAUSE=1.0,
        _PAUSE_OF_CLIENT=1.0,
        _PER_EVENT=0.1,
    )
    ring = KeyRing.create(datetime.now(UTC))
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=ring,
        database=arguments.database,
        allow=["127.0.0.1:*"],
        options=SenderOptions(
            timeout=timedelta(seconds=2),
            lease_margin=timedelta(seconds=2),
            retry=RetryPolicy(wait=wait_schedule((0.1, 0.2, 0.5)), stop=stop_after_attempt(10**6)),
        ),
    )
    service = Service(
        arguments.upstream,
        sender=sender,
        ring=lambda: ring,
        public_url="https://agent.example.com",
        options=GatewayOptions(
            shared_configs=True,
            max_requests=arguments.streams,
            max_requests_per_caller=arguments.streams,
            max_watches=arguments.streams,
        ),
    )
    async with sender:
        await service.open()
        async with service.serving() as server:
            runner = web.ServerRunner(server)
            await runner.setup()
            with shared_port(arguments.port) as listening:
                await web.SockSite(runner, listening).start()
                print(f"READY {os.getpid()}", flush=True)
                await asyncio.Event().wait()


async def main() -> None:
    """Serve until killed."""
    # Without an upstream, it is the agent that is served; streams are the most at once.
    parser = options(None, upstream="", database="", port=0, log=None, streams=20_000, seed=0)
    arguments = parser.parse_args()
    logging.basicConfig(filename=arguments.log, level=logging.WARNING)
    await (_serve_gateway if arguments.upstream else _serve_agent)(arguments)


if __name__ == "__main__":
    asyncio.run(main())
