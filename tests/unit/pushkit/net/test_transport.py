"""The transport against servers that misbehave; nothing outside of loopback is dialled."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest

from pushkit.errors import TransportError
from pushkit.net.connection import HttpAnswer
from pushkit.net.destination import Destination, DestinationPolicy
from pushkit.net.transport import Transport
from pushkit.url import host_and_port
from tests.eventually import DEADLINE, PATIENT

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

TIMEOUT = timedelta(milliseconds=300)


class Server:
    """A server on loopback that answers exactly as a test says, and counts connections."""

    def __init__(self, talk: Talk, host: str) -> None:
        self.talk = talk
        self.host = host
        self.connections = 0
        self.requests: list[bytes] = []
        self.talks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{host_and_port(self.host, self.port)}/hook"

    def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.talks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            await self.talk(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def is_asked(self) -> bool:
        return bool(self.requests)

    async def close(self) -> None:
        for talk in self.talks:
            talk.cancel()
        await asyncio.gather(*self.talks, return_exceptions=True)


@asynccontextmanager
async def serving(talk: Talk, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    server = Server(talk, host)
    listening = await asyncio.start_server(server.serve, host, 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await server.close()


def says(*parts: bytes, then: Talk | None = None) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if then is not None:
            await then(reader, writer)

    return talk


def repeats(part: bytes, *, pause: float = 0) -> Talk:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)

    return talk


async def keeps_silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def resets(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


HEAD = b"HTTP/1.1 200 OK\r\n"
OK = HEAD + b"Content-Length: 2\r\n\r\nok"


async def answers_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request with a body of two bytes."""
    while await reader.readexactly(2):
        writer.write(OK)
        await reader.readuntil(b"\r\n\r\n")


async def post(
    transport: Transport, url: str, body: bytes = b"{}", *, within: timedelta = PATIENT
) -> HttpAnswer:
    async with asyncio.timeout(DEADLINE):
        return await transport.post(
            transport.policy.check(url), [("Content-Type", "a/b")], body, timeout=within
        )


# --- what goes out -----------------------------------------------------------------------------


async def test_sends_the_headers_that_it_was_given_and_no_others(transport: Transport) -> None:
    async with serving(says(OK)) as server:
        answer = await post(transport, server.url + "?a=%2F&b=c")
    assert (answer.status, answer.body, answer.complete) == (200, b"ok", True)
    line, *fields = server.requests[0].decode().split("\r\n")[:-2]
    assert line == "POST /hook?a=%2F&b=c HTTP/1.1"
    names = sorted(field.partition(":")[0] for field in fields)
    assert names == ["Content-Length", "Content-Type", "Host"]


async def test_proxies_of_the_environment_are_ignored(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(says(OK)) as proxy, serving(says(OK)) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        assert (await post(transport, server.url)).status == 200
    assert (proxy.connections, server.connections) == (0, 1)


async def test_credentials_of_a_netrc_are_ignored(
    transport: Transport,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    netrc = tmp_path_factory.mktemp("home") / ".netrc"
    netrc.write_text("machine 127.0.0.1 login canary password canary\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with serving(says(OK)) as server:
        await post(transport, server.url)
    assert b"uthorization" not in server.requests[0]


async def test_cookies_are_not_kept(transport: Transport) -> None:
    cookie = HEAD + b"Set-Cookie: a=b; Path=/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    async with serving(says(cookie)) as server:
        for _ in range(2):
            await post(transport, server.url)
    assert len(server.requests) == 2
    assert not any(b"ookie" in request for request in server.requests)


@pytest.mark.parametrize("status", [401, 407])
async def test_a_challenge_is_just_a_status(transport: Transport, status: int) -> None:
    challenge = b'WWW-Authenticate: Basic realm="a"\r\nProxy-Authenticate: Basic\r\n'
    head = f"HTTP/1.1 {status} No\r\n".encode() + challenge + b"Content-Length: 0\r\n\r\n"
    async with serving(says(head)) as server:
        assert (await post(transport, server.url)).status == status
    assert server.connections == 1


# --- what comes back ---------------------------------------------------------------------------


async def test_nothing_is_decompressed(transport: Transport) -> None:
    bomb = gzip.compress(bytes(10_000_000))
    head = HEAD + f"Content-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
    async with serving(says(head, bomb)) as server:
        answer = await post(transport, server.url)
    assert answer.body == bomb


@pytest.mark.parametrize("status", [204, 205, 206, 304])
async def test_an_answer_without_a_body_is_complete(transport: Transport, status: int) -> None:
    head = f"HTTP/1.1 {status} Yes\r\nContent-Length: 0\r\n\r\n".encode()
    async with serving(says(head)) as server:
        answer = await post(transport, server.url)
    assert (answer.status, answer.body, answer.complete) == (status, b"", True)


@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(says(HEAD, b"\r\n", then=repeats(b"x" * 65536)), id="endless"),
        pytest.param(
            says(HEAD, b"Transfer-Encoding: chunked\r\n\r\n", then=repeats(b"1\r\nx\r\n")),
            id="endless, in chunks of a byte",
        ),
        pytest.param(
            says(HEAD, b"Content-Length: 9\r\n\r\n", then=repeats(b"", pause=0.01)), id="silent"
        ),
        pytest.param(
            says(HEAD, b"Content-Length: 9999\r\n\r\n", then=repeats(b"x", pause=0.01)),
            id="byte by byte",
        ),
        pytest.param(says(HEAD, b"Content-Length: 9\r\n\r\nx"), id="cut short"),
        pytest.param(says(HEAD, b"\r\n", b"x" * 70_000), id="larger than is read"),
    ],
)
async def test_the_status_stands_whatever_the_body_does(transport: Transport, talk: Talk) -> None:
    async with serving(talk) as server:
        answer = await post(transport, server.url, within=TIMEOUT)
    assert (answer.status, answer.complete) == (200, False)
    assert len(answer.body) <= 64 * 1024


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(b"0\r\nTrailer: " + b"x" * 200_000, id="trailer"),
        pytest.param(b"0\r\n" + b"a:\r\n" * 50_000, id="trailers"),
        pytest.param(b"1;" + b"x" * 200_000, id="chunk extension"),
    ],
)
async def test_what_follows_a_head_and_is_no_body_is_read_up_to_a_bound(
    transport: Transport, part: bytes
) -> None:
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    async with serving(says(chunked, part, then=keeps_silent)) as server:
        answer = await post(transport, server.url, within=timedelta(hours=1))
    assert (answer.status, answer.complete) == (200, False)


