"""The examples for other frameworks, as processes of their own, and a genuine sender's requests.

One process of each for all tests of it: each draft has a delivery id of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from pushkit.keys.jwk import Algorithm, generate_key, public_jwk
from receiver.testing import Draft, SigningAgent
from tests.eventually import eventually
from tests.ports import free_port

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ISSUER, TOKEN = "https://agent.example.com", "the-token-that-was-handed-out"
KEY = generate_key(Algorithm.ES256)
JWKS = {"keys": [public_jwk(KEY)]}


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post(draft: Draft) -> int:
    """Post a draft, signed anew; return the status."""
    request = draft.request()
    async with (
        aiohttp.ClientSession() as session,
        session.post(request.target, data=request.body, headers=list(request.headers)) as answer,
    ):
        return answer.status


async def listens(url: str) -> bool:
    """Say whether a webhook answers yet."""
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
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
        return web.json_response(JWKS)

    app = web.Application()
    app.router.add_get("/jwks.json", serve)
    async with TestServer(app) as server:
        yield str(server.make_url("/jwks.json"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["django", "flask"])
async def agent(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, jwks_url: str
) -> AsyncIterator[SigningAgent]:
    """Run an example from a copy; yield the agent that it trusts."""
    tmp_path = tmp_path_factory.mktemp("framework")
    port = free_port()
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLES / f"{request.param}_webhook", folder)
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps(JWKS))
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
    url = f"http://127.0.0.1:{port}/a2a/push"
    try:
        await eventually(lambda: listens(url))
        yield SigningAgent(webhook_url=url, issuer=ISSUER, token=TOKEN, key=KEY)
    finally:
        process.terminate()
        await process.wait()


def other(draft: Draft) -> bytes:
    """Return another body than a draft's."""
    return draft.body.replace(b"WORKING", b"COMPLETED")


async def test_a_genuine_notification_is_accepted_once(agent: SigningAgent) -> None:
    draft = agent.draft("task-1")
    statuses = [
        await post(draft),
        await post(draft),  # a retry, signed anew
        await post(replace(draft, body=other(draft))),  # under the same id
        await post(agent.draft("task-1")),
    ]

    assert statuses == [202, 200, 409, 202]


async def test_what_is_not_genuine_is_refused_and_leaves_nothing(agent: SigningAgent) -> None:
    draft = agent.draft("task-1")
    refused = [
        await post(replace(draft, body_sent=other(draft))),
        await post(replace(draft, token="another")),
        await post(draft.forged()),
    ]

    assert refused == [401, 401, 401]
    assert await post(draft) == 202


async def test_concurrent_copies_are_accepted_once(agent: SigningAgent) -> None:
    draft = agent.draft("task-1")
    statuses = await asyncio.gather(*(post(draft) for _ in range(10)))

    assert sorted(statuses) == [200] * 9 + [202]
