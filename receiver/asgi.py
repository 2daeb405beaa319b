"""The ASGI adapter: a receiver as an application, alone or mounted.

app = FastAPI(lifespan=receiver.lifespan)
app.mount("/hooks", receiver.asgi())
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pushkit.webhook import Headers
from pushkit.webui.asgi import Message, Receive, Send, path_within, refuse_websocket
from receiver.request import Answer, BrokenBodyError, ConsumedBodyError, Request, read_bounded

if TYPE_CHECKING:
    from receiver.request_handler import RequestHandler

# The unread rest of a refused body is read and dropped, up to this time and size.
_DISCARDING_SECONDS = 2.0
_MAX_DISCARDED = 16 * 1024 * 1024


class AsgiApp:
    """A receiver as an ASGI application.

    Args:
        handler: Answers the requests.
        running: The receiver: it is entered for the lifespan of a server.
    """

    def __init__(
        self, handler: RequestHandler, running: AbstractAsyncContextManager[object]
    ) -> None:
        self._handler = handler
        self._running = running

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan of a server."""
        if scope["type"] == "lifespan":
            await live(self._running, receive, send)
        elif scope["type"] == "http":
            within = path_within(scope)
            # Undecoded, for the log, if that is None: no sender's path.
            path = _target(scope).partition("?")[0] if within is None else unquote(within)
            await serve(self._handler, scope, receive, send, path=path)
        elif scope["type"] == "websocket":
            await refuse_websocket(receive, send)


async def live(running: AbstractAsyncContextManager[object], receive: Receive, send: Send) -> None:
    """Run a receiver for the lifespan of a server, without another application."""
    await receive()  # lifespan.startup
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(running)
        except Exception as exc:
            await send({"type": "lifespan.startup.failed", "message": str(exc)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()  # lifespan.shutdown
    await send({"type": "lifespan.shutdown.complete"})


async def serve(
    handler: RequestHandler, scope: Message, receive: Receive, send: Send, *, path: str
) -> None:
    """Answer one request at this path, which is without the prefix of a mount."""
    client = scope.get("client")
    headers = Headers.from_bytes(scope["headers"])
    body = _Body(receive, patience=handler.limits.request_timeout.total_seconds() / 5)
    stated = headers.values().get("content-length", "")

    async def read(limit: int) -> bytes | None:
        found = await read_bounded(body.chunks(), limit)
        if found is not None and stated.isdecimal() and len(found) < int(stated):
            raise ConsumedBodyError.of(len(found), int(stated))
        return found

    try:
        answer = await handler.handle(
            Request(
                method=scope["method"],
                path=path,
                target=_target(scope),
                headers=headers,
                peer=client[0] if client else "",
                read=read,
                is_gone=body.is_lost,
            )
        )
        if answer.stream is None:
            body.unwatch()
        if body.is_cut_off:  # the client is gone; some servers log an error if a response is sent
            return
        await _send(answer, body, send, http1=scope.get("http_version", "1.1").startswith("1"))
    finally:
        body.unwatch()


def _target(scope: Message) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8")
    query: bytes = scope.get("query_string", b"")
    path = raw.partition(b"?")[0]
    return (path + b"?" + query if query else path).decode("latin-1")


class _Body:
    """A request's body, as the server delivers it."""

    def __init__(self, receive: Receive, *, patience: float) -> None:
        self._receive = receive
        # Seconds for its first message. After the last one, which a middleware may have taken,
        # servers wait for the end of the connection.
        self._patience: float | None = patience
        self.ended = False  # all of it was read, or its connection is lost
        self.is_cut_off = False  # its connection is lost
        self._watching: asyncio.Task[None] | None = None

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the rest of it.

        Raises:
            BrokenBodyError: The client disconnected.
            ConsumedBodyError: It does not begin.
        """
        while not self.ended:
            try:
                async with asyncio.timeout(self._patience):
                    message = await self._receive()
            except TimeoutError:
                if self._patience is None:
                    raise
                self.ended = True
                raise ConsumedBodyError(
                    f"no part of the body came in {self._patience:g} s: a middleware in front of"
                    " the receiver has read it, or the client is too slow"
                ) from None
            self._patience = None
            self.ended = not message.get("more_body", False)
            if message["type"] == "http.disconnect":
                self.is_cut_off = True
                raise BrokenBodyError
            yield message.get("body", b"")

    def is_lost(self) -> bool:
        """Return whether the connection is lost; from the first call on the server is asked."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(), name="receiver-watching")
        return self.is_cut_off

    def unwatch(self) -> None:
        """Ask the server no more."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        message = await self._receive()
        if message.get("more_body", False):  # a poll has no body: the rest of this one stays unread
            return
        self.ended = True
        if message["type"] == "http.request":
            message = await self._receive()
        self.is_cut_off = message["type"] == "http.disconnect"

    async def discard(self) -> None:
        """Read and drop the rest of it, up to a time and size."""
        discarded = 0
        with contextlib.suppress(TimeoutError, BrokenBodyError, ConsumedBodyError):
            async with (
                asyncio.timeout(_DISCARDING_SECONDS),
                contextlib.aclosing(self.chunks()) as chunks,
            ):
                async for chunk in chunks:
                    discarded += len(chunk)
                    if discarded > _MAX_DISCARDED:
                        return


async def _send(answer: Answer, body: _Body, send: Send, *, http1: bool) -> None:
    fields = [*answer.headers]
    if answer.stream is None:
        fields.append(("Content-Length", str(len(answer.body))))
    if answer.close and http1:  # RFC 9113 §8.2.2: HTTP/2 has no such field
        fields.append(("Connection", "close"))
    headers = [(name.lower().encode(), value.encode()) for name, value in fields]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    if answer.stream is not None:
        async with contextlib.aclosing(answer.stream) as chunks:
            async for chunk in chunks:
                if body.is_cut_off:
                    return
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        if not body.is_cut_off:
            await send({"type": "http.response.body", "body": b""})
        return
    # A client that is refused by its head may still be writing the body. If the server closed the
    # connection now, that would be a reset, and the client would never read its answer
    # (RFC 9112 §9.6).
    lingers = http1 and not body.ended
    await send({"type": "http.response.body", "body": answer.body, "more_body": lingers})
    if lingers:
        await body.discard()
        if not body.is_cut_off:
            await send({"type": "http.response.body", "body": b""})
