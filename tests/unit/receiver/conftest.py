"""The kit: an accepted request of which a test changes one thing, and a receiver that it goes to.

Test modules get everything through fixtures; `Draft` and `World` are imported for types alone.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from aiohttp.test_utils import TestClient
from pytest_aiohttp.plugin import AiohttpClient, AiohttpServer
from yarl import URL

from pushkit.a2a import TaskUpdate, decode_update
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key, public_pem
from pushkit.signing.jose import at_once
from pushkit.signing.notification_jwt import body_sha256
from pushkit.webhook import Headers, WebhookRequest
from receiver import InboxFilter, InboxStatus, Receiver, TaskPolicy, TrustedSender, request
from receiver.callbacks import dispatcher, waiting
from tests.clock import Clock
from tests.eventually import eventually
from tests.jose import b64url
from tests.notification_claims import NotificationClaims, sign_notification

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
class Draft:
    """A request that would be accepted. A test changes one thing, then has it signed and sent.

    Attributes:
        key: What signs it.
        issued_at: The moment of this attempt.
        delivery_id: `jti` and `webhook-id`.
        task_id: The signed `taskId`.
        seq: The signed `seq`.
        body: The raw body, hashed at the signing.
        claims: Claims to set, or to leave out if None, after the real signing code is done.
        payload: Stands for the whole payload of the JWT, in bytes.
        header: Members to set in the JWS header, or to leave out if None.
        headers: The header fields apart from the JWT's.
        jwt_header: The field that carries the JWT; None for no JWT.
        target: Path and query.
        compact: Stands for the whole JWT.
        body_sent: Stands for the body, after `body` has been signed.
    """

    key: SigningKey
    issued_at: datetime
    delivery_id: str
    task_id: str
    seq: int
    body: bytes
    claims: dict[str, JsonValue] = field(default_factory=dict)
    payload: bytes | None = None
    header: dict[str, JsonValue] = field(default_factory=dict)
    headers: list[tuple[str, str]] = field(default_factory=list)
    jwt_header: str | None = "Authorization"
    body_sent: bytes | None = None
    target: str = PATH
    compact: str | None = None

    def set(self, **attributes: Any) -> None:
        """Set attributes, for a change that is one expression."""
        for name, value in attributes.items():
            setattr(self, name, value)

    def claim(self, **claims: JsonValue) -> None:
        """Set claims after the real signing code has made its own."""
        self.claims.update(claims)

    def decoded_claims(self) -> JsonObject:
        """Return the claims that would be signed."""
        return _decoded(self.token().split(".")[1])

    def replace_header(self, name: str, *values: str) -> None:
        """Let a header field stand with these values, each in a line of its own."""
        self.headers = [item for item in self.headers if item[0].lower() != name.lower()]
        self.headers += [(name, value) for value in values]

    def token(self) -> str:
        """Return the compact JWS."""
        if self.compact is not None:
            return self.compact
        signed = at_once(sign_notification(self._claims(), self.key))
        if not (self.claims or self.header or self.payload is not None):
            return signed
        return self._signed_again(signed)

    def request(self) -> WebhookRequest:
        """Return the request as it stands."""
        headers = list(self.headers)
        if self.jwt_header is not None:
            scheme = "Bearer " if self.jwt_header == "Authorization" else ""
            headers.append((self.jwt_header, f"{scheme}{self.token()}"))
        return WebhookRequest(
            target=self.target,
            headers=Headers(headers),
            body=self.body if self.body_sent is None else self.body_sent,
        )

    def _claims(self) -> NotificationClaims:
        return NotificationClaims(
            issuer=ISSUER,
            audience=f"{BASE_URL}{PATH}",
            issued_at=self.issued_at,
            delivery_id=self.delivery_id,
            task_id=self.task_id,
            config_id="config-1",
            seq=self.seq,
            body_sha256=body_sha256(self.body),
        )

    def _signed_again(self, signed: str) -> str:
        header, claims = (_decoded(segment) for segment in signed.split(".")[:2])
        header = _changed(header, self.header)
        payload = json.dumps(_changed(claims, self.claims)).encode()
        payload = payload if self.payload is None else self.payload
        signing_input = f"{b64url(json.dumps(header).encode())}.{b64url(payload)}"
        return f"{signing_input}.{b64url(self._signature(header, signing_input.encode()))}"

    def _signature(self, header: JsonObject, signing_input: bytes) -> bytes:
        if header.get("alg") == "none":
            return b""
        if header.get("alg") == "HS256":  # the public key for a secret: RFC 8725 §2.1
            return hmac.digest(public_pem(self.key), signing_input, hashlib.sha256)
        algorithm = jwt.algorithms.get_default_algorithms()[self.key.algorithm.value]
        return algorithm.sign(signing_input, self.key.private_key)


def _decoded(segment: str) -> JsonObject:
    decoded: JsonObject = json.loads(base64.urlsafe_b64decode(segment + "=="))
    return decoded


def _changed(members: JsonObject, changes: Mapping[str, JsonValue]) -> JsonObject:
    return {name: value for name, value in {**members, **changes}.items() if value is not None}


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
        draft = Draft(
            key=signing_key(),
            issued_at=self.clock.now,
            delivery_id=f"delivery-{task_id}-{number}",
            task_id=task_id,
            seq=number,
            body=status_body(task_id, state_name) if kind == "status" else artifact_body(task_id),
        )
        draft.headers = [
            ("Content-Type", "application/a2a+json"),
            ("A2A-Version", "1.0"),
            ("X-A2A-Token", token),
            ("X-A2A-Notification-Token", token),
            ("webhook-id", draft.delivery_id),
            ("webhook-timestamp", str(int(draft.issued_at.timestamp()))),
        ]
        return draft

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
