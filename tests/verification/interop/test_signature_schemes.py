"""The signature schemes over sockets: our sender to the reference libraries, and those to us.

`standardwebhooks`, `svix` and `http-message-signatures` sign and verify; aiohttp carries.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import http_message_signatures as oracle
import pytest
import standardwebhooks
import svix.webhooks
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from pushkit import (
    Algorithm,
    KeyRing,
    PushSender,
    Scheme,
    SenderOptions,
    Signing,
    StatusUpdate,
    TaskState,
    TaskStatus,
)
from pushkit.integrations.aiohttp import jwks_route
from pushkit.keys.jwk import VerificationKey, generate_key
from pushkit.keys.jwks import JWKS_PATH, parse_jwks
from pushkit.signing.standard_webhooks import generate_webhook_secret
from receiver import Receiver, TaskPolicy, TrustedSender
from tests.eventually import DEADLINE
from tests.verification.interop.conftest import attempted

SECRET = generate_webhook_secret()
ISSUER = "https://agent.example.com"
TOKEN = "the-token"
BODY = json.dumps(
    {
        "statusUpdate": {
            "taskId": "task-1",
            "contextId": "context-1",
            "status": {"state": "TASK_STATE_COMPLETED"},
            "metadata": {"text": "Grüße"},
        }
    },
    ensure_ascii=False,
).encode()
COVERED = (
    "@method",
    "@target-uri",
    "content-type",
    "content-digest",
    "webhook-id",
    "x-a2a-token",
    "x-a2a-notification-token",
)
JWT, WEBHOOKS, HTTP = Scheme.JWT, Scheme.STANDARD_WEBHOOKS, Scheme.HTTP_MESSAGE_SIGNATURES

Verify = Callable[["Foreign", web.Request, bytes], None]


def update(state: TaskState = TaskState.COMPLETED) -> StatusUpdate:
    return StatusUpdate(task_id="task-1", context_id="context-1", status=TaskStatus(state=state))


# --- from our sender to their verifiers ---------------------------------------------------------


@dataclass
class Foreign(oracle.HTTPSignatureKeyResolver):
    """A webhook that somebody else wrote: it answers 401 to what its library does not verify."""

    verify: Verify
    base: str = ""
    keys: dict[str, VerificationKey] = field(default_factory=dict)
    verdicts: list[int] = field(default_factory=list)

    def resolve_public_key(self, key_id: str) -> Any:
        return self.keys[key_id].public_key

    def resolve_private_key(self, key_id: str) -> Any:
        raise NotImplementedError

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            self.verify(self, request, body)
        except (
            standardwebhooks.WebhookVerificationError,
            svix.webhooks.WebhookVerificationError,
            oracle.HTTPMessageSignaturesException,
        ):
            self.verdicts.append(401)
        else:
            self.verdicts.append(200)
        return web.Response(status=self.verdicts[-1])


def by_standardwebhooks(_: Foreign, request: web.Request, body: bytes) -> None:
    standardwebhooks.Webhook(SECRET).verify(body, dict(request.headers))


def by_svix(_: Foreign, request: web.Request, body: bytes) -> None:
    svix.webhooks.Webhook(SECRET).verify(body, dict(request.headers))


def by_http_message_signatures(webhook: Foreign, request: web.Request, body: bytes) -> None:
    message = SimpleNamespace(
        method=request.method,
        url=f"{webhook.base}{request.raw_path}",
        headers=dict(request.headers),
    )
    verifier = oracle.HTTPMessageVerifier(
        signature_algorithm=oracle.algorithms.ECDSA_P256_SHA256, key_resolver=webhook
    )
    verifier.verify(message, expect_tag="a2a-push", require_components=COVERED, body=body)


VERIFIERS = [
    pytest.param(WEBHOOKS, by_standardwebhooks, id="standardwebhooks"),
    pytest.param(WEBHOOKS, by_svix, id="svix"),
    pytest.param(HTTP, by_http_message_signatures, id="http-message-signatures"),
]

MakePush = Callable[[Signing], Awaitable[PushSender]]


@pytest.fixture
async def make_push(tmp_path: Path) -> AsyncIterator[MakePush]:
    made: list[PushSender] = []

    async def make(signing: Signing) -> PushSender:
        push = PushSender(
            issuer=ISSUER,
            keys=KeyRing.create(datetime.now(UTC)),
            database=tmp_path / "outbox.db",
            allow=["127.0.0.1:*"],
            options=SenderOptions(signing=signing),
        )
        made.append(push)
        await push.start()
        return push

    yield make
    for push in made:
        await push.close()


def signing_by(*schemes: Scheme, secret: str = SECRET) -> Signing:
    return Signing(schemes=schemes, webhook_secrets=[secret] if WEBHOOKS in schemes else [])


async def foreign_webhook(server: AiohttpServer, verify: Verify, push: PushSender) -> Foreign:
    webhook = Foreign(verify, keys={key.kid: key for key in parse_jwks(push.jwks().body).keys})
    app = web.Application()
    app.router.add_post("/hook", webhook.handle)
    webhook.base = str((await server(app)).make_url("")).rstrip("/")
    return webhook


async def deliver(push: PushSender, url: str) -> None:
    await push.subscribe("task-1", {"url": url, "token": TOKEN}, version="1.0", owner="alice")
    await push.notify(update())
    await attempted(push, "task-1")


@pytest.mark.parametrize(("scheme", "verify"), VERIFIERS)
@pytest.mark.parametrize("beside", [(), (JWT,)], ids=["alone", "beside-the-jwt"])
async def test_they_verify_what_we_send(
    make_push: MakePush,
    aiohttp_server: AiohttpServer,
    scheme: Scheme,
    verify: Verify,
    beside: tuple[Scheme, ...],
) -> None:
    push = await make_push(signing_by(scheme, *beside))
    webhook = await foreign_webhook(aiohttp_server, verify, push)
    await deliver(push, f"{webhook.base}/hook?a=%2F&b")
    assert webhook.verdicts == [200]


@pytest.mark.parametrize(("scheme", "verify"), VERIFIERS)
async def test_they_refuse_what_somebody_else_sends(
    make_push: MakePush, aiohttp_server: AiohttpServer, scheme: Scheme, verify: Verify
) -> None:
    push = await make_push(signing_by(scheme, secret=generate_webhook_secret()))
    webhook = await foreign_webhook(aiohttp_server, verify, push)
    strangers = generate_key(Algorithm.ES256).to_verification_key()
    webhook.keys = dict.fromkeys(webhook.keys, strangers)
    await deliver(push, f"{webhook.base}/hook")
    assert webhook.verdicts == [401]


# --- from their signers to our receiver ---------------------------------------------------------


KEY = generate_key(Algorithm.EDDSA)


class _TheirKey(oracle.HTTPSignatureKeyResolver):
    def resolve_public_key(self, key_id: str) -> Any:
        raise NotImplementedError

    def resolve_private_key(self, key_id: str) -> Any:
        assert key_id == KEY.kid
        return KEY.private_key


def sign_by_library(library: type) -> Callable[[str, dict[str, str]], None]:
    def sign(_: str, headers: dict[str, str]) -> None:
        moment = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
        headers["webhook-signature"] = library(SECRET).sign(
            headers["webhook-id"], moment, BODY.decode()
        )

    return sign


def sign_by_http_message_signatures(url: str, headers: dict[str, str]) -> None:
    oracle.HTTPMessageSigner(
        signature_algorithm=oracle.algorithms.ED25519, key_resolver=_TheirKey()
    ).sign(
        SimpleNamespace(method="POST", url=url, headers=headers),
        key_id=KEY.kid,
        created=datetime.now(UTC),
        expires=datetime.now(UTC) + timedelta(seconds=60),
        tag="a2a-push",
        covered_component_ids=COVERED,
        body=BODY,
    )


SIGNERS = [
    pytest.param(WEBHOOKS, sign_by_library(standardwebhooks.Webhook), id="standardwebhooks"),
    pytest.param(WEBHOOKS, sign_by_library(svix.webhooks.Webhook), id="svix"),
    pytest.param(HTTP, sign_by_http_message_signatures, id="http-message-signatures"),
]
Sign = Callable[[str, dict[str, str]], None]


@pytest.fixture
def trusted(tmp_path: Path, unused_tcp_port: int) -> Callable[[Scheme], Receiver]:
    def make(scheme: Scheme) -> Receiver:
        public = KEY.to_verification_key()
        sender = TrustedSender(
            name="theirs",
            schemes=frozenset({scheme}),
            keys=[public] if scheme is HTTP else None,
            webhook_secrets=[SECRET] if scheme is WEBHOOKS else [],
            tokens=[TOKEN],
            tasks=TaskPolicy.ANY,
        )
        return Receiver(
            url=f"http://127.0.0.1:{unused_tcp_port}",
            senders=[sender],
            database=tmp_path / "inbox.db",
        )

    return make


@pytest.mark.parametrize(("scheme", "sign"), SIGNERS)
async def test_we_verify_what_they_send(
    trusted: Callable[[Scheme], Receiver],
    aiohttp_server: AiohttpServer,
    unused_tcp_port: int,
    scheme: Scheme,
    sign: Sign,
) -> None:
    receiver = trusted(scheme)
    await aiohttp_server(receiver.app(), port=unused_tcp_port)
    url = f"{receiver.url}/a2a/push"
    headers = {
        "Content-Type": "application/a2a+json",
        "X-A2A-Token": TOKEN,
        "X-A2A-Notification-Token": TOKEN,
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(datetime.now(UTC).timestamp())),
    }
    sign(url, headers)
    async with aiohttp.ClientSession() as session:
        statuses = []
        for body in (BODY, BODY, BODY.replace(b"COMPLETED", b"CANCELED")):
            async with session.post(url, data=body, headers=headers) as answer:
                statuses.append(answer.status)
    assert statuses == [202, 200, 401]
    found = await receiver.wait("task-1", timeout=DEADLINE)
    assert (found.sender, found.state) == ("theirs", TaskState.COMPLETED)


# --- from our sender to our receiver ------------------------------------------------------------


@pytest.mark.parametrize(
    "schemes",
    [
        pytest.param((WEBHOOKS,), id="standard-webhooks"),
        pytest.param((HTTP,), id="http-message-signatures"),
        pytest.param((JWT, WEBHOOKS, HTTP), id="all"),
    ],
)
async def test_both_ends_agree(
    make_push: MakePush,
    aiohttp_server: AiohttpServer,
    unused_tcp_port: int,
    tmp_path: Path,
    schemes: tuple[Scheme, ...],
) -> None:
    push = await make_push(signing_by(*schemes))
    app = web.Application()
    app.add_routes([jwks_route(push)])
    jwks_url = str((await aiohttp_server(app)).make_url(JWKS_PATH))
    by_key = set(schemes) != {WEBHOOKS}
    receiver = Receiver(
        url=f"http://127.0.0.1:{unused_tcp_port}",
        senders=[
            TrustedSender(
                name="agent",
                issuer=ISSUER,
                jwks_url=jwks_url if by_key else None,
                schemes=frozenset(schemes),
                webhook_secrets=[SECRET] if WEBHOOKS in schemes else [],
            )
        ],
        database=tmp_path / "inbox.db",
        allow=["127.0.0.1:*"],
    )
    await aiohttp_server(receiver.app(), port=unused_tcp_port)
    expected = await receiver.expect(version="1.0")
    await push.subscribe("task-1", expected.as_json(), version="1.0", owner="alice")
    await push.notify(update())
    notification = await receiver.wait("task-1", timeout=DEADLINE)
    await attempted(push, "task-1")
    [delivery] = await push.deliveries("task-1")
    assert (delivery.last_status, delivery.id) == (202, notification.delivery_id)
