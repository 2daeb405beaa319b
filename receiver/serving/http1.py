"""A strict parser of HTTP/1.1 requests (RFC 9112), without I/O.

It refuses what two parsers might read differently: a bare line feed, a folded line, white space
before a colon, two lengths, a length with a coding, any coding but `chunked`. llhttp reads every
accepted request in the same way; the tests compare both. "Why it is so" in `docs/decisions.md`
says why the service does not use llhttp.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pushkit.errors import InboundError
from pushkit.webhook import Headers
from receiver.request import HeadersTooLargeError

_TOKEN = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # noqa: S105  # RFC 9110 §5.6.2
# A field between two line ends; its value without white space around. `\r` within is a control.
_FIELD: Final = re.compile(rf"\n({_TOKEN}):[ \t]*+((?:.*[^\r \t])?)[ \t]*\r(?=\n)")
_LINE: Final = re.compile(rf"({_TOKEN}) ([!-~\x80-\xff]+) HTTP/1\.([01])")
_BEGINNING: Final = re.compile(
    rf"(?:\r(?:\n\r?)?)?(?:{_TOKEN}(?: (?:[!-~\x80-\xff]+(?: [HTP/.0-9]{{0,8}}\r?)?)?)?)?"
)
# RFC 9110 §7.2: host and port of a URI, without user information (§4.2.4); the host may be empty.
_HOST: Final = re.compile(
    r"(?:\[(?:[0-9A-Fa-f.]*:[0-9A-Fa-f:.]+|v[0-9A-Fa-f]+\.[\w.~!$&'()*+,;=:-]+)\]"
    r"|(?:[\w.~!$&'()*+;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?",
    re.ASCII,
)
_ABSOLUTE: Final = re.compile(r"https?://([^/?]*)", re.IGNORECASE)
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_CHUNK: Final = re.compile(r"([0-9a-fA-F]{1,15})(?:[ \t]*;.*)?")
_CONTROLS: Final = bytes({*range(0x20), 0x7F} - {0x09})
_MAX_FIELDS: Final = 128
_MAX_CHUNK_LINE: Final = 1024
_MAX_EMPTY_LINES: Final = 16  # before a request
# The chunked coding may have one line for each 256 bytes of the body, and 1,024 more: a line takes
# as long to parse as a kilobyte of the body, and other connections wait meanwhile.
_BYTES_PER_LINE: Final = 256
_MAX_LACKING: Final = 1024 * _BYTES_PER_LINE
_END: Final = b"\r\n\r\n"


class MalformedHttpError(InboundError, code="malformed_http", status=400):
    """The bytes are not an HTTP request."""


class RequestHead(NamedTuple):
    """The head of one request; method and target as received."""

    method: str
    target: str
    headers: Headers


class RequestParser:
    """Parses the bytes of a connection: `head`, then its `body` until `is_whole`, and so on."""

    def __init__(self, max_head_bytes: int) -> None:
        self._max_head_bytes = max_head_bytes
        self._pending = bytearray()
        # Bytes missing of the body, or of the chunk with its line end; None before a chunk.
        self._length: int | None = 0
        self._is_chunked = False
        self._in_trailers = 0  # bytes of the trailers so far, and 1 in front; 0 before them
        self._lacking = 0  # bytes of the body that its lines so far are in advance of
        self._empty_lines = 0  # dropped before the next head
        # Of the last request: all that its answer needs. The head itself is freed before that.
        self.is_1_1 = True
        self.keep_alive: bool = True  # whether the connection may stay open after the answer
        self.expects_continue: bool = False  # whether the body is sent only after `100 Continue`
        self.answer_has_body: bool = True  # not to HEAD
        self.body: bytearray = bytearray()
        # Whether the body of the last request is complete; also before the first request.
        self.is_whole: bool = True
        self.error: MalformedHttpError | None = None

    @property
    def head_bytes(self) -> int:
        """The bytes of an incomplete head."""
        return 0 if not self.is_whole or self.has_head else len(self._pending.lstrip(b"\r\n"))

    @property
    def has_head(self) -> bool:
        """Whether a complete head waits for `head`."""
        return self.is_whole and bool(self._pending) and self._end_of_head() >= 0

    @property
    def held_bytes(self) -> int:
        """The bytes that were fed and not taken yet."""
        return len(self._pending) + len(self.body)

    def feed(self, data: bytes) -> None:
        """Parse more bytes."""
        self._pending += data
        if not self.is_whole:
            self._read_body()

    def head(self) -> RequestHead | None:
        """Take the next head, None if it is incomplete; the body before it must be complete.

        Raises:
            MalformedHttpError: It is malformed.
            HeadersTooLargeError: It is too long already.
        """
        end = self._end_of_head()
        size = len(self._pending) if end < 0 else end + len(_END)
        if size > self._max_head_bytes:
            raise HeadersTooLargeError(f"more than {self._max_head_bytes} bytes of headers")
        if end < 0:
            self._check_beginning()
            return None
        lines = self._pending[: end + 2]
        del self._pending[:size]
        head = self._read_head(lines)
        self.body.clear()
        self.is_whole = False
        self._read_body()
        return head

    def _taken(self, size: int) -> bytearray:
        data = self._pending[:size]
        del self._pending[:size]
        return data

    # --- heads ---------------------------------------------------------------------------------

    def _end_of_head(self) -> int:
        # RFC 9112 §2.2: empty lines before a request are ignored; of too many, one is its first.
        while self._empty_lines < _MAX_EMPTY_LINES and self._pending.startswith(b"\r\n"):
            del self._pending[:2]
            self._empty_lines += 1
        return self._pending.find(_END)

    def _check_beginning(self) -> None:
        """Refuse at once what cannot become a head, without waiting for its end."""
        line, end, _ = self._pending.partition(b"\r\n")
        if not (_LINE if end else _BEGINNING).fullmatch(line.decode("latin-1")):
            raise MalformedHttpError("no request line")

    def _read_head(self, data: bytearray) -> RequestHead:
        text = _text(data)
        end = text.index("\r\n")
        line = _LINE.fullmatch(text, 0, end)
        if line is None:
            raise MalformedHttpError("no request line")
        fields = _fields(text, end)
        if len(fields) > _MAX_FIELDS:
            raise MalformedHttpError(f"more than {_MAX_FIELDS} header fields")
        method, target, minor = line.groups()
        headers, is_1_1 = Headers(fields), minor == "1"
        values, repeated = headers.values(), headers.repeated()
        if "host" in repeated or (is_1_1 and "host" not in values):
            raise MalformedHttpError("Host: expected one")  # RFC 9112 §3.2
        if not _HOST.fullmatch(values.get("host", "")):
            raise MalformedHttpError("Host: expected a host, and perhaps a port")
        absolute = None if target[0] == "/" else _ABSOLUTE.match(target)  # RFC 9112 §3.2.2
        if absolute and not (absolute[1] and _HOST.fullmatch(absolute[1])):
            raise MalformedHttpError("the target: expected a host, and perhaps a port")
        length, coding = values.get("content-length"), values.get("transfer-encoding")
        if length is not None and ("content-length" in repeated or not _LENGTH.fullmatch(length)):
            raise MalformedHttpError("Content-Length: expected one number")
        if coding is not None:
            if coding.lower() != "chunked" or "transfer-encoding" in repeated or not is_1_1:
                raise MalformedHttpError("Transfer-Encoding: expected `chunked` alone")
            if length is not None:  # RFC 9112 §6.1: an attempt to smuggle
                raise MalformedHttpError("both Content-Length and Transfer-Encoding")
        self._is_chunked = coding is not None
        self._length = None if self._is_chunked else int(length or 0)
        self._lacking = self._empty_lines = 0
        self.is_1_1 = self.keep_alive = is_1_1
        if "connection" in values:
            stated = ",".join(headers.all("connection")).lower().split(",")
            options = [option.strip(" \t") for option in stated]
            self.keep_alive = "close" not in options and (is_1_1 or "keep-alive" in options)
        expected = ",".join(headers.all("expect")) if "expect" in values else ""
        self.expects_continue = is_1_1 and expected.lower() == "100-continue"
        self.answer_has_body = method != "HEAD"
        return RequestHead(method, target, headers)

    # --- bodies --------------------------------------------------------------------------------

    def _read_body(self) -> None:
        length = self._length
        if length is not None and not self._is_chunked:
            self._length = length - self._read_bytes(length)
            self.is_whole = not self._length
            return
        try:
            while self.error is None and not self.is_whole and self._read_chunk():
                pass
        except MalformedHttpError as exc:
            # With its traceback it is a cycle, which would hold the bytes that it did not parse.
            self.error = exc.with_traceback(None)

    def _read_bytes(self, size: int) -> int:
        """Take at most `size` bytes of the body; return how many."""
        taken = self._taken(size)
        self.body += taken
        return len(taken)

    def _read_chunk(self) -> bool:
        """Take a part of the chunked coding (RFC 9112 §7.1); return whether to try another."""
        if self._length is None or self._in_trailers:
            return self._read_line()
        self._length -= self._read_bytes(max(self._length - 2, 0))
        if self._length > 2 or len(self._pending) < 2:
            return False
        if self._taken(2) != b"\r\n":
            raise MalformedHttpError("a chunk is longer than it says")
        self._length = None
        return True

    def _read_line(self) -> bool:
        """Take the line before a chunk, or one of the trailers, which are dropped."""
        most = self._max_head_bytes - self._in_trailers if self._in_trailers else _MAX_CHUNK_LINE
        end = self._pending.find(b"\r\n")
        if max(end, 0 if end >= 0 else len(self._pending)) > most:
            raise MalformedHttpError("a line of the chunked coding is too long")
        if end < 0:
            return False
        self._lacking += _BYTES_PER_LINE
        if self._lacking > _MAX_LACKING:
            raise MalformedHttpError("too many lines of the chunked coding for so short a body")
        line = _text(self._taken(end + 2)[:-2])
        if not self._in_trailers:
            size = _CHUNK.fullmatch(line)
            if size is None:
                raise MalformedHttpError("a chunk's size is malformed")
            self._length = int(size[1], 16) + 2
            self._lacking -= self._length
            self._in_trailers = int(self._length == 2)
        elif line:
            self._in_trailers += len(line) + 2
            _fields(f"\r\n{line}\r\n", 0)
        else:
            self._in_trailers, self.is_whole = 0, True
        return True


def _text(data: bytearray) -> str:
    """Return lines as text, with tabs and whole line ends as the only control characters."""
    if len(data.translate(None, _CONTROLS)) != len(data) - 2 * data.count(b"\n"):
        raise MalformedHttpError("a control character, or half of a line's end")
    return data.decode("latin-1")


def _fields(text: str, since: int) -> list[tuple[str, str]]:
    """Parse header fields; `since` is the end of the line before the first.

    Each field has to stand between two line ends, so that none is a part of a line.
    """
    fields: list[tuple[str, str]] = _FIELD.findall(text, since)
    if len(fields) != text.count("\n", since) - 1:
        raise MalformedHttpError("a header field is malformed")
    return fields
