"""fasta2a 2 and pydantic-ai: a broker that pushes what its workers publish.

    storage = InMemoryStorage()
    broker = push_broker(InMemoryBroker(), push=push, storage=storage)
    app = agent_to_a2a(agent, storage=storage, broker=broker, middleware=[
        Middleware(PushMiddleware, push=push, task_exists=task_in(storage)),
    ])

The events are fasta2a's own, with the enums of A2A 1.0. An update is on disk before it is passed on
to streams. Clients of A2A 0.3 get whole tasks, from the storage.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Self, TypeVar

from pushkit.a2a import (
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    UpdateKind,
    WireVersion,
    parse_update,
)
from pushkit.delivery.sender import PushSender
from pushkit.errors import PushkitError, UnrecognisedBodyError
from pushkit.integrations.enqueue_buffer import Buffered, EnqueueBuffer
from pushkit.integrations.push_config_api import Caller
from pushkit.integrations.push_middleware import PushMiddleware, register_inline_config

__all__ = ["PushMiddleware", "push_broker", "task_in"]

Broker = TypeVar("Broker")


def push_broker(
    broker: Broker, *, push: PushSender, storage: Any, buffer: EnqueueBuffer | None = None
) -> Broker:
    """Return a broker that also pushes, and runs `push` while it is open.

    Args:
        broker: fasta2a's broker, which does the work.
        push: Delivers the updates.
        storage: fasta2a's storage of tasks.
        buffer: Keeps updates while the outbox is out of reach.
    """
    pushing: Any = _PushBroker(broker, push, storage, _Updates(push, buffer=buffer))
    found: Broker = pushing
    return found


def task_in(storage: Any) -> Callable[[Caller, str], Coroutine[Any, Any, bool]]:
    """Return whether a task exists in fasta2a's storage, for `PushMiddleware(task_exists=)`."""

    async def task_exists(_caller: Caller, task_id: str) -> bool:
        return await storage.load_task(task_id) is not None

    return task_exists


class _Updates(Buffered):
    """Enqueues the events of a task."""

    async def enqueue(self, task_id: str, event: Any, storage: Any) -> None:
        try:
            update, size = _update_of(event)
        except UnrecognisedBodyError as exc:
            self.buffer.refuse(exc)
            return
        snapshot = functools.partial(_snapshot, storage, task_id, update.kind)
        await self._enqueue(task_id, update, size=size, snapshot=snapshot)


class _PushBroker:
    """A broker around fasta2a's, with an event bus around its own."""

    def __init__(self, broker: Any, push: PushSender, storage: Any, updates: _Updates) -> None:
        self._broker, self._push, self._storage, self._updates = broker, push, storage, updates
        self.event_bus = _PushBus(broker.event_bus, storage, updates)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def run_task(self, params: Any) -> None:
        try:
            await register_inline_config(params["id"])
        except PushkitError:
            await self._storage.update_task(params["id"], state="rejected")
            raise
        await self._broker.run_task(params)

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            for each in (self._push, self._updates, self._broker):
                await stack.enter_async_context(each)
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.aclose()


class _PushBus:
    """An event bus that pushes what is emitted, before streams get it."""

    def __init__(self, bus: Any, storage: Any, updates: _Updates) -> None:
        self._bus, self._storage, self._updates = bus, storage, updates

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def emit(self, task_id: str, event: Any) -> None:
        await self._updates.enqueue(task_id, event, self._storage)
        await self._bus.emit(task_id, event)


def _update_of(event: Any) -> tuple[TaskUpdate, int]:
    """Return an event as an update, and its size. Raises UnrecognisedBodyError: it is none."""
    from fasta2a.jsonrpc_v1 import to_v1
    from fasta2a.schema import stream_message_response_ta

    whole = {"jsonrpc": "2.0", "id": None, "result": event}
    written = stream_message_response_ta.dump_json(whole, by_alias=True)
    document = to_v1(json.loads(written)["result"])
    return parse_update(document, WireVersion.V1_0), len(written)


async def _snapshot(storage: Any, task_id: str, kind: UpdateKind, _owner: str) -> Task | None:
    """Return the task as it was at an update of a kind."""
    task = await storage.load_task(task_id)
    update = None if task is None else _update_of({"task": task})[0]
    if not isinstance(update, TaskSnapshot):
        return None
    if kind is UpdateKind.ARTIFACT_UPDATE and update.task.status.state is not TaskState.WORKING:
        # Workers store the end before they publish the last artifact: clients would hear it twice.
        return replace(update.task, status=TaskStatus(state=TaskState.WORKING))
    return update.task
