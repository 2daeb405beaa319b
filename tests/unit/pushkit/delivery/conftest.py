"""A scripted webhook on loopback, a clock that the test moves, senders whose worker it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from pushkit import (
    Artifact,
    ArtifactUpdate,
    KeyRing,
    PushSender,
    RemoteSigner,
    SecretKeys,
    SenderOptions,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
)
from pushkit.events import Event, Listener
from pushkit.keys.files import KeySource
from pushkit.keys.jwk import Algorithm, VerificationKey
from pushkit.keys.jwks import parse_jwks
from pushkit.net.transport import ConnectionOptions
from pushkit.outbox.inspection import DeliveryReport
from pushkit.outbox.model import Delivery
from pushkit.outbox.schema import open_outbox
from pushkit.outbox.states import DeliveryState
from pushkit.queue.rules import Leased, Room
from pushkit.signing.notification_jwt import VerifiedJwt, read_unverified, verify_signature
from pushkit.storage.database import Database, opened
from pushkit.storage.migrations import Access
from pushkit.storage.script import Row
from pushkit.webhook import Headers
from tests.clock import START, Clock
from tests.databases import MadeSchemas
from tests.eventually import DEADLINE
from tests.internet import Internet
from tests.unit.pushkit.deliveries import rows_of

ISSUER = "https://agent.example.com"
# The config of a webhook to which nothing is sent.
HOOK = {"url": "https://client.example.com/hook"}
ARTIFACT = ArtifactUpdate(
    task_id="task-1",
    context_id="context-1",
    artifact=Artifact(artifact_id="artifact-1", parts=(TextPart(text="a token"),)),
)
# The test moves the clock of SQLite; PostgreSQL uses the clock of its server.
ON_SQLITE = pytest.mark.parametrize("location", ["sqlite"], indirect=True)
# For tests that need its locks, in modules whose tests run on both.
ON_POSTGRES = pytest.mark.parametrize("location", ["postgresql"], indirect=True)

Reply = int | Callable[[], web.Response] | Callable[[], Awaitable[web.Response]]


def asks_to_wait(seconds: int = 3600, *, status: int = 503) -> Callable[[], web.Response]:
    """Return a reply that asks to wait for so many seconds."""
    return lambda: web.Response(status=status, headers={"Retry-After": str(seconds)})


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    path: str
    headers: Headers
    body: bytes

    @property
    def id(self) -> str:
        return self.headers.one("webhook-id") or ""

    def claims(self, keys: dict[str, VerificationKey]) -> VerifiedJwt:
        token = self.headers.one("X-A2A-Signature")
        if token is None:
            token = (self.headers.one("Authorization") or "").removeprefix("Bearer ")
        unverified = read_unverified(token)
        return verify_signature(unverified, keys[unverified.kid or ""])


@dataclass
class Webhook:
    """A webhook that gives the scripted replies of each path in order, then 200."""

    base: str = ""
    received: list[Received] = field(default_factory=list)
    replies: dict[str, list[Reply]] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str = "/hook") -> str:
        return self.base + path

    def replies_with(self, *replies: Reply, path: str = "/hook") -> None:
        self.replies.setdefault(path, []).extend(replies)

    def replies_after(self, status: int = 200, path: str = "/hook") -> asyncio.Event:
        """Reply to the next request of a path once the returned event is set."""
        is_set = asyncio.Event()

        async def reply() -> web.Response:
            await is_set.wait()
            return web.Response(status=status)

        self.replies_with(reply, path=path)
        return is_set

    def at(self, path: str) -> list[Received]:
        return [request for request in self.received if request.path == path]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.arrived.clear()
                await self.arrived.wait()

    async def until_received(self, number: int, path: str = "/hook") -> None:
        """Wait until so many requests have arrived at a path."""
        await self.until(lambda: len(self.at(path)) >= number)

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        path = request.raw_path
        self.received.append(Received(path, Headers(list(request.headers.items())), body))
        self.arrived.set()
        replies = self.replies.get(path)
        reply = replies.pop(0) if replies else 200
        if isinstance(reply, int):
            return web.Response(status=reply)
        answer = reply()
        return answer if isinstance(answer, web.Response) else await answer


@cache
def key_ring() -> KeyRing:
    """Return a ring whose keys sign since before `START`; made once, as RSA keys are slow."""
    begun = START - timedelta(days=1)
    return KeyRing.create(begun).add(begun, Algorithm.RS256)


@dataclass
class Senders:
    """Opens senders over one outbox, and closes them."""

    database: Path | str
    clock: Clock
    made: list[PushSender] = field(default_factory=list)

    async def close(self) -> None:
        for sender in self.made:
            await sender.close()

    def stored(self) -> AbstractAsyncContextManager[Database]:
        """Open the outbox beside the senders."""
        return opened(open_outbox(self.database), Access.UPGRADE)

    async def execute(self, sql: str, *parameters: Any) -> list[Row]:
        """Run one statement on the outbox, as somebody who can read and write it."""
        async with self.stored() as database:
            return await database.write(rows_of(sql, *parameters))

    async def open(self, **options: Any) -> PushSender:
        """Open a sender with the options of `new`."""
        sender = self.new(**options)
        await sender.open()
        return sender

    def new(
        self,
        *,
        keys: KeySource | KeyRing | RemoteSigner | Path | None = None,
        secrets: SecretKeys | None = None,
        allow: tuple[str, ...] = ("127.0.0.1:*",),
        on_event: Listener | None = None,
        **options: Any,
    ) -> PushSender:
        sender = PushSender(
            issuer=ISSUER,
            keys=keys or key_ring(),
            database=self.database,
            allow=allow,
            options=SenderOptions(**options),
            clock=self.clock,
            on_event=on_event,
            secrets=secrets,
        )
        self.made.append(sender)
        return sender

    def public_keys(self) -> dict[str, VerificationKey]:
        return {key.kid: key for key in parse_jwks(self.made[0].jwks().body).keys}


async def enqueue(
    sender: PushSender,
    url: str = HOOK["url"],
    task_id: str = "task-1",
    *,
    state: str = "working",
    owner: str = "",
) -> str:
    """Subscribe a URL to a task, and store an update for it; return the delivery's id."""
    found = await sender.subscribe(task_id, {"url": url}, version="1.0", owner=owner)
    stored = (await sender.notify(status(state, task_id=task_id))).deliveries
    return next(each.id for each in stored if each.subscription_id == found.id)


