"""`Request` and `Answer`: what servers and adapters hand over, and what they send back.

A server or an adapter knows these, and calls one function: `Handle`. It raises nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeAlias

from pushkit.errors import InboundError
from pushkit.record import field, record
from pushkit.scheduling.event_loop import LoopLock
from pushkit.webhook import Headers, WebhookRequest
from receiver.steps import Trail

LARGE_BODY: Final = 16 * 1024
"""Bytes. Decoding a larger body takes milliseconds, and up to thirty times its memory."""

ReadBody: TypeAlias = Callable[[int], Awaitable[bytes | None]]
"""Reads a body of at most so many bytes; None if it is longer.

Raises `BrokenBodyError`, or an `InboundError` with the reason of a refusal.
"""


class BrokenBodyError(Exception):
    """The peer disconnected within the body, or its framing is broken."""


class ConsumedBodyError(InboundError, code="body_consumed", status=503):
    """A server or middleware in front of the receiver has read a part of the body."""

    @classmethod
    def of(cls, read: int, stated: int) -> ConsumedBodyError:
        """Return the error for a body of which so many bytes came."""
        return cls(
            f"found {read} of the body's {stated} bytes: the server, or a middleware in front of"
            " the receiver, has read the others"
        )


class HeadersTooLargeError(InboundError, code="headers_too_large", status=431):
    """The header section is longer than the limit."""


@record(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: its head, and how to read its body."""

    method: str
    path: str  # the path, percent-decoded, without the prefix of a mount
    target: str  # path and query as received
    headers: Headers  # the header fields, repeated ones as often as they came
    peer: str = ""  # the address of the socket's other end
    # The body, if all of it arrived with the head; None if it has yet to be read.
    body: bytes | None = field(default=None, repr=False)
    read: ReadBody  # reads the body, if `body` is None
    trail: Trail = field(default_factory=Trail)  # the steps of the verification that it comes to
    is_gone: Callable[[], bool] = lambda: (
        False
    )  # whether its peer reads no answer, if that is known
    takes_streams: bool = True  # whether an answer may be a stream

    @classmethod
    def of(cls, whole: WebhookRequest, path: str, *, peer: str = "", trail: Trail) -> Request:
        """Return a request whose body is in memory, and whose answer is sent as a whole."""

        async def read(limit: int) -> bytes | None:
            return whole.body if len(whole.body) <= limit else None

        return cls(
            method=whole.method,
            path=path,
            target=whole.target,
            headers=whole.headers,
            peer=peer,
            read=read,
            trail=trail,
            takes_streams=False,
        )


@record(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response to one request."""

    status: int
    # `accepted`, `duplicate`, or the stable code of a refusal; empty for a probe and an echo.
    code: str = ""
    headers: tuple[tuple[str, str], ...] = ()  # without `Content-Length` and the connection's own
    body: bytes = field(default=b"", repr=False)
    # Instead of a body: what is sent as it comes. Whoever sends the answer closes it.
    stream: AsyncGenerator[bytes, None] | None = field(default=None, repr=False)
    close: bool = False  # whether the connection ends after it: the request was not read to its end


Handle: TypeAlias = Callable[[Request], Awaitable[Answer]]
"""`RequestHandler.handle`, or a substitute. It raises nothing."""


async def read_bounded(chunks: AsyncGenerator[bytes, None], limit: int) -> bytes | None:
    """Return the body; None as soon as it exceeds the limit, in bytes."""
    body = bytearray()
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            body += chunk
            if len(body) > limit:
                return None
    return bytes(body)


async def turn_to_decode(decoding: LoopLock) -> None:
    """Wait for the turn of a large body: all else that is ready in the loop runs between."""
    async with decoding.here:
        await asyncio.sleep(0)
