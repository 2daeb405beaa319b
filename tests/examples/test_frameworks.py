"""The examples for other frameworks, as processes of their own, and a genuine sender's requests.

One process of each for all tests of it: each test has delivery ids of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from pushkit.clock import utc_now
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key, public_jwk
from pushkit.signing.jose import at_once
from pushkit.signing.notification_jwt import body_sha256
from tests.eventually import eventually
from tests.notification_claims import NotificationClaims, sign_notification
from tests.ports import free_port

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ISSUER, TOKEN = "https://agent.example.com", "the-token"
BODY = b'{"statusUpdate":{"taskId":"task-1","status":{"state":"TASK_STATE_WORKING"}}}'
OTHER = BODY.replace(b"WORKING", b"COMPLETED")
KEY = generate_key(Algorithm.ES256)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Webhook:
    """A webhook that runs."""

    url: str
    ids: str = ""  # what the delivery ids of a test begin with

    async def post(
        self,
        signed: bytes,
        *,
        sent: bytes | None = None,
        token: str = TOKEN,
        delivery_id: str = "dlv-1",
        key: SigningKey = KEY,
    ) -> int:
        """Sign a body, post it or another one, and return the status."""
        claims = NotificationClaims(
            issuer=ISSUER,
            audience=self.url,
            issued_at=utc_now(),
            delivery_id=f"{self.ids}{delivery_id}",
            task_id="task-1",
            config_id="config-1",
            seq=1,
            body_sha256=body_sha256(signed),
        )
        headers = {
            "Content-Type": "application/a2a+json",
            "Authorization": f"Bearer {at_once(sign_notification(claims, key))}",
            "X-A2A-Notification-Token": token,
            "webhook-id": f"{self.ids}{delivery_id}",
        }
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url, data=sent or signed, headers=headers) as answer,
        ):
            return answer.status

    async def listens(self) -> bool:
        """Say whether it answers yet."""
        try:
            async with aiohttp.ClientSession() as session, session.get(self.url) as answer:
                return answer.status == 405
        except aiohttp.ClientConnectionError:
            return False


async def run(
    folder: Path, environment: Mapping[str, str], *command: str
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=folder, env={**os.environ, **environment}
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def jwks_url() -> AsyncIterator[str]:
    async def serve(_request: web.Request) -> web.Response:
        return web.json_response({"keys": [public_jwk(KEY)]})

    app = web.Application()
    app.router.add_get("/jwks.json", serve)
    async with TestServer(app) as server:
        yield str(server.make_url("/jwks.json"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["django", "flask"])
async def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, jwks_url: str
) -> AsyncIterator[Webhook]:
    """Run an example from a copy."""
    tmp_path = tmp_path_factory.mktemp("framework")
    port = free_port()
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLES / f"{request.param}_webhook", folder)
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [public_jwk(KEY)]}))
    environment = {
        "WEBHOOK_URL": f"http://127.0.0.1:{port}",
        "AGENT_ISSUER": ISSUER,
        "AGENT_JWKS": str(jwks) if request.param == "django" else jwks_url,
        "AGENT_TOKEN": TOKEN,
        "DATABASE": str(tmp_path / "example.db"),
    }
    if request.param == "django":
        migrate = await run(folder, environment, "manage.py", "migrate", "--verbosity=0")
        assert await migrate.wait() == 0
        command = ["manage.py", "runserver", "--noreload", f"127.0.0.1:{port}"]
    else:
        command = ["-m", "flask", "--app", "app.py", "run", "--port", str(port)]
    process = await run(folder, environment, *command)
    webhook = Webhook(f"http://127.0.0.1:{port}/a2a/push")
    try:
        await eventually(webhook.listens)
        yield webhook
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
def webhook(running: Webhook) -> Webhook:
    """Return the example, to which this test has sent nothing yet."""
    return replace(running, ids=f"{secrets.token_hex(4)}-")


async def test_a_genuine_notification_is_accepted_once(webhook: Webhook) -> None:
    statuses = [
        await webhook.post(BODY),
        await webhook.post(BODY),  # a retry, signed anew
        await webhook.post(OTHER),  # under the same id
        await webhook.post(OTHER, delivery_id="dlv-2"),
    ]

    assert statuses == [202, 200, 409, 202]


async def test_what_is_not_genuine_is_refused_and_leaves_nothing(webhook: Webhook) -> None:
    refused = [
        await webhook.post(BODY, sent=OTHER),
        await webhook.post(BODY, token="another"),
        await webhook.post(BODY, key=generate_key(Algorithm.ES256)),
    ]

    assert refused == [401, 401, 401]
    assert await webhook.post(BODY) == 202


async def test_concurrent_copies_are_accepted_once(webhook: Webhook) -> None:
    statuses = await asyncio.gather(*(webhook.post(BODY) for _ in range(10)))

    assert sorted(statuses) == [200] * 9 + [202]