@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(says(HEAD, b"Content-Length: 9\r\n\r\nx", then=resets), id="reset"),
        pytest.param(says(HEAD, b"Transfer-Encoding: chunked\r\n\r\n?\r\n"), id="broken chunks"),
    ],
)
async def test_a_body_that_breaks_before_its_head_was_read_may_take_it_along(
    transport: Transport, talk: Talk
) -> None:
    # The delivery is then repeated: at least once, not at most once.
    async with serving(talk) as server:
        with suppress(TransportError):
            assert not (await post(transport, server.url, within=TIMEOUT)).complete


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_an_answer_that_comes_before_the_request_was_read_counts(
    transport: Transport,
) -> None:
    early = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"
    async with serving(says(early, then=repeats(b"", pause=0.01))) as server:
        answer = await post(transport, server.url, bytes(20_000_000))
    assert answer.status == 413


# Hostile heads end in the one error, in time.
@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(keeps_silent, id="silent"),
        pytest.param(says(), id="closed"),
        pytest.param(resets, id="reset"),
        pytest.param(says(HEAD, then=keeps_silent), id="half a head"),
        pytest.param(says(HEAD, b"X: ", then=repeats(b"x", pause=0.01)), id="byte by byte"),
        pytest.param(says(HEAD, b"X: ", then=repeats(b"x" * 65536)), id="an endless header"),
        pytest.param(says(HEAD, then=repeats(b"X: y\r\n" * 1000)), id="endless headers"),
        pytest.param(
            says(HEAD, b"".join(b"X-%d: y\r\n" % n for n in range(10_000)), b"\r\n"),
            id="10,000 headers",
        ),
        pytest.param(says(b"hello\r\n"), id="HTTP/0.9"),
        pytest.param(says(b"HTTP/1.1 abc OK\r\n\r\n"), id="no status"),
        pytest.param(says(b"HTTP/1.1 2000 OK\r\n\r\n"), id="a status of four digits"),
        pytest.param(says(b"\x16\x03\x01\x00\x00"), id="TLS"),
        pytest.param(says(HEAD, b"X : y\r\n", then=repeats(b"X: y\r\n" * 1000)), id="malformed"),
        pytest.param(says(then=repeats(b"HTTP/1.1 103 X\r\n\r\n")), id="endless interim answers"),
        pytest.param(says(HEAD, b"A: b\r\n" * 257, b"\r\n"), id="very many fields"),
        pytest.param(
            says(b"HTTP/1.1 103 X\r\n", b"A: b\r\n" * 257, b"\r\n", OK),
            id="very many fields of an interim answer",
        ),
    ],
)
async def test_a_hostile_head_is_a_transport_error(transport: Transport, talk: Talk) -> None:
    async with serving(talk) as server:
        with pytest.raises(TransportError):
            await post(transport, server.url, within=TIMEOUT)
    assert server.connections >= 1


async def test_a_server_that_speaks_no_tls_is_a_transport_error(transport: Transport) -> None:
    async with serving(says(OK)) as server:
        with pytest.raises(TransportError):
            await post(transport, server.url.replace("http:", "https:"), within=TIMEOUT)
    assert server.requests == []


async def test_no_error_repeats_path_or_query(transport: Transport) -> None:
    for talk in (resets, says(b"hello\r\n"), keeps_silent):
        async with serving(talk) as server:
            with pytest.raises(TransportError) as caught:
                await post(transport, server.url + "/canary?canary", within=TIMEOUT)
        assert "canary" not in str(caught.value)


async def test_no_repr_shows_a_body_or_a_header(transport: Transport) -> None:
    async with serving(says(HEAD, b"X: canary\r\nContent-Length: 6\r\n\r\ncanary")) as server:
        assert "canary" not in repr(await post(transport, server.url))


# --- where it goes -----------------------------------------------------------------------------


async def test_an_open_connection_to_a_named_host_serves_that_host_alone(
    transport: Transport,
) -> None:
    async with serving(answers_all) as server:
        named = transport.policy.check(server.url)
        assert (await post(transport, server.url)).status == 200
        unchecked = Destination(url=named.url)
        with pytest.raises(TransportError, match="not public"):
            await transport.post(unchecked, [], b"{}", timeout=PATIENT)
        await transport.close()
    assert len(server.requests) == 1


async def test_close_may_be_called_twice_and_before_anything_else() -> None:
    transport = Transport(DestinationPolicy())
    await transport.close()
    await transport.close()
