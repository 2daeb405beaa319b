"""A sender with a running worker, a webhook that writes down the order, and short leases."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer
from tenacity import stop_after_attempt

from pushkit import KeyRing, PushSender, RetryPolicy, SenderOptions, StatusUpdate, wait_schedule
from pushkit.a2a import TaskState, TaskStatus
from pushkit.clock import utc_now
from pushkit.delivery.answers import BreakerPolicy
from pushkit.errors import CommitUncertainError, StorageError
from pushkit.outbox.states import DeliveryState
from pushkit.storage.database import Database
from tests.databases import PostgresServer
from tests.eventually import eventually
from tests.served import answering

RETRY_SOON = RetryPolicy(wait=wait_schedule([0.05], jitter=0), stop=stop_after_attempt(1000))
RETRY_AT_ONCE = RetryPolicy(wait=wait_schedule([0], jitter=0), stop=stop_after_attempt(1000))
NEVER_OPENS = BreakerPolicy(failures=1_000_000)
KEYS = KeyRing.create(utc_now() - timedelta(days=2))


def numbered(task: str, number: int, size: int = 0) -> StatusUpdate:
    return StatusUpdate(
        task_id=task,
        context_id=str(number),
        status=TaskStatus(state=TaskState.WORKING),
        metadata={"filler": "x" * size} if size else {},
    )


@dataclass
class Webhook:
    """Takes every update, unless a test says otherwise."""

    url: str = ""
    numbers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    ids: Counter[str] = field(default_factory=Counter)
    answer: Callable[[str, int], Awaitable[int]] | None = None

    async def handle(self, request: web.Request) -> web.Response:
        update = json.loads(await request.read())["statusUpdate"]
        task, number = update["taskId"], int(update["contextId"])
        self.numbers[task].append(number)
        self.ids[request.headers["webhook-id"]] += 1
        return web.Response(status=await self.answer(task, number) if self.answer else 202)

    def hold(self) -> asyncio.Event:
        """Answer nothing until the event is set that is returned."""
        answering = asyncio.Event()

        async def wait(_task: str, _number: int) -> int:
            await answering.wait()
            return 202

        self.answer = wait
        return answering

    @property
    def in_order(self) -> bool:
        """Whether no update came for the first time before an earlier one of its task."""
        first = [list(dict.fromkeys(numbers)) for numbers in self.numbers.values()]
        return all(numbers == sorted(numbers) for numbers in first)


@dataclass
class Senders:
    """Makes senders, and closes them."""

    made: list[PushSender] = field(default_factory=list)

    async def make(
        self,
        location: str,
        *,
        clock: Callable[[], datetime] = utc_now,
        working: bool = True,
        prepare: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> PushSender:
        chosen: dict[str, Any] = {
            "retry": RETRY_SOON,
            "breaker": NEVER_OPENS,
            "timeout": timedelta(seconds=2),
            "drain": timedelta(seconds=1),
            # What a fault leaves in flight comes back within the test.
            "lease_margin": timedelta(seconds=0.5),
        }
        sender = PushSender(
            issuer="https://agent.example.com",
            keys=KEYS,
            database=location,
            allow=["127.0.0.1:*"],
            options=SenderOptions(**(chosen | options)),
            clock=clock,
        )
        self.made.append(sender)
        if prepare is not None:
            prepare(database_of(sender))
        await (sender.start() if working else sender.open())
        return sender


def database_of(sender: PushSender) -> Database:
    return sender._database


@dataclass
class Traffic:
    """Updates of a few tasks, accepted one after another: each number once, refused or not."""

    sender: PushSender
    webhook: Webhook
    tasks: tuple[str, ...] = ("task-1", "task-2", "task-3", "task-4")
    size: int = 0
    accepted: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    refused: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    uncertain: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    stopping: bool = False

    @asynccontextmanager
    async def flowing(self) -> AsyncIterator[None]:
        """Accept updates before, during and after the block; then all have to arrive, in order."""
        for task in self.tasks:
            await self.sender.subscribe(task, {"url": self.webhook.url}, version="1.0")
        accepting = [asyncio.create_task(self._accept(task)) for task in self.tasks]
        await self.until(self.accepted, 40)
        yield
        await self.until(self.accepted, 40)
        self.stopping = True
        await asyncio.gather(*accepting)
        await eventually(lambda: all_delivered(self.sender, self.tasks))
        assert self.webhook.in_order
        for task in self.tasks:
            arrived = set(self.webhook.numbers[task])
            assert set(self.accepted[task]) <= arrived
            assert arrived <= {*self.accepted[task], *self.uncertain[task]}
            assert not arrived & set(self.refused[task])

    async def _accept(self, task: str) -> None:
        number = 0
        while not self.stopping:
            number += 1
            try:
                await self.sender.notify(numbered(task, number, self.size))
            except StorageError as exc:
                uncertain = isinstance(exc, CommitUncertainError)
                book = self.uncertain if uncertain else self.refused
                book[task].append(number)
            else:
                self.accepted[task].append(number)
            await asyncio.sleep(0.005)

    async def until(self, book: dict[str, list[int]], more: int) -> None:
        """Wait for so many more that were `accepted`, or `refused`."""
        wanted = sum(map(len, book.values())) + more
        await eventually(lambda: sum(map(len, book.values())) >= wanted)


async def all_delivered(sender: PushSender, tasks: Iterable[str]) -> bool:
    found = [each for task in tasks for each in await sender.deliveries(task)]
    return all(each.state is DeliveryState.DELIVERED for each in found)


@pytest.fixture(scope="module")
def a_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def server(a_server: PostgresServer) -> PostgresServer:
    """A server that a test may stop: for the next one it runs again."""
    a_server.start()
    return a_server


@pytest.fixture
async def webhook(aiohttp_server: AiohttpServer) -> Webhook:
    webhook = Webhook()
    server = await aiohttp_server(answering(webhook.handle))
    webhook.url = f"http://127.0.0.1:{server.port}/hook"
    return webhook


@pytest.fixture
async def senders() -> AsyncIterator[Senders]:
    senders = Senders()
    yield senders
    for sender in senders.made:
        await sender.close()
