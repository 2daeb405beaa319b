"""The kit: an accepted request of which a test changes one thing, and a receiver that it goes to.

Test modules get everything through fixtures; `World` is imported for types alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient, AiohttpServer
from yarl import URL

from pushkit.a2a import TaskUpdate, decode_update
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key
from pushkit.storage.database import Database, opened
from pushkit.storage.migrations import Access
from pushkit.webhook import Headers, WebhookRequest
from receiver import InboxFilter, InboxStatus, Receiver, TaskPolicy, TrustedSender, request
from receiver.admin import open_inbox
from receiver.callbacks import dispatcher, waiting
from receiver.testing import Draft
from tests.clock import Clock
from tests.eventually import DEADLINE, eventually
from tests.unit.receiver.drafts import SIGNERS

BASE_URL = "https://client.example.com"
PATH = "/a2a/push"
ISSUER = "https://agent.example.com"
TOKEN = "the-notification-token-is-private"
BODY_MARK = "the-body-is-private"

# The tables that a refusal must leave as they were.
_TABLES = (
    *("pushkit_inbox", "pushkit_inbox_queues", "pushkit_forgotten", "pushkit_sequences"),
    "pushkit_expected",
)


@cache
def signing_key(algorithm: Algorithm = Algorithm.ES256, name: str = "agent") -> SigningKey:
    """Return the key of that name; generated once, because RSA takes its time."""
    del name
    return generate_key(algorithm)


def status_body(task_id: str = "task-1", state: str = "TASK_STATE_WORKING") -> bytes:
    """Write a status update, A2A 1.0."""
    event = {
        "taskId": task_id,
        "contextId": "context-1",
        "status": {"state": state},
        "metadata": {"note": BODY_MARK},
    }
    return json.dumps({"statusUpdate": event}).encode()


def artifact_body(task_id: str = "task-1") -> bytes:
    """Write an artifact update, A2A 1.0."""
    artifact = {"artifactId": "artifact-1", "parts": [{"text": BODY_MARK}]}
    event = {"taskId": task_id, "contextId": "context-1", "artifact": artifact}
    return json.dumps({"artifactUpdate": event}).encode()


@dataclass
class World:
    """A receiver with one trusted sender and a database of its own, and a clock for both."""

    clock: Clock
    database: Path | str
    server_factory: AiohttpServer
    client_factory: AiohttpClient
    sender: TrustedSender
    receivers: contextlib.AsyncExitStack
    options: dict[str, Any] = field(default_factory=dict)
    edge: str = "aiohttp"
    _receiver: Receiver | None = None

    @property
    def receiver(self) -> Receiver:
        """The receiver; made at the first use, so that a test can change the sender before."""
        if self._receiver is None:
            self._receiver = Receiver(
                url=BASE_URL,
                senders=[self.sender, *self.options.pop("more_senders", ())],
                database=self.database,
                clock=self.clock,
                **self.options,
            )
        return self._receiver

    def another_receiver(self) -> Receiver:
        """Return another receiver on the same database, as another process would have it."""
        return Receiver(
            url=BASE_URL,
            senders=[self.sender],
            database=self.database,
            clock=self.clock,
            **self.options,
        )

    def add_sender(self, name: str, issuer: str, key: SigningKey) -> None:
        """Trust a second sender at the same path."""
        verification = key.to_verification_key()
        sender = trusted_sender(name=name, issuer=issuer, keys=[verification])
        self.options.setdefault("more_senders", []).append(sender)

    async def start(self) -> Receiver:
        """Start the receiver; it is closed when the test ends."""
        return await self.receivers.enter_async_context(self.receiver)

    async def restart(self) -> None:
        """Close the receiver; the next one opens the same database."""
        await self.receiver.close()
        self._receiver = None

    def draft(
        self,
        number: int = 1,
        *,
        task_id: str = "task-1",
        state: str = "working",
        kind: str = "status",
        token: str = TOKEN,
    ) -> Draft:
        """Return a request that is accepted as it stands, the n-th of its task."""
        state_name = f"TASK_STATE_{state.upper()}"
        return Draft(
            url=PATH,
            issuer=ISSUER,
            audience=f"{BASE_URL}{PATH}",
            key=signing_key(),
            token=token,
            delivery_id=f"delivery-{task_id}-{number}",
            task_id=task_id,
            seq=number,
            body=status_body(task_id, state_name) if kind == "status" else artifact_body(task_id),
            issued_at=self.clock.now,
            schemes=frozenset(self.sender.schemes),
            signers=SIGNERS,
        )

    async def receive(self, draft: Draft) -> request.Answer:
        """Hand a request to the receiver without HTTP."""
        await self.start()
        return await self.receiver.receive(draft.request(), peer="192.0.2.1")

    async def post(self, draft: Draft) -> Answer:
        """Post a request through the edge of this test."""
        return await self._send("POST", draft.request())

    async def get(self, target: str) -> Answer:
        """Get a path and query through the edge of this test."""
        return await self._send("GET", WebhookRequest(target=target, headers=Headers(), body=b""))

    async def until_done(self, number: int) -> None:
        """Wait until so many notifications are done."""

        async def are_done() -> bool:
            found = await self.receiver.inbox.find(InboxFilter(status=InboxStatus.DONE))
            return len(found) == number

        await eventually(are_done)

    async def _send(self, method: str, request: WebhookRequest) -> Answer:
        if self.edge == "asgi":
            return await self._send_asgi(method, request)
        server = await self.server_factory(self.receiver.app())
        client: TestClient[Any, Any] = await self.client_factory(server)
        async with client.request(
            method,
            URL(request.target, encoded=True),
            data=request.body or None,
            headers=list(request.headers),
            skip_auto_headers=["Content-Type"],
        ) as response:
            return Answer(
                status=response.status,
                content_type=response.content_type,
                headers=dict(response.headers),
                text=await response.text(),
            )

    async def _send_asgi(self, method: str, request: WebhookRequest) -> Answer:
        await self.start()
        transport = httpx.ASGITransport(self.receiver.asgi())
        async with httpx.AsyncClient(transport=transport, base_url=BASE_URL) as client:
            headers = [(name.encode(), value.encode("latin-1")) for name, value in request.headers]
            response = await client.request(
                method, request.target, content=request.body, headers=headers
            )
        return Answer(
            status=response.status_code,
            content_type=response.headers.get("Content-Type", ""),
            headers=dict(response.headers),
            text=response.text,
        )

    def rows(self) -> dict[str, int]:
        """Return how many rows each table has."""
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            return {
                table: connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]  # noqa: S608  # our own names
                for table in _TABLES
            }

    def execute(self, sql: str) -> None:
        """Change the database behind the receiver's back."""
        with contextlib.closing(sqlite3.connect(self.database)) as connection, connection:
            connection.execute(sql)


