"""Where in the bytes of a connection a head begins and ends (RFC 9112 §2, §6, §7.1).

aiohttp's parser does not tell whether a part of a head is in it, and that needs a deadline. What is
wrong here is for the parser to refuse; this only keeps count.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

__all__ = ["Framing"]

_MAX_LINE_BYTES: Final = 16 * 1024
_END_OF_HEAD: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(
    rb"\r\ncontent-length[ \t]*:[ \t]*([0-9]{1,18})[ \t]*\r\n", re.IGNORECASE
)
_CODED: Final = re.compile(rb"\r\ntransfer-encoding[ \t]*:", re.IGNORECASE)
_CHUNK_SIZE: Final = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")


class _Next(Enum):
    HEAD = auto()
    BODY = auto()
    CHUNK_SIZE = auto()
    CHUNK = auto()
    TRAILERS = auto()
    NOTHING = auto()


class Framing:
    """Follows the messages of one connection.

    Attributes:
        heads: How many heads were complete.
    """

    def __init__(self) -> None:
        self.heads = 0
        self._next = _Next.HEAD
        self._pending = bytearray()  # of a head, or of a line of the chunked coding
        self._left = 0  # of a body or chunk

    @property
    def head_bytes(self) -> int:
        """How many bytes there are of a head that is not complete."""
        return len(self._pending) if self._next is _Next.HEAD else 0

    @property
    def in_body(self) -> bool:
        """Whether a head is complete, and its body is not."""
        return self._next is not _Next.HEAD

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""
        self._pending += data
        while self._step():
            pass

    def _step(self) -> bool:
        """Take one part of what is pending; say whether there may be another."""
        match self._next:
            case _Next.HEAD:
                return self._take_head()
            case _Next.BODY | _Next.CHUNK:
                return self._take_content()
            case _Next.CHUNK_SIZE | _Next.TRAILERS:
                return self._take_line()
            case _Next.NOTHING:
                self._pending.clear()
                return False

    def _take_head(self) -> bool:
        while self._pending.startswith(b"\r\n"):  # RFC 9112 §2.2: empty lines before a request
            del self._pending[:2]
        end = self._pending.find(_END_OF_HEAD)
        if end < 0:
            return False
        head = bytes(self._pending[: end + len(_END_OF_HEAD)])
        del self._pending[: len(head)]
        self.heads += 1
        length = _LENGTH.search(head)
        if _CODED.search(head):
            self._next = _Next.CHUNK_SIZE
        elif length is not None and int(length[1]):
            self._next, self._left = _Next.BODY, int(length[1])
        return True

    def _take_content(self) -> bool:
        taken = min(self._left, len(self._pending))
        del self._pending[:taken]
        self._left -= taken
        if self._left:
            return False
        self._next = _Next.HEAD if self._next is _Next.BODY else _Next.CHUNK_SIZE
        return True

    def _take_line(self) -> bool:
        line, end, rest = bytes(self._pending).partition(b"\r\n")
        if not end:
            self._next = _Next.NOTHING if len(line) > _MAX_LINE_BYTES else self._next
            return False
        self._pending[:] = rest
        if self._next is _Next.TRAILERS:
            self._next = _Next.TRAILERS if line else _Next.HEAD
            return True
        size = _CHUNK_SIZE.fullmatch(line)
        if size is None:
            self._next = _Next.NOTHING
        elif int(size[1], 16):
            self._next, self._left = _Next.CHUNK, int(size[1], 16) + len(b"\r\n")
        else:
            self._next = _Next.TRAILERS
        return True
