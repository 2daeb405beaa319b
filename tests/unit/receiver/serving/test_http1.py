"""Requests in bytes: however they are cut, and held against llhttp, which others read them with."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import InboundError
from receiver.request import HeadersTooLargeError
from receiver.serving.http1 import MalformedHttpError, RequestHead, RequestParser

MOST = 2000
HEAD = b"POST /a2a/push HTTP/1.1\r\nHost: x\r\n"
# As Java's client asks by default, also of a server that does not speak it (RFC 9110 §7.8).
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = [
    pytest.param(HEAD + b"\r\n", b"", id="no body"),
    pytest.param(
        HEAD + b"content-LENGTH: 30 \r\n\r\n" + b"POST / HTTP/1.1\r\nHost: x\r\n\r\n..",
        b"POST / HTTP/1.1\r\nHost: x\r\n\r\n..",
        id="length",
    ),
    pytest.param(HEAD + b"Content-Length: 0\r\n\r\n", b"", id="length of nothing"),
    pytest.param(
        CHUNKED + b"4;x=y\r\n\r\n\r\n\r\n0A\r\n0123456789\r\n0\r\n\r\n",
        b"\r\n\r\n0123456789",
        id="chunks",
    ),
    pytest.param(CHUNKED + b"1\r\nx\r\n0\r\nTrailer: y\r\n\r\n", b"x", id="trailers"),
    pytest.param(b"\r\n\r\n" + HEAD + b"\r\n", b"", id="empty lines before"),
    pytest.param(HEAD + H2C + b"Content-Length: 3\r\n\r\nabc", b"abc", id="h2c with a length"),
    pytest.param(
        HEAD + H2C + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"abc",
        id="h2c with chunks",
    ),
]


def read(data: bytes, cuts: list[int]) -> tuple[list[tuple[RequestHead, bytes]], RequestParser]:
    """Read all requests that are whole; each is taken as soon as it is."""
    messages, found, at = RequestParser(MOST), [], 0
    head: RequestHead | None = None
    for cut in sorted({*cuts, len(data)}):
        messages.feed(data[at:cut])
        at = max(at, cut)
        while True:
            if messages.error is not None:
                raise messages.error
            if head is not None and messages.is_whole:
                found.append((head, bytes(messages.body)))
                head = None
            if head is not None or (head := messages.head()) is None:
                break
    return found, messages


@pytest.mark.parametrize(("message", "body"), WHOLE)
@given(cuts=st.lists(st.integers(0, 400), max_size=8), half=st.integers(1, len(HEAD)))
def test_requests_are_separated_at_any_split(
    message: bytes, body: bytes, cuts: list[int], half: int
) -> None:
    found, messages = read(message * 2, cuts)
    assert [each[1] for each in found] == [body, body]
    assert {(head.method, head.target) for head, _ in found} == {("POST", "/a2a/push")}
    assert (messages.is_whole, messages.head_bytes) == (True, 0)
    found, messages = read(message * 2 + HEAD[:half], cuts)
    assert (len(found), messages.head_bytes) == (2, half)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET /\r\n\r\n", id="HTTP/0.9"),
        pytest.param(b"GET / HTTP/2.0\r\n\r\n", id="HTTP/2"),
        pytest.param(b"GET  / HTTP/1.1\r\n\r\n", id="two spaces"),
        pytest.param(b"GET / HTTP/1.1 \r\n\r\n", id="space at the end"),
        pytest.param(b"G\xe9T / HTTP/1.1\r\n\r\n", id="method"),
        pytest.param(b"GET /\x00 HTTP/1.1\r\n\r\n", id="zero in the target"),
        pytest.param(b"GET / HTTP/1.1\nHost: x\r\n\r\n", id="bare line feed"),
        pytest.param(HEAD + b"A: b\nC: d\r\n\r\n", id="bare line feed in a field"),
        pytest.param(HEAD + b"A: b\rC: d\r\n\r\n", id="bare carriage return"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="no host"),
        pytest.param(HEAD + b"Host: y\r\n\r\n", id="two hosts"),
        *(
            pytest.param(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host, id=f"host {host!r}")
            for host in (
                b"a b",
                b"user@a",
                b"[::1",
                b"::1",
                b"[a]",
                b"\xe9",
                b"a:b",
                b"a/b",
                b"a%2",
                b"a, b",
            )
        ),
        *(
            pytest.param(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target, id=f"target {target!r}")
            for target in (b"http://user@a/", b"http://[::1/", b"HTTP://a:b", b"http:///a")
        ),
        pytest.param(HEAD + b": b\r\n\r\n", id="no name"),
        pytest.param(HEAD + b"A b\r\n\r\n", id="no colon"),
        pytest.param(HEAD + b"A : b\r\n\r\n", id="space before the colon"),
        pytest.param(HEAD + b" folded\r\n\r\n", id="folded"),
        pytest.param(HEAD + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", id="twice"),
        pytest.param(HEAD + b"Content-Length: 1, 1\r\n\r\n", id="list of lengths"),
        pytest.param(HEAD + b"Content-Length: -1\r\n\r\n", id="negative"),
        pytest.param(HEAD + b"Content-Length: 0x10\r\n\r\n", id="hexadecimal"),
        pytest.param(HEAD + b"Content-Length: \xb2\r\n\r\n", id="another digit"),
        pytest.param(HEAD + b"Content-Length:\r\n\r\n", id="empty"),
        pytest.param(HEAD + b"Content-Length: " + b"9" * 19 + b"\r\n\r\n", id="huge"),
        pytest.param(HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", id="both"),
        pytest.param(HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", id="gzip"),
        pytest.param(HEAD + b"Transfer-Encoding: identity\r\n\r\n", id="identity"),
        pytest.param(HEAD + b"Transfer-Encoding: \x0bchunked\r\n\r\n", id="vertical tab"),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            id="chunked twice",
        ),
        pytest.param(
            b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", id="chunked in HTTP/1.0"
        ),
        pytest.param(HEAD + b"A: b\r\n" * 128 + b"\r\n", id="many fields"),
        pytest.param(CHUNKED + b"-1\r\nx\r\n", id="negative chunk"),
        pytest.param(CHUNKED + b"0x1\r\nx\r\n", id="hexadecimal chunk"),
        pytest.param(CHUNKED + b" 1\r\nx\r\n", id="space before a chunk's size"),
        pytest.param(CHUNKED + b"1\nx\r\n0\r\n\r\n", id="bare line feed behind a chunk's size"),
        pytest.param(CHUNKED + b"1\r\nxy\r\n0\r\n\r\n", id="chunk longer than it says"),
        pytest.param(CHUNKED + b"1" * 16 + b"\r\n", id="huge chunk"),
        pytest.param(CHUNKED + b"1;" + b"x" * 5000, id="long chunk extension"),
        pytest.param(CHUNKED + b"0\r\nA b\r\n\r\n", id="malformed trailer"),
        pytest.param(CHUNKED + b"0\r\n" + b"A: b\r\n" * 1000, id="endless trailer"),
        pytest.param(b"\r\n" * 17 + HEAD, id="many empty lines before"),
    ],
)
@given(cuts=st.lists(st.integers(0, 400), max_size=4))
def test_an_ambiguous_request_is_refused(data: bytes, cuts: list[int]) -> None:
    with pytest.raises(MalformedHttpError):
        read(data, cuts)


@pytest.mark.parametrize(
    ("line", "fields", "goes_on"),
    [
        pytest.param(b"GET / HTTP/1.1", b"", True, id="1.1"),
        pytest.param(b"GET / HTTP/1.0", b"", False, id="1.0"),
        pytest.param(b"GET / HTTP/1.0", b"Connection: Keep-Alive\r\n", True, id="1.0 kept"),
        pytest.param(b"GET / HTTP/1.1", b"Connection: x, Close\r\n", False, id="close"),
        pytest.param(
            b"GET / HTTP/1.1",
            b"Connection: close\r\nConnection: keep-alive\r\n",
            False,
            id="closed and kept",
        ),
    ],
)
def test_a_connection_goes_on_as_its_peer_wishes(line: bytes, fields: bytes, goes_on: bool) -> None:
    [_], messages = read(line + b"\r\nHost: x\r\n" + fields + b"\r\n", [])
    assert messages.keep_alive is goes_on


@pytest.mark.parametrize(
    "host", [b"", b"a", b"A-b_1.x.:", b"a:80", b"[::1]:80", b"[v1.a:b]", b"%c3%a9"]
)
def test_a_host_is_any_of_rfc_3986(host: bytes) -> None:
    [(head, _)], _ = read(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host, [])
    assert head.headers.one("host") == host.decode()


def test_a_head_over_the_limit_is_refused_before_its_end() -> None:
    with pytest.raises(HeadersTooLargeError):
        read(HEAD + b"A: b\r\n" * 1000, [100])
    with pytest.raises(HeadersTooLargeError):
        read(HEAD + b"A: " + b"b" * MOST + b"\r\n\r\n", [])


def test_of_a_body_in_very_many_small_chunks_few_are_parsed() -> None:
    messages = RequestParser(MOST)
    messages.feed(CHUNKED + b"1\r\nx\r\n" * 50_000)
    messages.head()
    assert messages.error is not None
    assert len(messages.body) < 1100


def test_of_very_many_trailer_fields_few_are_parsed() -> None:
    messages = RequestParser(1024 * 1024)
    messages.feed(CHUNKED + b"0\r\n" + b"a:\r\n" * 50_000)
    messages.head()
    assert messages.error is not None
    assert messages.held_bytes > 150_000


@pytest.mark.parametrize(("size", "number"), [(1, 1000), (256, 8192)])
def test_a_body_may_have_many_chunks(size: int, number: int) -> None:
    chunk = b"%x\r\n%s\r\n" % (size, b"x" * size)
    [(_, body)], _ = read((CHUNKED + chunk * number + b"0\r\n\r\n"), [])
    assert body == b"x" * size * number


def test_the_bytes_behind_a_malformed_chunk_are_freed_with_the_parser() -> None:
    parser = RequestParser(1000)
    parser.feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert parser.head() is not None
    parser.feed(b"no size\r\n" + b"x" * 1000)
    assert parser.error is not None
    freed = weakref.ref(parser)
    del parser
    assert freed() is None


def test_each_request_may_have_empty_lines_before_it() -> None:
    found, _ = read((b"\r\n" * 16 + HEAD + b"\r\n") * 20, [])
    assert len(found) == 20


# --- beside llhttp ------------------------------------------------------------------------------


class Llhttp:
    """The result of llhttp for the same bytes."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str, list[tuple[str, str]], bytes, bool]] = []
        self.parser: Any = httptools.HttpRequestParser(self)

    def on_message_begin(self) -> None:
        self.fields: list[tuple[str, str]] = []
        self.target, self.body, self.is_in_body = b"", b"", False

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_in_body:  # the rest is a trailer
            self.fields.append((name.decode("latin-1"), value.decode("latin-1").strip(" \t")))

    def on_headers_complete(self) -> None:
        self.is_in_body = True
        self.method, self.goes_on = self.parser.get_method(), self.parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        seen = (self.method.decode(), self.target.decode("latin-1"))
        self.found.append((*seen, self.fields, self.body, self.goes_on))


