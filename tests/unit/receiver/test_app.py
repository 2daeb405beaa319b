"""Answers of the aiohttp edge outside the steps: sizes, types, methods, broken bytes."""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler
from pytest_aiohttp.plugin import AiohttpClient, AiohttpServer

from receiver import Limits
from receiver.app import HideMalformedRequests
from receiver.testing import Draft
from tests.eventually import DEADLINE, eventually
from tests.unit.receiver.conftest import signing_key, trusted_sender
from tests.unit.receiver.drafts import sending
from tests.unit.receiver.serving.sockets import Answer, Client, connected, raw

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory


async def serve(world: World) -> TestServer:
    return await world.server_factory(world.receiver.app())


async def talk(server: TestServer, *pieces: bytes) -> Answer:
    """Send bytes as they are, and read the one answer."""
    async with connected(server.port) as client:
        for piece in pieces:
            await client.send(piece)
        return await client.answer()


def head(draft: Draft, *lines: str) -> bytes:
    return raw(draft, *lines, body=False)


async def test_a_body_may_come_in_chunks(world: World) -> None:
    draft = world.draft()
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(draft.body), draft.body)

    answer = await talk(await serve(world), head(draft, "Transfer-Encoding: chunked"), chunk)

    assert answer.status == 202


@pytest.mark.parametrize(
    ("receivers", "senders"),
    [
        pytest.param(1000, None, id="the-receivers"),
        pytest.param(100_000, 1000, id="the-senders"),
        pytest.param(1000, 100_000, id="the-receivers-which-the-sender-cannot-lift"),
    ],
)
async def test_a_chunked_body_over_the_limit_is_refused(
    make_world: WorldFactory, receivers: int, senders: int | None
) -> None:
    limits = {"limits": Limits(max_body_bytes=receivers)}
    world = make_world(limits, max_body_bytes=senders)
    draft = replace(world.draft(), body=b"x" * 1001)
    chunk = b"%x\r\n%s\r\n" % (len(draft.body), draft.body)  # and no end

    answer = await talk(await serve(world), head(draft, "Transfer-Encoding: chunked"), chunk)

    assert (answer.status, answer.code) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"
    assert not any(world.rows().values())


async def test_a_declared_length_over_the_limit_is_refused_before_the_body(
    make_world: WorldFactory,
) -> None:
    world = make_world({"limits": Limits(max_body_bytes=1000)})

    answer = await talk(await serve(world), head(world.draft(), "Content-Length: 1001"))

    assert (answer.status, answer.code) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        pytest.param({"issuer": "https://evil.example.com"}, 403, "unknown_sender", id="2"),
        pytest.param({"signed": False}, 401, "invalid_signature", id="3"),
        pytest.param({"header": {"kid": "unknown"}}, 401, "invalid_signature", id="3-kid"),
        pytest.param({"header": {"alg": "none"}}, 401, "invalid_signature", id="3-alg"),
        pytest.param({"claims": {"iat": 1}}, 401, "stale_timestamp", id="4"),
        pytest.param({"audience": "https://evil.example.com"}, 401, "wrong_audience", id="4"),
        pytest.param({"token": "other"}, 401, "invalid_token", id="5"),
    ],
)
async def test_a_request_without_a_valid_sender_is_answered_before_its_body(
    world: World, change: dict[str, Any], status: int, code: str
) -> None:
    draft = replace(world.draft(), **change)

    # A megabyte is announced, and none of it sent: whoever waits for it gets no answer.
    answer = await talk(await serve(world), head(draft, "Content-Length: 1000000"))

    assert (answer.status, answer.code) == (status, code)


async def test_a_body_that_a_middleware_has_read_and_aiohttp_keeps_is_taken_from_there(
    world: World,
) -> None:
    @web.middleware
    async def reading_first(request: web.Request, handler: Handler) -> web.StreamResponse:
        await request.read()
        return await handler(request)

    app = web.Application(middlewares=[reading_first])
    app.add_subapp("/hooks", world.receiver.app())
    request = world.draft().request()
    async with aiohttp.ClientSession() as client:
        url = (await world.server_factory(app)).make_url("/hooks/a2a/push")
        async with client.post(url, data=request.body, headers=list(request.headers)) as answer:
            assert answer.status == 202


async def reading(client: Client, draft: Draft, framing: str) -> None:
    """Send a head, and return once the receiver is about to read the body."""
    await client.send(head(draft, framing, "Expect: 100-continue"))
    assert (await client.answer()).status == 100


