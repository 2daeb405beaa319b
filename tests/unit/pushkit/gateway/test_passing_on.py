"""What a gateway passes on, and what it does not."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from pushkit.errors import MalformedJsonError
from pushkit.gateway import proxy, service
from pushkit.gateway.events import EventLines
from pushkit.gateway.options import GatewayOptions
from tests.eventually import eventually
from tests.served import served
from tests.unit.pushkit.gateway.agent import ScriptedAgent
from tests.unit.pushkit.gateway.conftest import HOOK, Front, Start, config_of, message

CARD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 36\r\n"
    b"Connection: close\r\n\r\n" + b'{"capabilities":{"streaming": true}}'
)

Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

CALL = b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"x"}}'


@pytest.fixture
async def front(start: Start) -> AsyncIterator[Front]:
    async with start() as front:
        yield front


@asynccontextmanager
async def sent(front: Front, request: bytes, **how: Any) -> AsyncIterator[Connection]:
    """Connect to the gateway, and send it bytes."""
    host, port = front.origin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), **how)
    writer.write(request)
    try:
        async with asyncio.timeout(120):
            yield reader, writer
    finally:
        writer.close()


async def raw(front: Front, request: bytes) -> bytes:
    """Send bytes to the gateway; return the beginning of its answer."""
    async with sent(front, request) as (reader, _):
        return await reader.read(1000)


@asynccontextmanager
async def socket_agent(
    answer: Callable[[asyncio.StreamWriter], Awaitable[None]],
    card: Callable[[], bytes] = lambda: CARD,
    **how: Any,
) -> AsyncIterator[ScriptedAgent]:
    """An agent that sends a card, and answers whose head was read: all other requests."""
    agent = ScriptedAgent()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/.well-known/agent" in head:
                writer.write(card())
            else:
                agent.received.append(("", None, head))
                await answer(writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, **how)
    agent.origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield agent
    finally:
        server.close()


def bytes_agent(
    answer: bytes | None = b"HTTP/1.1 204 No Content\r\n\r\n",
    card: Callable[[], bytes] = lambda: CARD,
) -> AbstractAsyncContextManager[ScriptedAgent]:
    """An agent that answers each request with bytes; None to say nothing more."""

    async def write(writer: asyncio.StreamWriter) -> None:
        if answer is None:
            await asyncio.sleep(3600)
        else:
            writer.write(answer)

    return socket_agent(write, card)


async def test_other_requests_pass_as_they_are(front: Front) -> None:
    async with front.client.put(
        f"{front.origin}/files?x=1&y", data=b"12345", headers={"X-Other": "é"}
    ) as answer:
        assert await answer.text() == "PUT /files?x=1&y 5"
    _, headers, body = front.agent.received[-1]
    assert body == b"12345"
    assert headers["X-Other"] == "é"
    assert headers["Host"] == front.agent.origin.removeprefix("http://")


async def test_the_path_goes_on_undecoded(start: Start) -> None:
    target = b"/a%2Fb/%2e%2e/c%zz?q=%41&q"
    async with bytes_agent() as agent, start(before=agent) as front:
        got = await raw(front, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 204")
    assert agent.received[-1][2].startswith(b"GET " + target + b" HTTP/1.1\r\n")


@pytest.mark.parametrize("target", [b"/../x", b"/a/%2e%2E/../x", b"/..%2fx", b"/..%5Cx", b"/..?y"])
async def test_no_path_leads_out_of_the_agents(start: Start, target: bytes) -> None:
    """The host may have other applications beside the agent."""
    async with bytes_agent() as agent:
        agent.origin += "/base"
        async with start(before=agent) as front:
            agent.received.clear()
            got = await raw(front, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 400")
            assert not agent.received
            got = await raw(front, b"GET /a..b/... HTTP/1.1\r\nHost: x\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 204")


@pytest.mark.parametrize("end", ["", "/"])
async def test_an_agent_is_asked_at_the_path_that_its_card_names(start: Start, end: str) -> None:
    """ADK has agents at `/a2a/name`: a router answers 404 with a slash more, or redirects."""
    agent = ScriptedAgent()

    async def card(_: web.Request) -> web.Response:
        return web.json_response({"url": f"{agent.origin}{end}", "capabilities": {}})

    app = web.Application()
    app.router.add_post(f"/a2a/name{end}", agent.handle)
    app.router.add_get("/a2a/name/.well-known/agent-card.json", card)
    async with served(app) as origin:
        agent.origin = f"{origin}/a2a/name"
        async with start(before=agent) as front:
            task = await front.send(config=False)
            stored = await front.rpc("CreateTaskPushNotificationConfig", config_of(task["id"]))
            assert "result" in stored
            assert await front.answers(200, "POST", "/?x=1", data=CALL)
    assert agent.paths[-1] == f"/a2a/name{end}?x=1"


async def test_fields_of_the_connection_stay_on_it(front: Front) -> None:
    await raw(
        front,
        b"GET /x HTTP/1.1\r\nHost: x\r\nConnection: close, X-Secret-Hop\r\nX-Secret-Hop: 1\r\n"
        b"Keep-Alive: 1\r\nProxy-Authorization: Basic x\r\nTE: trailers\r\n"
        b"Forwarded: for=1.2.3.4\r\nX-Real-IP: 1.2.3.4\r\nX-Forwarded-For: 1.2.3.4\r\n"
        b"X-End: 1\r\n\r\n",
    )
    _, headers, _ = front.agent.received[-1]
    assert headers["X-End"] == "1"
    for name in ("X-Secret-Hop", "Keep-Alive", "Proxy-Authorization", "TE", "Forwarded"):
        assert name not in headers, name
    assert "X-Real-IP" not in headers
    assert headers.getall("X-Forwarded-For") == ["127.0.0.1"]


async def test_a_field_that_is_not_in_utf_8_loses_nothing(start: Start) -> None:
    """Names of users, as their proxies write them, would be those of others."""
    fields = b"X-Name: M\xfcller\r\nX-Other: M\xc3\xbcller\r\n\r\n"
    async with (
        bytes_agent(b"HTTP/1.1 204 No Content\r\n" + fields) as agent,
        start(before=agent) as front,
    ):
        got = await raw(front, b"GET / HTTP/1.1\r\nHost: x\r\n" + fields)
    for said in (agent.received[-1][2], got):
        assert b"X-Name: M\xc3\xbcller\r\n" in said
        assert b"X-Other: M\xc3\xbcller\r\n" in said


async def test_a_name_that_is_not_in_utf_8_is_nobodys(start: Start) -> None:
    """In ISO 8859-1 it has the bytes of another one in UTF-8."""
    named = GatewayOptions(identity_header="X-User", trusted_proxies=("127.0.0.0/8",))
    body = json.dumps({"url": HOOK}).encode()
    async with start(named) as front:
        for name, status in (("Müller".encode(), b"404"), ("Müller".encode("latin-1"), b"401")):
            got = await raw(
                front,
                b"POST /rest/tasks/t/pushNotificationConfigs HTTP/1.1\r\nHost: x\r\nX-User: "
                + name
                + b"\r\nA2A-Version: 1.0\r\nContent-Type: application/json\r\n"
                + b"Content-Length: %d\r\n\r\n" % len(body)
                + body,
            )
            assert got.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET //evil.example/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /tasks/t/pushNotificationConfigs#x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX\x00: a\r\n\r\n",
        b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_a_request_that_two_servers_may_read_differently_is_refused(
    front: Front, request_bytes: bytes
) -> None:
    before = len(front.agent.received)
    answer = await raw(front, request_bytes)
    assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer[:80]
    assert len(front.agent.received) == before


async def test_bytes_after_a_request_are_no_second_one_of_another_client(front: Front) -> None:
    inner = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    body = b"0\r\n\r\n" + inner
    await raw(
        front,
        b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
        % (len(body), body),
    )
    assert [received for name, _, received in front.agent.received if name == "/x"] == [body]
    assert front.agent.received[-1][0] == "/x"


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        pytest.param(
            "application/json",
            b'{"jsonrpc":"2.0","method":"GetTask","method":"CreateTaskPushNotificationConfig"}',
            id="duplicate",
        ),
        pytest.param("application/json", b"[%b]" % CALL, id="batch"),
        pytest.param("application/json", CALL.replace(b'"x"', b"NaN"), id="NaN"),
        # `json.loads` finds out itself in which of these a body is.
        *(
            pytest.param("text/plain", CALL.decode().encode(encoding), id=encoding)
            for encoding in ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be")
        ),
        pytest.param("application/json;charset=utf-7", b"+AHs-" + CALL[1:], id="named"),
        pytest.param(
            'application/json; CHARSET="cp500"', CALL.decode().encode("cp500"), id="EBCDIC"
        ),
        pytest.param(
            "application/json;charset=utf-8;charset=utf-7", CALL.replace(b"/", b"+AC8-"), id="both"
        ),
    ],
)
async def test_json_that_can_be_read_in_two_ways_is_not_passed_on(
    front: Front, content_type: str, body: bytes
) -> None:
    before = len(front.agent.received)
    headers = {"Content-Type": content_type}
    async with front.client.post(front.origin, data=body, headers=headers) as answer:
        assert 400 <= answer.status < 500
    assert len(front.agent.received) == before


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json; charset=UTF-8", CALL),
        ('application/json; charset="utf-8"', CALL),
        ("application/json;charset=us-ascii", CALL),
        ("application/json;charset=ISO-8859-1", CALL),
        ("text/plain;charset=utf-16", b"\xff\xfea\0"),
        ("application/octet-stream", b"\0\0\xff\xfe"),
        ("application/json", b'{"method":"GetExtendedAgentCard","params":[]}'),
    ],
)
async def test_what_can_be_read_in_one_way_is_passed_on(
    front: Front, content_type: str, body: bytes
) -> None:
    headers = {"Content-Type": content_type}
    assert await front.answers(200, "POST", data=body, headers=headers)
    assert front.agent.received[-1][2] == body


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Upgrade": "websocket", "Connection": "Upgrade"}, 501),
        ({"Content-Type": "application/grpc"}, 415),
    ],
)
async def test_other_protocols_are_refused_by_name(
    front: Front, headers: dict[str, str], status: int
) -> None:
    assert await front.answers(status, "POST", data=b"x", headers=headers)


async def test_a_body_that_is_too_long_is_refused(start: Start) -> None:
    async with start(max_body_bytes=1000) as front:
        assert await front.answers(413, "POST", data=b"x" * 1001)


async def test_one_caller_cannot_take_all_requests(start: Start) -> None:
    async with start(max_requests_per_caller=2) as front:
        async with (
            front.post("SendStreamingMessage", message(config=False)),
            front.post("SendStreamingMessage", message(config=False)),
        ):
            assert await front.answers(429, "GET", "/x")
        await eventually(lambda: front.answers(200, "GET", "/x"))


async def test_a_message_counts_after_its_client_has_left(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start(max_requests=1) as front:
        answers = asyncio.Event()

        async def waits(*_: Any, **__: Any) -> web.Response:
            await answers.wait()
            return web.Response(status=500)

        monkeypatch.setattr(front.agent, "_stream", waits)
        before = len(front.agent.received)
        asking = asyncio.create_task(front.rpc("SendMessage", message()))
        await eventually(lambda: len(front.agent.received) > before)
        asking.cancel()
        await eventually(lambda: not front.service.gateway._requests)
        assert await front.answers(503, "GET", "/x")
        answers.set()
        await eventually(lambda: front.answers(200, "GET", "/x"))


async def test_the_last_proxys_word_is_whom_a_request_is_counted_for(start: Start) -> None:
    async with start(max_requests_per_caller=1, trusted_proxies=("127.0.0.0/8",)) as front:
        headers = [("X-Forwarded-For", "9.9.9.9"), ("X-Forwarded-For", "10.1.1.1")]
        other = [("X-Forwarded-For", "8.8.8.8"), ("X-Forwarded-For", "10.1.1.1")]
        async with (
            front.post("SendStreamingMessage", message(config=False), *headers),
        ):
            assert await front.answers(429, "GET", "/x", headers=CIMultiDict(other))


async def test_bodies_that_come_slowly_count(start: Start) -> None:
    begun = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"
    async with start(max_requests_per_caller=1) as front, sent(front, begun):
        await eventually(lambda: front.answers(429, "GET", "/x"))


async def test_all_bodies_together_are_bounded(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "_MOST_HELD", 1000)
    begun = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n" + b"x" * 899
    async with start(max_body_bytes=1000) as front:
        async with sent(front, begun):
            await eventually(lambda: front.answers(503, "POST", data=b"x" * 200))
        await eventually(lambda: front.answers(200, "POST", data=b"x" * 200))


async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked(front: Front) -> None:
    head = b"PUT /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    async with sent(front, head) as (reader, writer):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert await reader.readexactly(8) == b"PUT /x 3"


async def test_a_card_is_asked_for_with_the_clients_query(front: Front) -> None:
    url = f"{front.origin}/.well-known/agent-card.json?assistant_id=x"
    async with front.client.get(url) as answer:
        assert (await answer.json())["capabilities"]["pushNotifications"] is True
    assert front.agent.paths[-1].endswith("?assistant_id=x")


@pytest.mark.parametrize(
    "how", ["agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard", "", "/acme"]
)
async def test_the_card_for_callers_who_are_known_names_the_gateway_too(
    front: Front, how: str
) -> None:
    if "Card" in how:
        card = (await front.rpc(how, {}))["result"]
    else:
        status, card = await front.rest("GET", f"{how}/extendedAgentCard")
        assert status == 200
    assert card["url"] == "https://agent.example.com/"
    assert card["capabilities"]["pushNotifications"] is True


async def test_an_error_instead_of_that_card_is_the_clients(start: Start) -> None:
    """Of a proxy or a framework: not every error has the form of A2A."""
    said = b'{"detail":"Not authenticated"}'
    head = b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\n"
    body = b'{"supportedInterfaces":[{"url":"/","protocolBinding":"HTTP+JSON"}]}'
    card = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    async with (
        bytes_agent(head + b"Content-Length: 30\r\n\r\n" + said, lambda: card) as agent,
        start(before=agent) as front,
        front.client.get(f"{front.origin}/extendedAgentCard") as answer,
    ):
        assert (answer.status, await answer.read()) == (401, said)


async def test_an_answer_about_configs_is_shown_to_the_web_pages_of_the_agents(
    front: Front,
) -> None:
    task = await front.send()
    url = f"{front.origin}/rest/tasks/{task['id']}/pushNotificationConfigs"
    async with front.client.get(url) as answer:
        assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example.com"
        assert "ETag" not in answer.headers
        assert len((await answer.json(content_type=None))["configs"]) == 1


@pytest.mark.parametrize(
    "path", ["/tasks/t/pushNotificationConfigs", "/tasks/t/pushNotificationConfigs/c"]
)
async def test_what_web_pages_may_do_with_configs_is_the_agents_to_say(
    front: Front, path: str
) -> None:
    async with front.client.options(f"{front.origin}/rest{path}") as answer:
        assert answer.status == 200
        assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example.com"
    assert front.agent.paths[-1] == f"/rest{path}"


async def test_an_agent_that_is_not_there_behind_its_proxy_is_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "_ASKED_EVERY", 0.01)
    unready = iter([b"HTTP/1.1 503 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"] * 6)
    async with (
        bytes_agent(card=lambda: next(unready, CARD)) as agent,
        start(before=agent) as front,
    ):
        assert not front.service.degraded()
    assert "found 503" in caplog.text


@pytest.mark.parametrize("what", ["card", "extended card", "early answer", "late answer"])
async def test_what_the_agent_says_beside_a_changed_body_is_passed_on(
    front: Front, what: str
) -> None:
    """Without it, no browser shows the answer to a web page of another origin."""
    asked: dict[str, tuple[str, str, Any]] = {
        "card": ("GET", "/.well-known/agent-card.json", None),
        "extended card": ("GET", "/rest/extendedAgentCard", None),
        "early answer": ("POST", "/rest/message:send", message()),
        "late answer": ("POST", "/rest/message:send", message(early=False)),
    }
    method, path, body = asked[what]
    url = f"{front.origin}{path}"
    asking = asyncio.ensure_future(front.client.request(method, url, json=body))
    if what == "late answer":
        await eventually(lambda: front.agent.watchers("task-1"))
        front.agent.status("task-1", "TASK_STATE_COMPLETED")
    async with await asking as answer:
        assert answer.status == 200
        assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example.com"
        assert "ETag" not in answer.headers
        assert answer.content_type == "application/json"


async def test_a_large_body_passes_as_it_is(front: Front) -> None:
    body = b"".join(b"%07d\n" % number for number in range(375_000))
    assert await front.answers(200, "PUT", "/x", data=io.BytesIO(body))
    _, headers, received = front.agent.received[-1]
    assert received == body
    assert headers["Content-Length"] == "3000000"


@pytest.mark.parametrize(
    ("coding", "compressed", "status"),
    [
        pytest.param("gzip", gzip.compress(CALL), 200, id="gzip"),
        pytest.param("GZIP", gzip.compress(CALL), 200, id="capitals"),
        pytest.param("deflate", zlib.compress(CALL), 200, id="deflate"),
        pytest.param("identity", CALL, 200, id="identity"),
        pytest.param("gzip", CALL, 400, id="not-compressed"),
        # The agent may know it, and would read what the gateway has not.
        pytest.param("x-gzip", gzip.compress(CALL), 415, id="unknown"),
        pytest.param("gzip, gzip", gzip.compress(gzip.compress(CALL)), 415, id="twice"),
    ],
)
async def test_a_compressed_call_is_read_before_it_is_passed_on(
    front: Front, coding: str, compressed: bytes, status: int
) -> None:
    before = len(front.agent.received)
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    assert await front.answers(status, "POST", "/", data=compressed, headers=headers)
    passed = front.agent.received[before:]
    assert len(passed) == (status == 200)
    for _, received, body in passed:
        assert "Content-Encoding" not in received
        assert body == CALL


async def test_a_second_coding_does_not_hide_the_first(front: Front) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Encoding: identity\r\n"
    body = gzip.compress(CALL)
    answer = await raw(front, head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    assert answer.startswith(b"HTTP/1.1 415 ")


async def test_the_agents_error_is_the_clients(front: Front) -> None:
    front.agent.streams = False  # which its card did not say
    answer = await front.rpc("SendMessage", message())
    assert answer["error"] == {"code": -32004, "message": "no streams"}
    assert answer["id"] == 7


async def test_a_defect_is_logged(
    front: Front, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(proxy.Gateway, "_pass_on", fail)
    async with front.client.get(f"{front.origin}/x?secret") as got:
        assert (got.status, "defect" in await got.text()) == (500, False)
    logged = [each for each in caplog.records if each.name == "pushkit.gateway"]
    assert [(each.getMessage(), each.levelname) for each in logged] == [("/x failed", "ERROR")]


# --- hostile agents ----------------------------------------------------------------------------


async def _refused(start: Start, answer: bytes | None, **options: Any) -> int:
    """Return the status of a message that the agent answers so."""
    async with (
        bytes_agent(answer) as agent,
        start(before=agent, **options) as front,
        front.post("SendMessage", message()) as got,
    ):
        return got.status


async def test_an_event_without_an_end_is_cut(start: Start) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: "
    assert await _refused(start, head + b"x" * 100_000, max_event_bytes=10_000) == 502


async def test_an_answer_without_an_end_is_cut(start: Start) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    assert await _refused(start, head + b"x" * 100_000, max_body_bytes=10_000) == 502


async def test_an_agent_that_says_nothing_is_not_waited_for(start: Start) -> None:
    short = timedelta(seconds=0.2)
    assert await _refused(start, None, timeout=short, stream_timeout=short) == 504


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", b"garbage\r\n\r\n"])
async def test_an_agent_that_speaks_no_http_is_a_bad_gateway(start: Start, answer: bytes) -> None:
    assert await _refused(start, answer) == 502


@pytest.mark.parametrize("control", [b"\x01", b"\x1b", b"\x7f"])
async def test_an_answer_that_cannot_be_written_again_is_a_bad_gateway(
    start: Start, control: bytes
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Other: a" + control + b"b\r\n\r\n"
    async with bytes_agent(head + b"{}") as agent, start(before=agent) as front:
        for url in ("/x", "/extendedAgentCard"):
            async with front.client.get(front.origin + url) as got:
                told = "the agent's answer has a control character in the field X-Other\n"
                assert (got.status, await got.text()) == (502, told)


async def test_an_answer_that_breaks_off_is_not_made_whole(start: Start) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc"
    async with bytes_agent(answer) as agent, start(before=agent) as front:
        with pytest.raises((aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)):
            async with front.client.get(f"{front.origin}/x") as got:
                await got.read()


async def test_a_redirect_of_the_agent_is_the_clients_to_follow(start: Start) -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n"
    async with (
        bytes_agent(answer) as agent,
        start(before=agent) as front,
        front.client.get(f"{front.origin}/x", allow_redirects=False) as got,
    ):
        assert got.status == 302


async def test_a_client_that_reads_slowly_delays_nobody(front: Front) -> None:
    async with front.post("SendStreamingMessage", message()) as slow:
        await eventually(lambda: bool(front.agent.tasks))
        [task_id] = front.agent.tasks
        await eventually(lambda: front.agent.watchers(task_id) == 1)
        for number in range(200):
            front.agent.chunk(task_id, f"{number} " * 20_000)
        front.agent.status(task_id, "TASK_STATE_COMPLETED")
        await eventually(lambda: not len(front.service.watcher))
        stored = await front.sender.deliveries(task_id)
        assert b"TASK_STATE_COMPLETED" in stored[-1].body
        with pytest.raises(aiohttp.ClientError):  # and it sees that it has not got all
            await slow.read()


async def test_a_client_that_reads_nothing_fills_no_memory(start: Start) -> None:
    written = 0

    async def write(writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            written += 65_536

    async with (
        socket_agent(write) as agent,
        start(before=agent) as front,
        sent(front, b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n", limit=1),
    ):
        last = -1
        while written != last or not written:  # until it is held up
            last = written
            await asyncio.sleep(0.5)
        assert written < 32 * 2**20  # the buffers of four sockets, and of the gateway


async def test_an_agent_that_reads_nothing_is_not_waited_for(start: Start) -> None:
    is_over = asyncio.Event()

    async def wait(writer: asyncio.StreamWriter) -> None:
        await is_over.wait()
        writer.transport.abort()

    async with (
        socket_agent(wait, limit=1024) as agent,
        start(before=agent, timeout=timedelta(seconds=3)) as front,  # the client's body, too
    ):
        assert await front.answers(504, "PUT", "/x", data=io.BytesIO(b"x" * 16_000_000))
        is_over.set()
        await asyncio.sleep(0.1)  # until both ends have closed


# --- lines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_events_are_cut_alike_however_they_arrive(end: bytes, size: int) -> None:
    stream = end.join(
        [b"data: a", b"data:b", b": comment", b"id: 1", b"", b"", b"data: c", b"", b"x"]
    )
    lines, found = EventLines(1000), []
    for start in range(0, len(stream), size):
        found += lines.feed(stream[start : start + size])
    assert found == [b"a\nb", b"c"]


def test_a_line_feed_counts_after_the_end_of_a_line() -> None:
    lines, found = EventLines(1000), []
    for chunk in (b"data: a\r", b"\n", b"\n"):
        found += lines.feed(chunk)
    assert found == [b"a"]


def test_a_stream_may_begin_with_a_byte_order_mark() -> None:
    lines = EventLines(1000)
    found = [
        lines.feed(each) for each in (b"\xef\xbb", b"\xbfdata: a\n", b"\n\xef\xbb\xbfdata: b\n\n")
    ]
    assert found == [[], [], [b"a"]]


@pytest.mark.parametrize(
    "line", [b"data: " + b"x" * 50, b"data: " + b"x" * 50 + b"\n", b"data\n" * 9]
)
def test_events_that_never_end_are_bounded(line: bytes) -> None:
    lines = EventLines(1000)

    def feed() -> None:
        for _ in range(100):
            lines.feed(line)

    with pytest.raises(MalformedJsonError, match="longer than 1000"):
        feed()


async def test_a_client_that_reads_nothing_of_its_stream_is_cut_off(front: Front) -> None:
    agent = front.agent
    async with front.post("SendStreamingMessage", message()):  # and it reads no more than the head
        await eventually(lambda: bool(agent.tasks))
        [task_id] = agent.tasks
        await eventually(lambda: agent.watchers(task_id) == 1)
        for _ in range(100):  # more than the buffers of both sockets, and 4 MiB
            agent._tell(task_id, {"odd": {"taskId": task_id, "text": "much " * 40_000}})
            await asyncio.sleep(0.01)
        agent.status(task_id, "TASK_STATE_COMPLETED")
        await eventually(lambda: not len(front.service.watcher))
        await eventually(lambda: not front.service.gateway._requests.total(), within=5)


async def test_refusing_everybody_is_said(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        start(max_requests=1) as front,
        front.post("SendStreamingMessage", message()),
        front.client.get(f"{front.origin}/x") as got,
    ):
        assert got.status == 503
        assert "requests at once" in caplog.text