PIECES = [
    *(b"POST /a HTTP/1.1\r\n", b"GET /b?c HTTP/1.0\r\n", b"PUT http://x/y HTTP/1.1\r\n"),
    *(b"Host: x\r\n", b"Content-Length: 3\r\n", b"content-length:5 \r\n", b"Content-Length: 0\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"transfer-encoding: Chunked \r\n", b"Expect: x\r\n"),
    *(b"Connection: close\r\n", b"Connection: keep-alive\r\n", b"Connection: a,Close\r\n"),
    *(b"A:\r\n", b"B: \xe9 y\t\r\n", b"C: a:b\r\n", b"\r\n", b"\r\n", b"\r\n"),
    *(b"abc", b"abcde", b"3\r\nabc\r\n", b"5;e\r\nabcde\r\n", b"0\r\n\r\n", b"0\r\nT: u\r\n\r\n"),
    *(b" ", b"\n", b"\r", b"\x00", b"0", b":", b","),
]


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), min_size=2, max_size=24))
def test_whatever_is_accepted_llhttp_reads_in_the_same_way(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    other, messages = Llhttp(), RequestParser(MOST)
    messages.feed(data)
    ours = []
    with contextlib.suppress(InboundError):
        while (head := messages.head()) is not None:
            if not messages.is_whole:
                break
            body = bytes(messages.body)
            ours.append((head.method, head.target, list(head.headers), body, messages.keep_alive))
            if not messages.keep_alive:
                break
    try:
        other.parser.feed_data(data)
    except httptools.HttpParserInvalidMethodError:  # the service answers 405 to them
        ours = ours[: len(other.found)]
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        pass
    assert ours == other.found[: len(ours)]


@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=50), max_size=20))
def test_no_bytes_raise_anything_else(pieces: list[bytes]) -> None:
    messages = RequestParser(MOST)
    for piece in [CHUNKED, *pieces]:
        messages.feed(piece)
        if messages.is_whole:
            try:
                messages.head()
            except InboundError:
                return