@dataclass(frozen=True)
class Answer:
    """A response over HTTP."""

    status: int
    content_type: str
    headers: dict[str, str]
    text: str

    @property
    def code(self) -> str:
        """The stable code of the problem."""
        code: str = json.loads(self.text)["code"]
        return code


def trusted_sender(**changes: Any) -> TrustedSender:
    """Return the one sender that is trusted; by default every task of it is expected."""
    key = signing_key().to_verification_key()
    settings = {
        "name": "agent",
        "issuer": ISSUER,
        "keys": [key],
        "tokens": (TOKEN,),
        "tasks": TaskPolicy.ANY,
    }
    return TrustedSender(**{**settings, **changes})


WorldFactory = Callable[..., World]


@pytest.fixture
async def make_world(
    tmp_path: Path, aiohttp_server: AiohttpServer, aiohttp_client: AiohttpClient
) -> AsyncIterator[WorldFactory]:
    """Make a world whose trusted sender has these settings."""
    async with contextlib.AsyncExitStack() as receivers:

        def make(options: dict[str, Any] | None = None, **sender: Any) -> World:
            return World(
                clock=Clock(),
                database=tmp_path / "inbox.db",
                server_factory=aiohttp_server,
                client_factory=aiohttp_client,
                sender=trusted_sender(**sender),
                receivers=receivers,
                options=options or {},
            )

        yield make


@pytest.fixture
def world(make_world: WorldFactory) -> World:
    """A receiver that expects every task of its one sender."""
    return make_world()


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let receivers look for what others stored all the time, not once a second."""
    monkeypatch.setattr(dispatcher, "POLL_INTERVAL", timedelta(seconds=0.05))
    monkeypatch.setattr(waiting, "_POLL_SECONDS", 0.05)


@pytest.fixture
async def decoded_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the round of the event loop in which each body is decoded."""
    loop, rounds = asyncio.get_running_loop(), [0]

    def count() -> None:
        rounds[-1] += 1
        loop.call_soon(count)

    def decode(body: bytes, stated: str | None = None) -> TaskUpdate:
        rounds.insert(-1, rounds[-1])
        return decode_update(body, stated)

    count()
    for module in ("receiver.notification", "receiver.inbox.model"):
        monkeypatch.setattr(f"{module}.decode_update", decode)
    return rounds


@pytest.fixture(params=["aiohttp", "asgi"])
def make_world_behind(make_world: WorldFactory, request: pytest.FixtureRequest) -> WorldFactory:
    """Make a world behind each of the edges: they answer alike."""

    def make(options: dict[str, Any] | None = None, **sender: Any) -> World:
        world = make_world(options, **sender)
        world.edge = request.param
        return world

    return make


@pytest.fixture
def world_behind(make_world_behind: WorldFactory) -> World:
    return make_world_behind()


@pytest.fixture
async def database(location: str) -> AsyncIterator[Database]:
    """An empty inbox, open, on each of the two databases."""
    async with opened(open_inbox(location), Access.UPGRADE) as database:
        yield database


@pytest.fixture
async def no_threads_of_asyncio() -> AsyncIterator[None]:
    """The application's calls hang in all of asyncio's threads: they keep them when cancelled."""
    release = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    hanging = asyncio.create_task(asyncio.to_thread(release.wait, DEADLINE))
    await asyncio.sleep(0)
    hanging.cancel()
    yield
    release.set()
