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

HEADERS = {
    name: says for names, says in table("wire.md", "| header | value |") for name in codes_in(names)
}
CLAIMS = {name: says for names, says in table("wire.md", "| claim | |") for name in codes_in(names)}

ISSUER = "https://agent.example.com"
TOKEN, API_KEY = "the-token-is-private", "the-key-is-private"
SECRET = bytes(range(32))
VERSIONS = ("0.1", "0.3", "1.0", "agentvault-0.2")
# By the owner of the subscription, what its config has. A version's is named after the version.
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
WORKING = TaskStatus(state=TaskState.WORKING)
UPDATE = StatusUpdate(task_id="task-1", context_id="c", status=WORKING)


@dataclass
class Request:
    """A request as it arrived."""

    kind: str  # the key of its config
    fields: list[tuple[str, str]]
    body: bytes
    url: str
    jwks: dict[str, Any]

    @property
    def version(self) -> str:
        return self.kind if self.kind in VERSIONS else "1.0"

    @property
    def config(self) -> dict[str, Any]:
        return CONFIGS[self.kind]

    def all(self, name: str) -> list[str]:
        return [value for field, value in self.fields if field.lower() == name.lower()]

    @property
    def jwt(self) -> str:
        return (self.all("X-A2A-Signature") or self.all("Authorization"))[0].split(" ")[-1]

    @property
    def claims(self) -> dict[str, Any]:
        """Return the claims, once the signature is verified with the keys that are published."""
        kid = jwt.get_unverified_header(self.jwt)["kid"]
        [key] = [key for key in self.jwks["keys"] if key["kid"] == kid]
        return jwt.decode(
            self.jwt,
            jwt.PyJWK(key),
            options={"verify_exp": False, "verify_iat": False, "verify_aud": False},
        )


Sent = dict[str, list[Request]]


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Sent:
    """Return the two requests that each subscription gets for two updates."""
    return asyncio.run(everything_sent(tmp_path_factory.mktemp("requests") / "outbox.db"))


async def everything_sent(database: Path) -> Sent:
    sent, clock, begun = Sent(), Clock(), START - timedelta(days=1)
    paths = {f"/{number}%2F": kind for number, kind in enumerate(CONFIGS)}

    async def take(request: web.Request) -> web.Response:
        kind, url = paths.get(request.raw_path, "without a path"), request.raw_path
        fields, body = list(request.headers.items()), await request.read()
        arrived = Request(kind, fields, body, f"http://{request.host}{url}", keys)
        sent.setdefault(kind, []).append(arrived)
        return web.Response()

    app = web.Application()
    app.router.add_post("/{path:.*}", take)
    sender = PushSender(
        issuer=ISSUER,
        keys=KeyRing.create(begun).add(begun, Algorithm.RS256),
        database=database,
        allow=["127.0.0.1:*"],
        options=SenderOptions(signing=signing),
        clock=clock,
    )
    async with TestServer(app) as server, sender:
        keys = json.loads(sender.jwks().body)
        for path, kind in paths.items():
            url = f"http://127.0.0.1:{server.port}{path * (kind != 'without a path')}"
            version = kind if kind in VERSIONS else "1.0"
            member = "webhookUrl" if version == VERSIONS[-1] else "url"
            profile = "a2a-samples" if kind == "samples" else "standard"
            config = {member: url, **CONFIGS[kind]}
            await sender.subscribe("task-1", config, version=version, owner=kind, profile=profile)
        for _ in range(2):
            await sender.notify(UPDATE, snapshot=Task(id="task-1", context_id="c", status=WORKING))
        clock.advance(0.9)
        while await sender.worker.run_once():
            pass
    return sent


def signing(subscription: Subscription) -> Signing:
    if subscription.key.owner == "signed by all":
        secret = f"whsec_{base64.b64encode(SECRET).decode()}"
        return Signing(schemes=list(Scheme), webhook_secrets=[secret])
    return Signing()


# --- header fields -------------------------------------------------------------------------------


def content_type(request: Request, says: str) -> str:
    types = {
        name.replace("A2A ", ""): media_type
        for media_type, names in re.findall(r"`([^`]+)` \(([^)]*)\)", says)
        for name in names.split(", ")
    }
    return str(types[request.version.replace(VERSIONS[-1], "AgentVault")])


def authorization(request: Request, says: str) -> str:
    bearer, static = codes_in(says)
    if request.kind == "with credentials":
        return static.replace("{scheme}", "Basic").replace("{credentials}", "YTpi")
    return bearer.replace("<notification JWT>", request.jwt)


