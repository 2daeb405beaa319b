"""HTTP/1.1 requests out of the bytes of a connection (RFC 9112), strictly, and without I/O.

What two readers might read differently is refused: a bare line feed, a folded line, white space
before a colon, two lengths, a length beside a coding, any coding but `chunked`. Whatever is
accepted here, llhttp reads in the same way; the tests hold the one against the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pushkit.errors import InboundError

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"  # RFC 9110 §5.6.2
_VALUE = rb"[^\x00-\x08\x0a-\x1f\x7f]*"
_LINE: Final = re.compile(rb"(%s) ([!-~\x80-\xff]+) HTTP/1\.([01])" % _TOKEN)
_FIELDS: Final = re.compile(rb"(?:\r\n%s:%s)*" % (_TOKEN, _VALUE))
_BEGINNING: Final = re.compile(
    rb"(?:\r(?:\n\r?)?)?(?:%s(?: (?:[!-~\x80-\xff]+(?: [HTP/.0-9]{0,8}\r?)?)?)?)?" % _TOKEN
)
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;%s)?" % _VALUE)
_MAX_FIELDS: Final = 128
_MAX_CHUNK_LINE: Final = 1024
_END: Final = b"\r\n\r\n"


class MalformedHttpError(InboundError, code="malformed_http", status=400):
    """Bytes that are no HTTP request."""


class HeadTooLargeError(InboundError, code="headers_too_large", status=431):
    """A head that is longer than the limit."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The head of one request."""

    method: str  # as it stands there
    target: str  # as it stands there
    # The header fields, in order, repeated ones as often as they came.
    fields: list[tuple[str, str]]
    keep_alive: bool  # whether the connection may go on after the answer
    expects_continue: bool  # whether its body comes when it is asked for
    minor_version: int  # 0 or 1


