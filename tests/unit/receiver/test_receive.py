"""`Receiver.receive()`: for frameworks without an adapter, it answers as the adapters do."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from pushkit.webhook import Headers, WebhookRequest
from receiver import Answer

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import WorldFactory

EXAMPLE = Path(__file__).parents[3] / "examples/own_route/app.py"
REQUESTS = [
    pytest.param("POST", "/elsewhere", b"{}", id="unknown path"),
    pytest.param("POST", "/a2a/push", b"{}", id="unsigned"),
    pytest.param("POST", "/a2a/push", b"x" * 2_000_000, id="too long"),
    pytest.param("PUT", "/a2a/push", b"{}", id="another method"),
    pytest.param("GET", "/a2a/push?validationToken=abc-1", b"", id="validation echo"),
    pytest.param("GET", "/a2a/push?validationToken=%3Cb%3E", b"", id="no token"),
    pytest.param("GET", "/healthz", b"", id="probe"),
]


@pytest.mark.parametrize("is_started", [True, False], ids=["started", "not started"])
@pytest.mark.parametrize(("method", "target", "body"), REQUESTS)
async def test_it_answers_as_an_adapter(
    make_world: WorldFactory, method: str, target: str, body: bytes, is_started: bool
) -> None:
    world = make_world({"validation_echo": True})
    receiver = await world.start() if is_started else world.receiver
    async with httpx.AsyncClient(transport=httpx.ASGITransport(receiver.asgi())) as client:
        fields = {"Content-Type": "application/json"}
        url = f"https://client.example.com{target}"
        expected = await client.request(method, url, content=body, headers=fields)
        headers = Headers(expected.request.headers.items())

    request = WebhookRequest(method=method, target=target, headers=headers, body=body)
    answer = await receiver.receive(request, peer="127.0.0.1")

    assert (answer.status, answer.body) == (expected.status_code, expected.content)
    assert {name.lower(): value for name, value in answer.headers}.items() <= dict(
        expected.headers
    ).items()


async def test_a_path_is_decoded_as_elsewhere(make_world: WorldFactory) -> None:
    world = make_world()
    receiver = await world.start()
    answer: Answer = await receiver.receive(world.draft().request(), path="/a2a/%70ush")
    assert (answer.status, answer.code) == (202, "accepted")


async def test_the_example_sends_it_as_it_is(make_world: WorldFactory) -> None:
    world = make_world({"validation_echo": True})
    app = runpy.run_path(str(EXAMPLE))["make_app"](await world.start())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="https://x.example") as client:
        request = world.draft().request()
        posted = await client.post(
            "/hooks/a2a/push", content=request.body, headers=list(request.headers)
        )
        echoed = await client.get("/hooks/a2a/push?validationToken=abc")
        unknown = await client.post("/hooks/other", content=b"{}")
    assert posted.status_code == 202
    assert (echoed.status_code, echoed.text) == (200, "abc")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