def webhook_signature(request: Request, _: str) -> str:
    content = f"{request.claims['jti']}.{int(START.timestamp())}.".encode() + request.body
    made = hmac.digest(SECRET, content, hashlib.sha256)
    return f"v1,{base64.b64encode(made).decode()}" * (request.kind == "signed by all")


def content_digest(request: Request, _: str) -> str:
    digest = base64.b64encode(hashlib.sha256(request.body).digest()).decode()
    return f"sha-256=:{digest}:" * (request.kind == "signed by all")


# What a request has by its config, and by what the row says; nothing if it has no such field.
FIELDS: dict[str, Callable[[Request, str], str]] = {
    "Content-Type": content_type,
    "A2A-Version": lambda request, says: codes_in(says)[VERSIONS.index(request.version)],
    "User-Agent": lambda _, says: codes_in(says)[0].replace("<version>", pushkit.__version__),
    "Authorization": authorization,
    "X-A2A-Signature": lambda request, _: request.jwt * (request.kind == "with credentials"),
    "X-Api-Key": lambda request, _: API_KEY * (request.kind == "with an API key"),
    "X-A2A-Token": lambda request, _: request.config.get("token", ""),
    "X-A2A-Notification-Token": lambda request, _: request.config.get("token", ""),
    "webhook-id": lambda request, _: request.claims["jti"],
    "webhook-timestamp": lambda *_: str(int(START.timestamp())),
    "webhook-signature": webhook_signature,
    "Content-Digest": content_digest,
}
# Verified where they are accepted, by a receiver (test_schemes.py) and by the reference library
# (test_signatures.py); the trace needs OpenTelemetry (test_tracing.py).
ELSEWHERE = {"Signature-Input", "Signature", "traceparent"}


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", FIELDS)
def test_a_header_is_what_its_row_says(sent: Sent, name: str, kind: str) -> None:
    for request in sent[kind]:
        value = FIELDS[name](request, HEADERS[name])
        assert request.all(name) == ([value] if value else [])


def test_every_header_of_the_table_has_a_case(sent: Sent) -> None:
    assert HEADERS.keys() == FIELDS.keys() | ELSEWHERE
    beside = {name.lower() for name, _ in sent["signed by all"][0].fields}
    named = {name.lower() for name in HEADERS}
    assert beside - named == {"host", "accept-encoding", "content-length"}


# --- claims --------------------------------------------------------------------------------------


def expires(request: Request, says: str) -> int:
    [lifetime] = re.findall(r"`exp` (\d+) s later", says)
    return int(request.claims["iat"]) + int(lifetime)


CLAIM: dict[str, Callable[[Request, str], object]] = {
    "iss": lambda *_: ISSUER,
    "aud": lambda request, _: request.url,
    "iat": lambda *_: int(START.timestamp()),
    "exp": expires,
    "jti": lambda request, says: request.all(codes_in(says)[0])[0],
    "taskId": lambda *_: "task-1",
    "configId": lambda request, _: request.config.get("id", "task-1"),
    "request_body_sha256": lambda request, _: hashlib.sha256(request.body).hexdigest(),
}


@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "samples"])
@pytest.mark.parametrize("name", CLAIM)
def test_a_claim_is_what_its_row_says(sent: Sent, name: str, kind: str) -> None:
    for request in sent[kind]:
        assert request.claims[name] == CLAIM[name](request, CLAIMS[name])


def test_the_claims_of_the_table_are_all_that_is_signed(sent: Sent) -> None:
    assert CLAIMS.keys() == CLAIM.keys() | {"seq"}
    for kind, requests in sent.items():
        assert [request.claims["seq"] for request in requests] == [1, 2]
        without = {"aud"} if kind == "samples" else set()
        assert requests[0].claims.keys() == CLAIMS.keys() - without


def test_the_header_of_the_jwt_is_the_one_of_the_page(sent: Sent) -> None:
    pattern = r"Header `\{(.*?)\}`.*?thumbprint\. (\w+) by.*?`a2a-samples` \((\w+), no `aud`"
    [(members, algorithm, weaker)] = re.findall(pattern, page("wire.md"), re.DOTALL)
    for kind, requests in sent.items():
        header = jwt.get_unverified_header(requests[0].jwt)
        assert {*header, header["typ"]} == set(re.findall(r'"(\w+)"', members))
        assert header["alg"] == (weaker if kind == "samples" else algorithm)