async def attempt_delivery(
    sender: PushSender, url: str, task_id: str = "task-1", *, owner: str = ""
) -> str:
    """Store an update for a URL, and attempt it: nothing else is due; return the delivery's id."""
    delivery_id = await enqueue(sender, url, task_id, owner=owner)
    assert await sender.worker.run_once() == 1
    return delivery_id


async def only(sender: PushSender, task_id: str = "task-1") -> Delivery:
    """Return the only delivery of a task."""
    [delivery] = await sender.deliveries(task_id)
    return delivery


async def state_and_error(
    sender: PushSender, task_id: str = "task-1"
) -> tuple[DeliveryState, str | None]:
    """Return what became of the only delivery of a task, and its last error."""
    delivery = await only(sender, task_id)
    return delivery.state, delivery.last_error


async def states(sender: PushSender) -> list[DeliveryState]:
    """Return the states of all deliveries, in the order of their ids."""
    return [each.state for each in await sender.outbox.find()]


async def report_of(sender: PushSender, delivery_id: str) -> DeliveryReport:
    report = await sender.outbox.show(delivery_id)
    assert report is not None
    return report


async def deliver_due(sender: PushSender) -> int:
    """Attempt deliveries until none is due; return how many attempts that took."""
    attempts = 0
    while made := await sender.worker.run_once():
        attempts += made
    return attempts


def status(state: str = "working", task_id: str = "task-1") -> StatusUpdate:
    return StatusUpdate(
        task_id=task_id, context_id="context-1", status=TaskStatus(state=TaskState(state))
    )


def task(task_id: str = "task-1", state: str = "working") -> Task:
    return Task(id=task_id, context_id="context-1", status=TaskStatus(state=TaskState(state)))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def events() -> list[Event]:
    """Return a list for the events of a sender that is opened with `on_event=events.append`."""
    return []


@pytest.fixture
async def webhook(aiohttp_server: AiohttpServer) -> Webhook:
    webhook = Webhook()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", webhook.handle)
    server = await aiohttp_server(app)
    webhook.base = f"http://127.0.0.1:{server.port}"
    return webhook


@pytest.fixture
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the location of the outbox: a SQLite file, or `location` for a test that uses it."""
    if "location" in request.fixturenames:
        return str(request.getfixturevalue("location"))
    return str(tmp_path / "outbox.db")


@pytest.fixture
async def senders(outbox: str, clock: Clock) -> AsyncIterator[Senders]:
    senders = Senders(outbox, clock)
    yield senders
    await senders.close()


@pytest.fixture
async def on_postgres(postgres_dsn: str, clock: Clock) -> AsyncIterator[Senders]:
    """Return senders on PostgreSQL, for tests that need its locks or its clock."""
    senders = Senders(postgres_dsn, clock)
    yield senders
    await senders.close()


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Return a connection of the test's own to an outbox on PostgreSQL."""
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close(timeout=1)


@pytest.fixture
async def sender(senders: Senders) -> PushSender:
    return await senders.open()


@pytest.fixture
def public(internet: Internet, monkeypatch: pytest.MonkeyPatch) -> Internet:
    """Return an internet whose DNS answers the senders; their guard is the real one."""
    options = partial(ConnectionOptions, resolver=internet.network.names)
    monkeypatch.setattr("pushkit.delivery.sender.ConnectionOptions", options)
    return internet


@pytest.fixture
def postgres_dsn(made_outboxes: MadeSchemas) -> Iterator[str]:
    """Return the DSN of a schema with an empty outbox."""
    with made_outboxes.one() as dsn:
        yield dsn


async def claim(sender: PushSender) -> list[Leased]:
    """Let a sender's worker lease what is due, and do nothing with it, as if it died."""
    claims = await sender.worker.claim(Room(256, lambda _: 32), frozenset())
    return list(claims.claimed)
