"""What a sender sends is what the tables of docs/wire.md say: header fields, and claims."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

import pushkit
from pushkit import (
    Algorithm,
    KeyRing,
    PushSender,
    Scheme,
    SenderOptions,
    Signing,
    StatusUpdate,
    Subscription,
    Task,
    TaskState,
    TaskStatus,
)
from tests.clock import START, Clock
from tests.contract.pages import codes_in, page, table

HEADERS = dict(table("wire.md", "| header | value |"))
CLAIMS = dict(table("wire.md", "| claim | |"))
ISSUER = "https://agent.example.com"
TOKEN, API_KEY = "the-token-is-private", "the-key-is-private"
SECRET = f"whsec_{base64.b64encode(bytes(range(32))).decode()}"
VERSIONS = ("0.1", "0.3", "1.0", "agentvault-0.2")
# By the owner of the subscription: how it is made. A version's has the name of the version.
CONFIGS: dict[str, dict[str, Any]] = {
    "0.1": {"token": TOKEN},
    "0.3": {"token": TOKEN, "id": "config-1"},
    "1.0": {"token": TOKEN, "id": "config-1"},
    "agentvault-0.2": {},
    "with credentials": {"authentication": {"scheme": "Basic", "credentials": "YTpi"}},
    "with an API key": {"authentication": {"scheme": "ApiKey", "credentials": API_KEY}},
    "without a path": {},
    "signed by all": {"token": TOKEN},
    "samples": {},
}


@dataclass
class Request:
    """A request as it arrived."""

    fields: list[tuple[str, str]]
    body: bytes
    url: str
    jwks: dict[str, Any]

    def one(self, name: str) -> str:
        [value] = self.all(name)
        return value

    def all(self, name: str) -> list[str]:
        return [value for field, value in self.fields if field.lower() == name.lower()]

    @property
    def jwt(self) -> str:
        return (self.all("X-A2A-Signature") or self.all("Authorization"))[0].split(" ")[-1]

    @property
    def header(self) -> dict[str, Any]:
        return jwt.get_unverified_header(self.jwt)

    @property
    def claims(self) -> dict[str, Any]:
        """Return the claims, once the signature is verified with the keys that are published."""
        [key] = [key for key in self.jwks["keys"] if key["kid"] == self.header["kid"]]
        claims: dict[str, Any] = jwt.decode(
            self.jwt,
            jwt.PyJWK(key),
            options={"verify_exp": False, "verify_iat": False, "verify_aud": False},
        )
        return claims


Sent = dict[str, list[Request]]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    """Return the two requests that each subscription gets for two updates."""
    return asyncio.run(everything_sent(tmp_path_factory.mktemp("requests") / "outbox.db"))


async def everything_sent(database: Path) -> Sent:
    clock, sent = Clock(), Sent()
    ring = KeyRing.create(START - timedelta(days=1)).add(START - timedelta(days=1), Algorithm.RS256)

    async def take(request: web.Request) -> web.Response:
        by = base64.urlsafe_b64decode(request.query.get("by", "")).decode() or "without a path"
        fields, body = list(request.headers.items()), await request.read()
        sent.setdefault(by, []).append(Request(fields, body, str(request.url), keys))
        return web.Response()

    app = web.Application()
    app.router.add_post("/{path:.*}", take)
    async with TestServer(app) as server, sending(database, ring, clock) as sender:
        keys = json.loads(sender.jwks().body)
        for owner, config in CONFIGS.items():
            version = version_of(owner)
            named = base64.urlsafe_b64encode(owner.encode()).decode()
            url = f"http://127.0.0.1:{server.port}/Hook?by={named}"
            if owner == "without a path":
                url = url.partition("/Hook")[0]
            members = {"webhookUrl" if version == VERSIONS[-1] else "url": url, **config}
            profile = "a2a-samples" if owner == "samples" else "standard"
            await sender.subscribe("task-1", members, version=version, owner=owner, profile=profile)
        for _ in range(2):
            await sender.notify(UPDATE, snapshot=Task(id="task-1", context_id="c", status=WORKING))
        clock.advance(0.9)
        while await sender.worker.run_once():
            pass
    return sent


def version_of(kind: str) -> str:
    return kind if kind in VERSIONS else "1.0"


WORKING = TaskStatus(state=TaskState.WORKING)
UPDATE = StatusUpdate(task_id="task-1", context_id="c", status=WORKING)


def sending(database: Path, ring: KeyRing, clock: Clock) -> PushSender:
    def signing(subscription: Subscription) -> Signing:
        if subscription.key.owner == "signed by all":
            return Signing(schemes=list(Scheme), webhook_secrets=[SECRET])
        return Signing()

    return PushSender(
        issuer=ISSUER,
        keys=ring,
        database=database,
        allow=["127.0.0.1:*"],
        options=SenderOptions(signing=signing, go_token_spelling=True),
        clock=clock,
    )


# --- header fields -------------------------------------------------------------------------------


def content_type(request: Request, kind: str, says: str) -> None:
    types = {
        name.replace("A2A ", ""): media_type
        for media_type, names in re.findall(r"`([^`]+)` \(([^)]*)\)", says)
        for name in names.split(", ")
    }
    assert (
        request.one("Content-Type") == types[version_of(kind).replace(VERSIONS[-1], "AgentVault")]
    )


def a2a_version(request: Request, kind: str, says: str) -> None:
    assert tuple(codes_in(says)) == VERSIONS
    assert request.one("A2A-Version") == version_of(kind)


def user_agent(request: Request, _: str, says: str) -> None:
    [written] = codes_in(says)
    assert request.one("User-Agent") == written.replace("<version>", pushkit.__version__)


def authorization(request: Request, kind: str, says: str) -> None:
    bearer, static = codes_in(says)
    if kind == "with credentials":
        expected = static.replace("{scheme}", "Basic").replace("{credentials}", "YTpi")
    else:
        expected = bearer.replace("<notification JWT>", request.jwt)
    assert request.one("Authorization") == expected


def jwt_of_its_own(request: Request, kind: str, says: str) -> None:
    assert says == "the notification JWT, if `Authorization` carries credentials"
    assert len(request.all("X-A2A-Signature")) == (kind == "with credentials")
    assert request.claims["taskId"] == "task-1"


def api_key(request: Request, kind: str, says: str) -> None:
    assert CONFIGS["with an API key"]["authentication"]["scheme"] in codes_in(says)
    assert request.all("X-Api-Key") == [API_KEY] * (kind == "with an API key")


def token(request: Request, kind: str, says: str) -> None:
    for name in (*codes_in(HEADER_OF[says]), codes_in(says)[-1]):
        assert request.all(name) == [TOKEN] * ("token" in CONFIGS[kind])


def ids(request: Request, _: str, says: str) -> None:
    assert says.startswith("the delivery id, the same on every attempt; the Unix seconds")
    assert request.one("webhook-id") == request.claims["jti"]
    assert request.one("webhook-timestamp") == str(int(START.timestamp()))


def standard_webhooks(request: Request, kind: str, _: str) -> None:
    if kind != "signed by all":
        assert request.all("webhook-signature") == []
        return
    signed = f"{request.one('webhook-id')}.{request.one('webhook-timestamp')}.".encode()
    made = hmac.digest(bytes(range(32)), signed + request.body, hashlib.sha256)
    assert request.one("webhook-signature") == f"v1,{base64.b64encode(made).decode()}"


def http_message_signature(request: Request, kind: str, says: str) -> None:
    names = codes_in(HEADER_OF[says])
    assert [len(request.all(name)) for name in names] == [kind == "signed by all"] * len(names)
    if kind == "signed by all":
        digest = base64.b64encode(hashlib.sha256(request.body).digest()).decode()
        assert request.one("Content-Digest") == f"sha-256=:{digest}:"
        assert '"@target-uri"' in request.one("Signature-Input")


HEADER_OF = {says: names for names, says in HEADERS.items()}
FIELDS: dict[str, Callable[[Request, str, str], None]] = {
    "`Content-Type`": content_type,
    "`A2A-Version`": a2a_version,
    "`User-Agent`": user_agent,
    "`Authorization`": authorization,
    "`X-A2A-Signature`": jwt_of_its_own,
    "`X-Api-Key`": api_key,
    "`X-A2A-Token`, `X-A2A-Notification-Token`": token,
    "`webhook-id`, `webhook-timestamp`": ids,
    "`webhook-signature`": standard_webhooks,
    "`Content-Digest`, `Signature-Input`, `Signature`": http_message_signature,
}
# Needs OpenTelemetry: tests/unit/pushkit/telemetry/test_tracing.py sends it.
ELSEWHERE = {"`traceparent`"}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("names", FIELDS)
def test_a_header_is_what_its_row_says(sent: Sent, names: str, kind: str) -> None:
    for request in sent[kind]:
        FIELDS[names](request, kind, HEADERS[names])


def test_every_header_of_the_table_has_a_case() -> None:
    assert HEADERS.keys() == FIELDS.keys() | ELSEWHERE


# --- claims --------------------------------------------------------------------------------------


def issuer(request: Request, _: str) -> None:
    assert request.claims["iss"] == ISSUER


def audience(request: Request, says: str) -> None:
    url = request.url
    if "?" not in url:
        assert "an empty path is `/`" in says
        assert url.endswith("/")
    assert request.claims["aud"] == url


def times(request: Request, says: str) -> None:
    [lifetime] = re.findall(r"`exp` (\d+) s later", says)
    assert request.claims["iat"] == int(START.timestamp())
    assert request.claims["exp"] == request.claims["iat"] + int(lifetime)


def delivery_id(request: Request, says: str) -> None:
    assert request.claims["jti"] == request.one(codes_in(says)[0])
    assert "." not in request.claims["jti"]


def task_and_config(request: Request, _: str) -> None:
    assert request.claims["taskId"] == "task-1"
    assert request.claims["configId"] in ("config-1", "task-1")


def digest(request: Request, _: str) -> None:
    assert request.claims["request_body_sha256"] == hashlib.sha256(request.body).hexdigest()


CLAIM: dict[str, Callable[[Request, str], None]] = {
    "`iss`": issuer,
    "`aud`": audience,
    "`iat`, `exp`": times,
    "`jti`": delivery_id,
    "`taskId`, `configId`, `seq`": task_and_config,
    "`request_body_sha256`": digest,
}


@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "samples"])
@pytest.mark.parametrize("names", CLAIMS)
def test_a_claim_is_what_its_row_says(sent: Sent, names: str, kind: str) -> None:
    for request in sent[kind]:
        CLAIM[names](request, CLAIMS[names])
    assert [request.claims["seq"] for request in sent[kind]] == [1, 2]


def test_the_tables_claims_are_all_that_is_signed(sent: Sent) -> None:
    for kind, requests in sent.items():
        left_out = {"aud"} if kind == "samples" else set()
        named = {name for names in CLAIMS for name in codes_in(names)}
        assert requests[0].claims.keys() == named - left_out


def test_the_header_of_the_jwt_is_the_one_of_the_page(sent: Sent) -> None:
    [members, algorithm] = re.findall(
        r"Header `\{(.*?)\}`.*?thumbprint\. (\w+) by", page("wire.md")
    )[0]
    [weaker] = re.findall(r"`a2a-samples` \((\w+), no `aud`", page("wire.md"))
    for kind, requests in sent.items():
        header = requests[0].header
        assert set(re.findall(r'"(\w+)"', members)) == {*header, "JWT"}
        assert header["alg"] == (weaker if kind == "samples" else algorithm)
        assert header["typ"] == "JWT"
        assert header["kid"] in [key["kid"] for key in requests[0].jwks["keys"]]