def faults(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what the receiver blamed on itself."""
    own = [record for record in caplog.records if record.name == "receiver"]
    return [record for record in own if record.levelno >= logging.ERROR]


async def test_a_peer_that_goes_away_is_no_fault_of_the_receiver(
    world: World, caplog: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    # A runner as in service: the test server cancels the handler of a peer that went away.
    runner = web.AppRunner(world.receiver.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    async with connected(unused_tcp_port) as client:
        await reading(client, world.draft(), "Content-Length: 500")
        await client.send(b'{"st')
    await eventually(lambda: "refused " in caplog.text)
    await runner.cleanup()

    assert "refused 400 incomplete_body" in caplog.text
    assert not faults(caplog)
    assert not any(world.rows().values())


async def test_broken_chunks_are_no_fault_of_the_receiver(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    # aiohttp keeps the broken chunk to itself: the body just never ends.
    world = make_world({"limits": Limits(request_timeout=timedelta(milliseconds=50))})
    server = await serve(world)
    async with connected(server.port) as client:
        await reading(client, world.draft(), "Transfer-Encoding: chunked")
        await client.send(b"2\r\n{}\r\nzz\r\n{}\r\n")
        answer = await client.answer()

    assert answer.status in (400, 408)
    assert not faults(caplog)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "GZIP"])
async def test_a_compressed_body_is_refused_unread(world: World, coding: str) -> None:
    draft = sending(world.draft(), "Content-Encoding", coding)
    body = gzip.compress(draft.body)
    request = head(draft, f"Content-Length: {len(body)}")

    answer = await talk(await serve(world), request, body)

    assert (answer.status, answer.code) == (415, "unsupported_media_type")


async def test_identity_is_no_compression(world_behind: World) -> None:
    draft = sending(world_behind.draft(), "Content-Encoding", "identity")

    answer = await world_behind.post(draft)

    assert answer.status == 202


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/jsonx",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "text/plain; application/json",
        "application/json, application/json",
        "json",
    ],
)
async def test_another_content_type_is_refused(world_behind: World, content_type: str) -> None:
    draft = sending(world_behind.draft(), "Content-Type", content_type)

    answer = await world_behind.post(draft)

    assert (answer.status, answer.content_type) == (415, "application/problem+json")
    assert answer.code == "unsupported_media_type"


@pytest.mark.parametrize(
    ("number", "size"),
    [pytest.param(3, 6 * 1024, id="large"), pytest.param(80, 200, id="many-small")],
)
async def test_a_header_section_over_the_limit_is_refused(
    world_behind: World, number: int, size: int
) -> None:
    long = {f"X-{each}": ("x" * size,) for each in range(number)}
    draft = replace(world_behind.draft(), headers_sent=long)

    answer = await world_behind.post(draft)

    assert (answer.status, answer.code) == (431, "headers_too_large")


async def test_a_folded_header_is_refused(world: World) -> None:
    draft = sending(world.draft(), "webhook-id", "delivery-\r\n task-1-1")  # RFC 9112 §5.2
    request = head(draft, f"Content-Length: {len(draft.body)}")

    answer = await talk(await serve(world), request, draft.body)

    assert answer.status == 400
    assert not any(world.rows().values())


@pytest.mark.parametrize("name", ["Content-Type", "Content-Encoding", "X-Api-Key", "Authorization"])
async def test_a_field_that_stands_twice_is_refused(make_world: WorldFactory, name: str) -> None:
    world = make_world(credentials=["the-api-key"])
    draft = sending(world.draft(), "X-Api-Key", "the-api-key")
    value = draft.request().headers.one(name) or "identity"
    draft = sending(draft, name, value, value)
    request = head(draft, f"Content-Length: {len(draft.body)}")

    answer = await talk(await serve(world), request, draft.body)

    assert answer.status == 400
    assert not any(world.rows().values())


@pytest.mark.parametrize("framing", ["Content-Length: x", "Content-Length: -1"])
async def test_an_impossible_length_is_refused(world: World, framing: str) -> None:
    answer = await talk(await serve(world), head(world.draft(), framing))

    assert answer.status == 400


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "PATCH"])
async def test_another_method_is_a_problem(
    world: World, aiohttp_client: AiohttpClient, method: str
) -> None:
    client = await aiohttp_client(world.receiver.app())

    async with client.request(method, "/a2a/push") as response:
        problem = await response.json(content_type="application/problem+json")

    assert (response.status, response.headers["Allow"]) == (405, "POST")
    assert problem["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        (
            "POST",
            "/other",
            "refused 404 not_found peer=127.0.0.1: no sender posts to '/other', expected /a2a/push",
        ),
        (
            "POST",
            "/a%0Ab",
            "refused 404 not_found peer=127.0.0.1: no sender posts to '/a\\nb', expected /a2a/push",
        ),
        (
            "GET",
            "/a2a/push",
            "refused 405 method_not_allowed peer=127.0.0.1: method GET, expected POST",
        ),
    ],
)
async def test_the_log_says_which_path_or_method_was_wrong(
    world: World,
    aiohttp_client: AiohttpClient,
    caplog: pytest.LogCaptureFixture,
    *,
    method: str,
    path: str,
    said: str,
) -> None:
    client = await aiohttp_client(world.receiver.app())

    async with client.request(method, path):
        pass

    refusals = [each.getMessage() for each in caplog.records if "refused" in each.getMessage()]
    assert [each.partition("; see ")[0] for each in refusals] == [said]


@pytest.mark.parametrize(
    ("number", "said"), [(5, "/1 or /2 or /3 or /4 or /5"), (6, "/1 or /2 or /3 or /4 or /5 …")]
)
async def test_the_log_says_some_of_many_paths(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture, *, number: int, said: str
) -> None:
    world = make_world(path="/1")
    key = signing_key().to_verification_key()
    world.options["more_senders"] = [
        trusted_sender(name=f"agent-{each}", keys=[key], path=f"/{each}")
        for each in range(2, number + 1)
    ]

    assert (await world.get("/other")).status == 404

    assert f"expected {said};" in caplog.messages[-1]


async def test_a_receiver_mounted_under_a_prefix_knows_its_paths(
    world: World, aiohttp_client: AiohttpClient
) -> None:
    app = web.Application()
    app.add_subapp("/hooks", world.receiver.app())
    client = await aiohttp_client(app)
    draft = world.draft()
    request = draft.request()

    async with client.post(
        "/hooks/a2a/push", data=request.body, headers=list(request.headers)
    ) as accepted:
        pass
    async with client.post("/hooks/other") as refused:
        problem = await refused.json(content_type="application/problem+json")

    assert accepted.status == 202
    assert (refused.status, problem["code"]) == (404, "not_found")


async def test_a_fault_of_the_receiver_is_a_503_without_details(
    world: World, caplog: pytest.LogCaptureFixture, aiohttp_server: AiohttpServer
) -> None:
    class Broken(frozenset[str]):
        def __contains__(self, _value: object) -> bool:
            raise RuntimeError("a fault")

    object.__setattr__(world.sender, "token_hashes", Broken())
    del aiohttp_server

    answer = await world.post(world.draft())

    assert (answer.status, answer.code) == (503, "internal")
    assert "a fault" not in answer.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("is_genuine", [True, False])
async def test_a_log_filter_that_raises_leaves_no_request_unanswered(
    world: World, caplog: pytest.LogCaptureFixture, *, is_genuine: bool
) -> None:
    def broken(_: logging.LogRecord) -> bool:
        raise RuntimeError("a fault of the application")

    draft = world.draft()
    if not is_genuine:
        draft = replace(draft, audience="https://old.example.com/a2a/push")
    log = logging.getLogger("receiver")
    with caplog.at_level(logging.INFO, log.name):
        log.addFilter(broken)
        try:
            async with asyncio.timeout(DEADLINE):
                answer = await world.post(draft)
        finally:
            log.removeFilter(broken)

    assert (answer.status, answer.code) == (503, "internal")
    assert world.rows()["pushkit_inbox"] == is_genuine


async def test_development_destinations_are_logged_at_the_start(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.options["allow"] = ["127.0.0.1:*"]
    await world.start()
    [said] = [each for each in caplog.records if "not checked" in each.getMessage()]
    assert (said.levelname, said.args) == ("WARNING", ("127.0.0.1:*",))


# --- aiohttp's own log -------------------------------------------------------------------------


@pytest.fixture
def filtered() -> Iterator[None]:
    log, hiding = logging.getLogger("aiohttp.server"), HideMalformedRequests()
    log.addFilter(hiding)
    yield
    log.removeFilter(hiding)


async def sent_malformed(world: World) -> None:
    """Send what is no HTTP, with a token in it, to a receiver that is mounted in an application."""
    server = await serve(world)
    for broken in (b"X-A2A-Token canary", b"X-A2A-Token : canary", b"X-A2A-Token: canary\x00"):
        request = b"POST /a2a/push HTTP/1.1\r\nHost: x\r\n" + broken + b"\r\n\r\n"
        assert (await talk(server, request)).status == 400


async def test_aiohttps_own_log_has_what_is_no_http_in_it(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await sent_malformed(world)
    assert "canary" in caplog.text  # what the filter is for


@pytest.mark.usefixtures("filtered")
async def test_the_filter_hides_what_is_no_http(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await sent_malformed(world)
    assert "canary" not in caplog.text
    assert caplog.text.count("Error handling request from 127.0.0.1: no HTTP request: ") == 3


@pytest.mark.usefixtures("filtered")
def test_the_filter_leaves_an_applications_own_errors_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = ValueError("the application's own")
    logging.getLogger("aiohttp.server").error("Error handling %s", "request", exc_info=error)
    assert "Error handling request" in caplog.text
    assert "ValueError: the application's own" in caplog.text
