"""Hostile connections end in time, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import struct
import weakref
from asyncio.sslproto import SSLProtocol
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trustme
import uvloop

from pushkit.terminal.listening import accepting
from receiver import Limits
from receiver.request import Answer, BrokenBodyError, Handle, Request
from receiver.serving.connection import Connections, HttpConnection
from receiver.serving.server import HttpServer
from tests.eventually import DEADLINE, eventually
from tests.unit.receiver.serving.sockets import SOON, Client, Serve, limits, raw

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory


@contextlib.asynccontextmanager
async def trickling(client: Client, data: bytes) -> AsyncIterator[None]:
    """Send one byte at a time, faster than any wait for the next byte would end."""

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            for byte in data:
                await client.send(bytes([byte]))
                await asyncio.sleep(0.01)

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending


def is_busy(connections: Connections) -> bool:
    return any(connection.busy for connection in connections)


def request_of(world: World, *lines: str, number: int = 1, body: bool = True) -> bytes:
    return raw(world.draft(number), *lines, body=body)


@pytest.mark.parametrize("before", [0, 1], ids=["first", "second"])
async def test_a_head_that_trickles_ends_at_its_deadline(
    world: World, serve: Serve, before: int
) -> None:
    client = await (await serve(head_timeout=SOON)).connect()
    for number in range(1, before + 1):
        await client.send(request_of(world, number=number))
        assert (await client.answer()).status == 202
    async with trickling(client, request_of(world, number=before + 1)):
        answer = await client.answer()
        await client.ended()
    assert (answer.status, answer.code) == (408, "head_timeout")
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_connection_that_says_nothing_is_closed(serve: Serve) -> None:
    client = await (await serve(head_timeout=SOON)).connect()
    assert await client.ended() == b""


async def test_a_connection_that_waits_too_long_for_its_next_request_is_closed(
    world: World, serve: Serve
) -> None:
    client = await (await serve(keep_alive=SOON)).connect()
    await client.send(request_of(world))
    assert (await client.answer()).status == 202
    assert await client.ended() == b""


async def test_a_body_that_trickles_ends_at_its_deadline(
    make_world: WorldFactory, serve: Serve
) -> None:
    world = make_world({"limits": Limits(request_timeout=SOON)})
    client = await (await serve(world)).connect()
    await client.send(request_of(world, "Content-Length: 100000", body=False))
    async with trickling(client, b"x" * 100000):
        answer = await client.answer()
        await client.ended()
    assert (answer.status, answer.code) == (408, "body_timeout")


@pytest.mark.slow
async def test_a_chunked_body_without_end_is_cut_at_the_limit(
    make_world: WorldFactory, serve: Serve
) -> None:
    world = make_world({"limits": Limits(max_body_bytes=10_000)})
    client = await (await serve(world)).connect()
    await client.send(request_of(world, "Transfer-Encoding: chunked", body=False))

    async def send() -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await client.send(b"400\r\n" + b"x" * 1024 + b"\r\n")

    sending = asyncio.create_task(send())
    answer = await client.answer()
    await client.ended()
    sending.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sending
    assert (answer.status, answer.code) == (413, "body_too_large")


async def test_a_head_without_end_is_refused_at_the_limit(serve: Serve) -> None:
    client = await (await serve(max_head_bytes=2000)).connect()
    await client.send(b"POST /a2a/push HTTP/1.1\r\nHost: x\r\n" + b"X: yyyyyyyyyyyyyyyyy\r\n" * 100)
    answer = await client.answer()
    assert (answer.status, answer.code) == (431, "headers_too_large")
    await client.ended()


async def test_a_large_body_behind_a_head_is_no_large_head(
    make_world: WorldFactory, serve: Serve
) -> None:
    world = make_world()
    draft = world.draft()
    draft = replace(draft, body=draft.body[:-1] + b" " * 200_000 + draft.body[-1:])
    client = await (await serve(world, max_head_bytes=2000)).connect()
    await client.send(raw(draft))
    assert (await client.answer()).status == 202


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="TLS"),
        pytest.param(b"POST /a2a/push HTTP/1.1\r\nA: b\r\n c\r\n\r\n", id="folded"),
        pytest.param(b"\x00" * 100 + b"\r\n\r\n", id="zeros"),
    ],
)
async def test_bytes_that_are_not_http_are_answered_with_a_problem(
    serve: Serve, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client = await (await serve()).connect()
    await client.send(data)
    answer = await client.answer()
    assert (answer.status, answer.code) == (400, "malformed_http")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["server"] == "receiver"
    await client.ended()
    assert "refused 400 malformed_http peer=127.0.0.1" in caplog.text


async def test_the_log_has_no_text_of_what_is_no_http(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    for broken in (b"X-A2A-Token canary", b"X-A2A-Token: canary\x00", b"X-A2A-Token\xff: canary"):
        client = await (await serve()).connect()
        await client.send(b"POST /a2a/push HTTP/1.1\r\nHost: x\r\n" + broken + b"\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.code) == (400, "malformed_http")
    assert "refused 400 malformed_http" in caplog.text
    assert "canary" not in caplog.text


async def test_a_peer_that_reads_no_answer_is_dropped(world: World, serve: Serve) -> None:
    answering = asyncio.Event()

    async def verbose(_: Request) -> Answer:
        answering.set()
        return Answer(status=200, body=b"x" * 20_000_000)

    site = await serve(own=verbose, write_timeout=SOON)
    client = await site.connect(receive_buffer=4096)
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport
    await client.send(request_of(world))
    await asyncio.wait_for(answering.wait(), DEADLINE)
    await site.until(lambda connections: len(connections) == 0)


@pytest.mark.slow
async def test_a_thousand_idle_connections_keep_nobody_out(
    make_world: WorldFactory, serve: Serve
) -> None:
    world = make_world({"trusted_proxies": ["127.0.0.1"]})  # not held to the cap of one address
    site = await serve(world, max_connections=100)
    idle = [await site.connect() for _ in range(1000)]
    client = await site.connect()
    await client.send(request_of(world))
    assert (await client.answer()).status == 202
    assert len(site.server.connections) <= 100
    assert await idle[0].ended() == b""  # the oldest made room


async def test_the_one_that_was_answered_last_makes_room_last(world: World, serve: Serve) -> None:
    site = await serve(max_connections=2)
    first, second = await site.connect(), await site.connect()
    await first.send(request_of(world))
    assert (await first.answer()).status == 202
    await site.connect()
    assert await second.ended() == b""
    await first.send(request_of(world, number=2))
    assert (await first.answer()).status == 202


async def test_the_connection_to_close_is_found_without_a_search(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await serve(max_connections=100)
    for _ in range(100):
        await site.connect()
    await site.until(lambda connections: len(connections) == 100)
    looked_at: list[HttpConnection] = []

    def is_busy(connection: HttpConnection) -> bool:
        looked_at.append(connection)
        return False

    monkeypatch.setattr(HttpConnection, "busy", property(is_busy))
    oldest = site.clients[0]
    await site.connect()
    assert await oldest.ended() == b""
    assert len(looked_at) == 1


async def test_one_address_has_its_share_of_connections(
    world: World, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    site = await serve(max_connections_per_peer=2)
    first, second, third = [await site.connect() for _ in range(3)]
    assert await third.ended() == b""
    assert "more than 2 connections of one address" in caplog.text
    for number, client in enumerate((first, second), start=1):
        await client.send(request_of(world, number=number))
        assert (await client.answer()).status == 202
    second.writer.close()
    await site.until(lambda connections: len(connections) == 1)
    fourth = await site.connect()
    await fourth.send(request_of(world, number=3))
    assert (await fourth.answer()).status == 202


async def test_a_request_in_work_never_makes_room(world: World, serve: Serve) -> None:
    release = asyncio.Event()

    async def slow(_: Request) -> Answer:
        await release.wait()
        return Answer(status=202)

    site = await serve(own=slow, max_connections=1)
    first = await site.connect()
    await first.send(request_of(world))
    await site.until(is_busy)
    second = await site.connect()
    assert await second.ended() == b""
    release.set()
    assert (await first.answer()).status == 202


async def test_a_request_in_progress_counts_after_its_connection_is_lost(
    world: World, serve: Serve
) -> None:
    release, begun = asyncio.Semaphore(0), 0

    async def slow(_: Request) -> Answer:
        nonlocal begun
        begun += 1
        await release.acquire()
        return Answer(status=202)

    site = await serve(own=slow, max_connections_per_peer=2)
    clients = [await site.connect() for _ in range(2)]
    for client in clients:
        await client.send(request_of(world))
    await site.until(lambda _: begun == 2)
    for client in clients:
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.writer.transport.abort()  # by a reset
    await eventually(lambda: all(each._transport is None for each in site.server.connections))
    assert await (await site.connect()).ended() == b""
    release.release()
    await site.until(lambda found: len(found) == 1)
    await (await site.connect()).send(request_of(world))
    await site.until(lambda found: begun == 3 and len(found) == 2)
    release.release()
    release.release()


async def test_a_request_that_fails_after_its_connection_is_lost_is_counted_no_more(
    world: World, serve: Serve
) -> None:
    release = asyncio.Event()

    async def fail(_: Request) -> Answer:
        await release.wait()
        raise ZeroDivisionError

    site = await serve(own=fail, max_connections_per_peer=1)
    client = await site.connect()
    await client.send(request_of(world))
    await eventually(lambda: site.server.in_progress)
    sock = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()  # by a reset
    await eventually(lambda: all(each._transport is None for each in site.server.connections))
    release.set()

    await site.until(lambda connections: len(connections) == 0)


async def test_draining_answers_requests_in_progress(world: World, serve: Serve) -> None:
    site = await serve()
    idle, working = await site.connect(), await site.connect()
    request = request_of(world)
    await working.send(request[:-10])
    await site.until(is_busy)
    draining = asyncio.create_task(site.server.drain(30))
    assert await idle.ended() == b""
    await working.send(request[-10:])
    answer = await working.answer()
    assert (answer.status, answer.headers["connection"]) == (202, "close")
    await draining


async def test_draining_cuts_off_requests_that_do_not_end(world: World, serve: Serve) -> None:
    site = await serve()
    client = await site.connect()
    await client.send(request_of(world)[:-10])
    await site.until(is_busy)
    await site.server.drain(0.05)
    await client.ended()
    assert len(site.server.connections) == 0


# --- more than one request at once, and half a connection -------------------------------------


async def test_half_a_pipelined_head_ends_at_its_deadline(world: World, serve: Serve) -> None:
    site = await serve(head_timeout=SOON)
    client = await site.connect()
    await client.send(request_of(world) + request_of(world, number=2)[:40])
    assert (await client.answer()).status == 202
    answer = await client.answer()
    await client.ended()
    assert (answer.status, answer.code) == (408, "head_timeout")


async def test_half_a_head_that_came_while_another_request_was_in_work_ends_at_its_deadline(
    world: World, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Answer:
        begun.set()
        await release.wait()
        return Answer(status=202)

    site = await serve(own=slow, head_timeout=SOON)
    client = await site.connect()
    await client.send(request_of(world))
    await begun.wait()
    await client.send(request_of(world, number=2)[:40])

    await eventually(lambda: "refused 408 head_timeout" in caplog.text)
    release.set()
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (202, "close")
    assert await client.ended() == b""


async def test_pipelined_requests_are_each_answered(world: World, serve: Serve) -> None:
    client = await (await serve()).connect()
    await client.send(b"".join(request_of(world, number=number) for number in (1, 2, 3)))
    assert [(await client.answer()).status for _ in range(3)] == [202, 202, 202]


@pytest.mark.parametrize(
    ("size", "last"),
    [pytest.param(20_000, 0, id="whole"), pytest.param(500_000, -1, id="the-last-byte")],
)
async def test_large_bodies_that_arrive_at_once_are_decoded_in_turns(
    world: World, serve: Serve, decoded_in: list[int], size: int, last: int
) -> None:
    site = await serve()
    requests = []
    for number in range(1, 6):
        draft = world.draft(number)
        draft = replace(draft, body=draft.body + b" " * size)
        requests.append(raw(draft))
    clients = [await site.connect() for _ in requests]
    for client, request in zip(clients, requests, strict=True):
        await client.send(request[:last])
    await site.until(lambda connections: all(each.busy == bool(last) for each in connections))
    for client, request in zip(clients, requests, strict=True):
        client.writer.write(request[last:])

    assert [(await client.answer()).status for client in clients] == [202] * 5
    *rounds, _ = decoded_in
    assert len(rounds) >= 5  # some were also called back already, which decodes them again
    assert max(Counter(rounds).values()) <= 2  # one that arrived, and one to call back


async def test_few_of_many_pipelined_requests_are_kept_in_memory(serve: Serve) -> None:
    request = b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n"
    answered, enough = 0, asyncio.Event()

    async def answer_some(_: Request) -> Answer:
        nonlocal answered
        answered += 1
        if answered == 200:
            enough.set()
            await asyncio.Event().wait()
        return Answer(status=404)

    site = await serve(own=answer_some)
    client = await site.connect()
    client.writer.write(request * 1_000_000)
    await asyncio.wait_for(enough.wait(), DEADLINE)
    [connection] = site.server.connections
    assert connection._parser.held_bytes < 1024 * 1024


async def test_few_of_many_pipelined_requests_are_kept_even_if_each_is_answered_at_once(
    serve: Serve,
) -> None:
    site = await serve()
    client = await site.connect()
    client.writer.write(pipelined(4000, padding=1000))
    most, answers = 0, b""
    async with asyncio.timeout(DEADLINE):
        while piece := await client.reader.read(65536):
            answers += piece
            most = max([most, *(each._parser.held_bytes for each in site.server.connections)])
    assert most < 1024 * 1024
    assert answers.count(b"HTTP/1.1 ") == 4000


async def test_few_unread_answers_are_kept_in_memory(serve: Serve) -> None:
    site = await serve()
    client = await site.connect(receive_buffer=65536)
    client.writer.write(pipelined(20_000))
    await site.until(lambda found: bool(unsent_bytes(found)))
    for _ in range(1000):  # turns of the event loop, in each of which one could be answered
        await asyncio.sleep(0)
        assert unsent_bytes(site.server.connections) < 4096
    assert (await client.ended()).count(b"HTTP/1.1 ") == 20_000  # the others follow


def pipelined(count: int, *, padding: int = 0) -> bytes:
    """Return requests that are answered at once; the last one closes the connection."""
    start = b"GET /nothing HTTP/1.1\r\nHost: x\r\nX: %b\r\n" % (b"x" * padding)
    return (start + b"\r\n") * (count - 1) + start + b"Connection: close\r\n\r\n"


def unsent_bytes(connections: Connections) -> int:
    return sum(each._transport.get_write_buffer_size() for each in connections if each._transport)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://client.example.com/hooks?a=b", "/hooks", "a=b"),
        ("HTTPS://client.example.com", "/", ""),
        ("http://client.example.com?to=/hooks", "/", "to=/hooks"),
        ("/hooks?to=http://x/y", "/hooks", "to=http://x/y"),
        ("hooks?to=http://x/y", "hooks", "to=http://x/y"),
        ("*", "*", ""),
        ("client.example.com:443", "client.example.com:443", ""),
    ],
)
async def test_the_path_of_a_target_is_read_as_others_read_it(
    serve: Serve, target: str, path: str, query: str
) -> None:
    heads: list[Request] = []

    async def note(head: Request) -> Answer:
        heads.append(head)
        return Answer(status=404)

    client = await (await serve(own=note)).connect()
    await client.send(f"POST {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await client.answer()
    assert [(head.path, head.target.partition("?")[2]) for head in heads] == [(path, query)]


async def test_a_request_and_a_half_close_get_their_answer(world: World, serve: Serve) -> None:
    client = await (await serve()).connect()
    await client.send(request_of(world) + request_of(world, number=2))
    client.writer.write_eof()
    first, second = await client.answer(), await client.answer()
    assert (first.status, second.status) == (202, 202)
    assert second.headers["connection"] == "close"
    assert await client.ended() == b""


async def test_a_half_close_in_mid_body_ends_the_connection(world: World, serve: Serve) -> None:
    site = await serve()
    client = await site.connect()
    await client.send(request_of(world)[:-10])
    client.writer.write_eof()
    await client.ended()
    await site.until(lambda connections: len(connections) == 0)
    assert not any(world.rows().values())


async def test_a_half_close_in_the_second_body_ends_without_a_time_out(
    world: World, serve: Serve
) -> None:
    client = await (await serve()).connect()
    await client.send(request_of(world) + request_of(world, number=2)[:-10])
    client.writer.write_eof()
    first, second = await client.answer(), await client.answer()
    assert (first.status, second.status, second.code) == (202, 400, "incomplete_body")
    assert await client.ended() == b""


async def test_a_half_close_without_a_request_ends_the_connection(serve: Serve) -> None:
    client = await (await serve()).connect()
    client.writer.write_eof()
    assert await client.ended() == b""


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run something on each event loop, which has no fault to report in the end."""
    faults: list[object] = []

    async def watched(work: Coroutine[Any, Any, Any]) -> Any:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        return await work

    def on_loop(work: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(watched(work))

    yield on_loop
    assert not faults


@contextlib.asynccontextmanager
async def standing(handle: Handle) -> AsyncIterator[tuple[HttpServer, int]]:
    """Serve on any event loop; yield the port, too."""
    server = HttpServer(
        handle,
        limits=limits(),
        is_proxy=lambda _: False,
        max_head_bytes=1024,
        refuse=lambda code, _reason, _peer: Answer(status=400, code=code),
    )
    listener = socket.create_server(("127.0.0.1", 0))
    async with accepting(server.protocol_for, [listener]):
        yield server, listener.getsockname()[1]
    await server.drain(0)


def test_bytes_after_the_last_request_of_a_client_that_left_cause_no_fault(
    run: Run,
) -> None:
    answered: list[Request] = []

    async def handle(request: Request) -> Answer:
        answered.append(request)
        return Answer(status=404)

    async def ask() -> None:
        async with standing(handle) as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(GET * 2 + b"no request\r\n\r\n")
            await eventually(lambda: len(answered) == 2 and len(server.connections) == 0)

    run(ask())


@pytest.mark.parametrize("rounds", range(4))
def test_a_connection_of_the_last_moment_is_closed(run: Run, rounds: int) -> None:
    async def handle(request: Request) -> Answer:
        raise AssertionError(request)

    async def serve_for_a_moment() -> socket.socket:
        async with standing(handle) as (server, port):
            peer = socket.create_connection(("127.0.0.1", port), DEADLINE)
            for _ in range(rounds):
                await asyncio.sleep(0)
        assert len(server.connections) == 0
        return peer

    peer = run(serve_for_a_moment())
    with peer, contextlib.suppress(ConnectionError):
        assert peer.recv(1) == b""


def test_a_client_that_left_is_not_asked_for_its_body(run: Run) -> None:
    expecting = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    read_as: list[str] = []

    async def ask() -> None:
        lost = asyncio.Event()

        async def handle(request: Request) -> Answer:
            await lost.wait()
            try:
                await request.read(10)
            except BrokenBodyError:
                read_as.append("broken")
            return Answer(status=400)

        async with standing(handle) as (server, port):
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(expecting)
                await eventually(lambda: server.in_progress)
            await eventually(lambda: all(each._transport is None for each in server.connections))
            lost.set()
            await eventually(lambda: not server.in_progress)

    run(ask())
    assert read_as == ["broken"]


def test_a_client_that_leaves_during_its_refusal_causes_no_fault(run: Run) -> None:
    unread = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"

    async def ask() -> None:
        peers: list[socket.socket] = []

        async def handle(_: Request) -> Answer:
            peers[0].close()  # what is sent is reset, which shows when that half is closed
            return Answer(status=413)

        async with standing(handle) as (server, port):
            peers.append(socket.create_connection(("127.0.0.1", port)))
            peers[0].sendall(unread)
            await eventually(lambda: peers[0].fileno() < 0 and len(server.connections) == 0)

    run(ask())


# --- TLS -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def test_requests_are_served_over_tls(
    world: World, serve: Serve, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    site = await serve(tls=tls)
    for number in range(1, 6):
        client = await site.connect(tls=trusting)
        await client.send(request_of(world, number=number))
        assert (await client.answer()).status == 202
        await client.send(request_of(world, number=number))
        assert (await client.answer()).status == 200  # on the same connection
    assert len(site.server.connections) == 5


async def test_an_answer_that_was_taken_over_tls_has_no_deadline_any_more(
    world: World, serve: Serve, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    site = await serve(tls=tls, write_timeout=SOON, head_timeout=SOON * 4)
    client = await site.connect(tls=trusting)
    await client.send(request_of(world) + request_of(world, number=2)[:40])
    assert (await client.answer()).status == 202
    assert (await client.answer()).code == "head_timeout"


async def test_a_client_refused_over_tls_while_it_sends_can_read_the_answer(
    world: World, serve: Serve, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    site = await serve(tls=tls)
    client, other = await site.connect(tls=trusting), await site.connect(tls=trusting)
    await client.send(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nhalf of")
    answer = await client.answer()
    assert (answer.code, answer.headers["connection"]) == ("not_found", "close")
    await other.send(request_of(world))
    assert (await other.answer()).status == 202  # so much later
    assert not client.reader.at_eof()  # a connection that is closed while it sends is reset


async def test_a_handshake_that_failed_leaves_nothing_in_memory(
    make_world: WorldFactory, serve: Serve, tls: ssl.SSLContext
) -> None:
    world = make_world({"trusted_proxies": ["127.0.0.1"]})  # not held to the cap of one address
    site = await serve(world, tls=tls, max_connections=5)

    def handshakes() -> list[SSLProtocol]:
        return [each for each in gc.get_objects() if issubclass(type(each), SSLProtocol)]

    gc.collect()
    before = len(handshakes())
    gc.disable()
    try:
        for client in [await site.connect() for _ in range(50)]:
            client.writer.transport.abort()
        await eventually(lambda: len(handshakes()) == before)
    finally:
        gc.enable()


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize(
    "data",
    [b"", b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /a2a/push HTTP/1.1\r\nHost: "],
    ids=["silent", "answered", "in-mid-head"],
)
async def test_a_connection_that_ended_leaves_nothing_in_memory(
    serve: Serve,
    tls: ssl.SSLContext,
    trusting: ssl.SSLContext,
    data: bytes,
    *,
    encrypted: bool,
) -> None:
    site = await serve(tls=tls if encrypted else None)

    gc.disable()
    try:
        client = await site.connect(tls=trusting if encrypted else None)
        await site.until(lambda found: all(each._is_made for each in found) and len(found) == 1)
        await client.send(data)
        if data.endswith(b"\r\n\r\n"):
            await client.answer()
        left = weakref.WeakSet(site.server.connections)
        client.writer.transport.abort()
        await eventually(lambda: not left)
    finally:
        gc.enable()


@pytest.mark.slow
async def test_connections_in_the_handshake_count_for_their_address(
    serve: Serve, tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    site = await serve(tls=tls, max_connections_per_peer=5)
    silent = [await site.connect() for _ in range(300)]
    for client in silent[5:]:
        assert await client.ended() == b""
    assert len(site.server.connections) == 5
    refused = [line for line in caplog.messages if "more than 5 connections of one" in line]
    assert len(refused) == 1


@pytest.mark.slow
async def test_connections_in_the_handshake_make_room(
    make_world: WorldFactory, serve: Serve, tls: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    world = make_world({"trusted_proxies": ["127.0.0.1"]})  # not held to the cap of one address
    site = await serve(world, tls=tls, max_connections=20)
    silent = [await site.connect() for _ in range(300)]
    client = await site.connect(tls=trusting)
    await client.send(request_of(world))
    assert (await client.answer()).status == 202
    assert len(site.server.connections) <= 20
    for ended in silent[:280]:
        assert await ended.ended() == b""


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00", id="half a hello"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no TLS"),
    ],
)
async def test_a_handshake_that_does_not_end_has_a_deadline(
    serve: Serve, tls: ssl.SSLContext, data: bytes
) -> None:
    site = await serve(tls=tls, head_timeout=SOON)
    client = await site.connect()
    await client.send(data)
    await client.ended()
    await site.until(lambda connections: len(connections) == 0)


async def test_handshakes_end_with_the_service(serve: Serve, tls: ssl.SSLContext) -> None:
    site = await serve(tls=tls)
    client = await site.connect()
    await site.until(lambda connections: len(connections) == 1)
    await site.server.drain(1)
    assert await client.ended() == b""
    await site.until(lambda connections: len(connections) == 0)
