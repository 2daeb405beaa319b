"""Deliveries a second, end to end: pushkit (signed, durable) beside the SDK's own sender (neither).

    python benchmarks/delivery.py --updates 2000

Each sender posts the same task status updates to the same trivial webhook in a process of its own,
in one run on one machine: read the ratios, not the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import multiprocessing
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import httpx
from a2a.server.context import ServerCallContext
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
)
from a2a.types import TaskPushNotificationConfig, TaskState, TaskStatus, TaskStatusUpdateEvent
from aiohttp import web

from pushkit import KeyRing, PushSender, SenderOptions
from pushkit.integrations.a2a_sdk import PushkitConfigStore, PushkitNotificationSender

TASKS = 64


def serve(port: int) -> None:
    """Run the webhook: it reads the body and says 204."""

    async def receive(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=204)

    app = web.Application()
    app.add_routes([web.post("/hook", receive)])
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


def event(task: int, number: int) -> TaskStatusUpdateEvent:
    """Return one update of one task."""
    return TaskStatusUpdateEvent(
        task_id=f"task-{task}",
        context_id=f"context-{number}",
        status=TaskStatus(state=TaskState.TASK_STATE_WORKING),
    )


async def with_sdk(url: str, updates: int, tasks: int) -> tuple[float, float]:
    """Return the seconds that the agent waited, and until all was delivered: the same."""
    store = InMemoryPushNotificationConfigStore()
    for task in range(tasks):
        await store.set_info(
            f"task-{task}", TaskPushNotificationConfig(url=url), ServerCallContext()
        )
    async with httpx.AsyncClient() as client:
        sender = BasePushNotificationSender(client, store)

        async def run(task: int) -> None:
            for number in range(updates // tasks):
                await sender.send_notification(f"task-{task}", event(task, number))

        began = time.perf_counter()
        await asyncio.gather(*(run(task) for task in range(tasks)))
        seconds = time.perf_counter() - began
    return seconds, seconds


async def with_pushkit(url: str, updates: int, tasks: int) -> tuple[float, float]:
    """Return the seconds that the agent waited, and until all was delivered."""
    with tempfile.TemporaryDirectory() as folder:
        options = SenderOptions(concurrency=64, concurrency_per_host=64)
        async with opened(folder, options) as push:
            store = PushkitConfigStore(push)
            for task in range(tasks):
                config = TaskPushNotificationConfig(url=url)
                await store.set_info(f"task-{task}", config, ServerCallContext())
            sender = PushkitNotificationSender(push, task_store=InMemoryTaskStore())

            async def run(task: int) -> None:
                for number in range(updates // tasks):
                    await sender.send_notification(f"task-{task}", event(task, number))

            began = time.perf_counter()
            await asyncio.gather(*(run(task) for task in range(tasks)))
            accepted = time.perf_counter() - began
            for task in range(tasks):
                while any(
                    row.state != "delivered" for row in await push.deliveries(f"task-{task}")
                ):
                    await asyncio.sleep(0.01)
            return accepted, time.perf_counter() - began


@contextlib.asynccontextmanager
async def opened(folder: str, options: SenderOptions) -> AsyncIterator[PushSender]:
    """Open a sender on an outbox of its own."""
    async with PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(datetime.now(UTC)),
        database=f"{folder}/outbox.db",
        allow=["127.0.0.1:*"],
        options=options,
    ) as push:
        yield push


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=2000)
    updates = parser.parse_args().updates
    logging.disable(logging.CRITICAL)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = multiprocessing.Process(target=serve, args=(port,), daemon=True)
    server.start()
    await asyncio.sleep(1)
    url = f"http://127.0.0.1:{port}/hook"
    print(f"{'sender':10} {'tasks':>5} {'deliveries/s':>13} {'agent waits, ms/update':>23}")
    for tasks in (1, TASKS):
        count = updates if tasks > 1 else updates // 4
        sdk_waits, sdk = await with_sdk(url, count, tasks)
        our_waits, ours = await with_pushkit(url, count, tasks)
        per_update = 1000 * tasks / count
        print(f"{'a2a-sdk':10} {tasks:5} {count / sdk:13.0f} {sdk_waits * per_update:23.2f}")
        print(f"{'pushkit':10} {tasks:5} {count / ours:13.0f} {our_waits * per_update:23.2f}")
        print(f"{'ratio':10} {tasks:5} {sdk / ours:13.2f} {our_waits / sdk_waits:23.2f}\n")
    server.terminate()


if __name__ == "__main__":
    asyncio.run(main())