class Messages:
    """Takes a connection's bytes apart: `head`, then its `body` until `is_whole`, and again."""

    def __init__(self, max_head_bytes: int) -> None:
        self._max_head_bytes = max_head_bytes
        self._pending = bytearray()
        self._in_head = True
        self._length: int | None = 0  # what is to come of a body, or of a chunk with its end
        self._is_chunked = False
        self._in_trailers = 0
        self.body = bytearray()
        self.error: MalformedHttpError | None = None

    @property
    def is_whole(self) -> bool:
        """Whether there is no request that is in work, or its body has come to its end."""
        return self._in_head

    @property
    def head_bytes(self) -> int:
        """How many bytes there are of a head that is not complete."""
        return 0 if not self._in_head or self.has_head else len(self._pending.lstrip(b"\r\n"))

    @property
    def has_head(self) -> bool:
        """Whether a head waits to be taken."""
        return self._in_head and bool(self._pending) and self._end_of_head() >= 0

    @property
    def held_bytes(self) -> int:
        """How many bytes nobody has taken yet."""
        return len(self._pending) + len(self.body)

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        self._pending += data
        if not self._in_head:
            self._read_body()

    def head(self) -> RequestHead | None:
        """Take the next head, if it is there; the body of the one before is over.

        Raises:
            MalformedHttpError: It is none.
            HeadTooLargeError: It is too long, as far as it is there.
        """
        end = self._end_of_head()
        if end < 0:
            self._check_beginning()
            return None
        if end + len(_END) > self._max_head_bytes:
            raise HeadTooLargeError(f"more than {self._max_head_bytes} bytes of headers")
        data = bytes(self._pending[:end])
        del self._pending[: end + len(_END)]
        head = self._read_head(data)
        self.body.clear()
        self._in_head = False
        self._read_body()
        return head

    # --- heads ---------------------------------------------------------------------------------

    def _end_of_head(self) -> int:
        while self._pending.startswith(b"\r\n"):  # RFC 9112 §2.2: empty lines before a request
            del self._pending[:2]
        return self._pending.find(_END)

    def _check_beginning(self) -> None:
        """Refuse at once what cannot become a head: nobody waits for its end."""
        if len(self._pending) > self._max_head_bytes:
            raise HeadTooLargeError(f"more than {self._max_head_bytes} bytes of headers")
        line, end, _ = self._pending.partition(b"\r\n")
        if not (_LINE if end else _BEGINNING).fullmatch(line):
            raise MalformedHttpError("no request line")

    def _read_head(self, data: bytes) -> RequestHead:
        line = _LINE.match(data)
        if line is None or not _FIELDS.fullmatch(data, line.end()):
            raise MalformedHttpError("a request line or a header field is malformed")
        minor_version = int(line[3])
        fields: list[tuple[str, str]] = []
        length: str | None = None
        coding: str | None = None
        options: set[str] = set()
        expects_continue = False
        for text in data.decode("latin-1").split("\r\n")[1:]:
            name, _, value = text.partition(":")
            value = value.strip(" \t")
            fields.append((name, value))
            match name.lower():
                case "content-length":
                    if length is not None or not _LENGTH.fullmatch(value):
                        raise MalformedHttpError("Content-Length: expected one number")
                    length = value
                case "transfer-encoding":
                    if coding is not None or value.lower() != "chunked" or not minor_version:
                        raise MalformedHttpError("Transfer-Encoding: expected `chunked` alone")
                    coding = value
                case "connection":
                    options.update(option.strip(" \t") for option in value.lower().split(","))
                case "expect":
                    expects_continue = minor_version == 1 and value.lower() == "100-continue"
        if length is not None and coding is not None:  # RFC 9112 §6.1: an attempt to smuggle
            raise MalformedHttpError("both Content-Length and Transfer-Encoding")
        if len(fields) > _MAX_FIELDS:
            raise MalformedHttpError(f"more than {_MAX_FIELDS} header fields")
        self._is_chunked = coding is not None
        self._length = None if self._is_chunked else int(length or 0)
        return RequestHead(
            method=line[1].decode("latin-1"),
            target=line[2].decode("latin-1"),
            fields=fields,
            keep_alive="close" not in options and (minor_version == 1 or "keep-alive" in options),
            expects_continue=expects_continue,
            minor_version=minor_version,
        )

    # --- bodies --------------------------------------------------------------------------------

    def _read_body(self) -> None:
        if not self._is_chunked:
            assert self._length is not None  # noqa: S101  # set with the head
            taken = min(self._length, len(self._pending))
            self.body += self._pending[:taken]
            del self._pending[:taken]
            self._length -= taken
            self._in_head = not self._length
            return
        while self.error is None and not self._in_head and self._read_chunk():
            pass

    def _read_chunk(self) -> bool:
        """Take a part of the chunked coding (RFC 9112 §7.1); say whether there may be another."""
        if self._length is None or self._in_trailers:
            return self._read_line()
        inside = min(max(self._length - 2, 0), len(self._pending))
        self.body += self._pending[:inside]
        del self._pending[:inside]
        self._length -= inside
        if self._length > 2 or len(self._pending) < 2:
            return False
        if self._pending[:2] != b"\r\n":
            self.error = MalformedHttpError("a chunk is longer than it says")
            return False
        del self._pending[:2]
        self._length = None
        return True

    def _read_line(self) -> bool:
        """Take the line before a chunk, or one of the trailer, which nobody wants."""
        end = self._pending.find(b"\r\n")
        if end < 0:
            most = (
                self._max_head_bytes - self._in_trailers if self._in_trailers else _MAX_CHUNK_LINE
            )
            if len(self._pending) > most:
                self.error = MalformedHttpError("a line of the chunked coding is too long")
            return False
        line = bytes(self._pending[:end])
        del self._pending[: end + 2]
        if self._in_trailers:
            self._in_trailers += len(line) + 2
            if not line:
                self._in_trailers, self._in_head = 0, True
            elif not _FIELDS.fullmatch(b"\r\n" + line) or self._in_trailers > self._max_head_bytes:
                self.error = MalformedHttpError("a trailer is malformed")
            return True
        size = _CHUNK.fullmatch(line) if end <= _MAX_CHUNK_LINE else None
        if size is None:
            self.error = MalformedHttpError("a chunk's size is malformed")
        elif length := int(size[1], 16):
            self._length = length + 2
        else:
            self._in_trailers = 1
        return True
