"""GET of JWK Sets, cards and proofs of ownership, against servers of every kind."""

from __future__ import annotations

import asyncio
import gzip
from datetime import timedelta
from functools import partial

import pytest

from pushkit.errors import DestinationRefusedError, JwksError
from pushkit.net.connection import HttpAnswer
from pushkit.net.transport import Transport
from pushkit.version import USER_AGENT
from tests.eventually import DEADLINE, PATIENT
from tests.unit.pushkit.net.test_transport import HEAD, OK, keeps_silent, says, serving

MEBIBYTE = 2**20


async def get(
    transport: Transport,
    url: str,
    *more: tuple[str, str],
    within: timedelta = PATIENT,
    most: int = MEBIBYTE,
) -> HttpAnswer:
    async with asyncio.timeout(DEADLINE):
        return await transport.get_document(
            url, "text/plain", *more, timeout=within, max_body_bytes=most, error=JwksError
        )


# --- what goes out -----------------------------------------------------------------------------


async def test_a_get_has_no_body_and_only_the_given_fields(transport: Transport) -> None:
    async with serving(says(OK)) as server:
        answer = await get(transport, server.url + "?a=%2F", ("If-None-Match", '"1"'))
    assert (answer.status, answer.body) == (200, b"ok")
    assert server.requests[0].decode().split("\r\n") == [
        "GET /hook?a=%2F HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Accept: text/plain",
        "Accept-Encoding: identity",
        f"User-Agent: {USER_AGENT}",
        'If-None-Match: "1"',
        "",
        "",
    ]


async def test_an_entity_tag_goes_back_as_it_came(transport: Transport) -> None:
    tag = b'"\xe9\xff"'  # RFC 9110 §8.8.3: any byte above ASCII
    tagged = HEAD + b"ETag: " + tag + b"\r\nContent-Length: 2\r\n\r\nok"
    async with serving(says(tagged)) as server:
        answer = await get(transport, server.url)
        await get(transport, server.url, ("If-None-Match", answer.headers.one("ETag") or ""))
    assert b"If-None-Match: " + tag + b"\r\n" in server.requests[1]


async def test_a_url_that_the_policy_refuses_is_not_asked(transport: Transport) -> None:
    with pytest.raises(DestinationRefusedError):
        await get(transport, "http://client.example.com/")


# --- bodies --------------------------------------------------------------------------------------


def of_length(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def in_chunks(body: bytes) -> bytes:
    parts = [body[at : at + 10_007] for at in range(0, len(body), 10_007)]
    chunks = b"".join(b"%x;a=b\r\n" % len(part) + part + b"\r\n" for part in parts)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX: y\r\n\r\n"


def until_it_closes(body: bytes) -> bytes:
    return HEAD + b"\r\n" + body


def as_http_1_0(body: bytes) -> bytes:
    return b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\n" + body


BODIES = [of_length, in_chunks, until_it_closes, as_http_1_0]


@pytest.mark.parametrize("framed", BODIES)
@pytest.mark.parametrize("size", [0, 1, MEBIBYTE])
async def test_a_body_up_to_the_bound_is_read_however_it_ends(
    transport: Transport, framed: partial[bytes], size: int
) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with serving(says(framed(body))) as server:
        assert (await get(transport, server.url)).body == body


@pytest.mark.parametrize("framed", BODIES)
async def test_a_body_beyond_the_bound_is_an_error_however_it_ends(
    transport: Transport, framed: partial[bytes]
) -> None:
    async with serving(says(framed(b"x" * (MEBIBYTE + 1)))) as server:
        with pytest.raises(JwksError, match=f"longer than {MEBIBYTE} bytes"):
            await get(transport, server.url)


@pytest.mark.parametrize("framed", [of_length, in_chunks])
async def test_a_body_that_is_cut_short_is_an_error(
    transport: Transport, framed: partial[bytes]
) -> None:
    async with serving(says(framed(b"x" * 1000)[:-10])) as server:
        with pytest.raises(JwksError, match="broke off"):
            await get(transport, server.url)


async def test_a_body_that_does_not_end_in_time_is_an_error(transport: Transport) -> None:
    async with serving(says(HEAD, b"\r\nx", then=keeps_silent)) as server:
        with pytest.raises(JwksError, match="broke off"):
            await get(transport, server.url, within=timedelta(milliseconds=300))


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "identity, gzip", "br", "zstd"])
async def test_a_compressed_answer_is_an_error_and_not_decompressed(
    transport: Transport, encoding: str
) -> None:
    body = gzip.compress(b"ok")
    head = HEAD + f"Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    async with serving(says(head, body)) as server:
        with pytest.raises(JwksError, match="compressed"):
            await get(transport, server.url)


async def test_an_answer_that_says_it_is_not_compressed_is_read(transport: Transport) -> None:
    answer = OK.replace(b"\r\n\r\n", b"\r\nContent-Encoding: Identity\r\n\r\n")
    async with serving(says(answer)) as server:
        assert (await get(transport, server.url)).body == b"ok"


# --- answers that are no document ----------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 404, 503])
async def test_another_status_is_returned_and_no_redirect_followed(
    transport: Transport, status: int
) -> None:
    async with serving(says(OK)) as canary:
        head = f"HTTP/1.1 {status} No\r\nLocation: {canary.url}\r\nContent-Length: 0\r\n\r\n"
        async with serving(says(head.encode())) as server:
            assert (await get(transport, server.url)).status == status
    assert canary.connections == 0


@pytest.mark.parametrize(
    "fields", ["", "Content-Length: 5000\r\n", "Transfer-Encoding: chunked\r\n"]
)
async def test_not_modified_has_no_body_whatever_its_length_field(
    transport: Transport, fields: str
) -> None:
    # RFC 9110 §15.4.5: its `Content-Length` is what a 200 would have had.
    unmodified = f'HTTP/1.1 304 Not Modified\r\nETag: "1"\r\n{fields}\r\n'.encode()

    async def answers_two(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (unmodified, OK):
            writer.write(answer)
            await reader.readuntil(b"\r\n\r\n")

    async with serving(answers_two) as server:
        answer = await get(transport, server.url)
        assert (answer.status, answer.headers.one("ETag"), answer.body) == (304, '"1"', b"")
        assert (await get(transport, server.url)).body == b"ok"
        await transport.close()
    assert server.connections == 1


# --- connections ---------------------------------------------------------------------------------


async def test_over_ipv6(transport: Transport) -> None:
    async with serving(says(OK), "::1") as server:
        answer = await get(transport, server.url)
    place = f"[::1]:{server.port}"
    assert (answer.body, answer.timing.address) == (b"ok", place)
    assert f"\r\nHost: {place}\r\n".encode() in server.requests[0]
