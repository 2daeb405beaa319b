"""The aiohttp adapter: a receiver as an application, alone or as a sub-application."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pushkit.webhook import Headers
from receiver.request import (
    LARGE_BODY,
    Answer,
    BrokenBodyError,
    ConsumedBodyError,
    Handle,
    Request,
    read_bounded,
)

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HideMalformedRequests(logging.Filter):
    """Removes the client's text from what aiohttp logs of malformed requests.

        logging.getLogger("aiohttp.server").addFilter(HideMalformedRequests())

    aiohttp logs such a head with its traceback, at ERROR, before any application sees it, and it
    may contain a token. That logger belongs to the whole process, so the application has to add
    the filter.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass every record; replace the text of a malformed request by the error's name."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg = f"{record.getMessage()}: no HTTP request: {type(error).__name__}"
            record.args, record.exc_info, record.exc_text = (), None, None
        return True


def application(
    handle: Handle,
    running: AbstractAsyncContextManager[object],
    wind_down: Callable[[], None],
) -> web.Application:
    """Return an application that enters `running`, the receiver, when it starts.

    It calls `wind_down` before it waits for the last answers, of which some wait for that.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        path = f"/{request.match_info['path']}"
        return await _answer(handle, request, path)

    async def lifespan(_app: web.Application) -> AsyncIterator[None]:
        async with running:
            yield

    async def ending(_app: web.Application) -> None:
        wind_down()

    app = web.Application()
    # Every path, since the senders' paths may change while it runs.
    app.router.add_route("*", r"/{path:[\s\S]*}", answer, expect_handler=_when_it_is_read)
    app.cleanup_ctx.append(lifespan)
    app.on_shutdown.append(ending)
    return app


def _response(answer: Answer) -> web.Response:
    found = web.Response(status=answer.status, headers=answer.headers, body=answer.body or None)
    # aiohttp's own value would name its version and Python's.
    found.headers["Server"] = "receiver"
    if answer.close:
        found.force_close()  # the rest of the body is not read
    return found


async def _answer(handle: Handle, request: web.Request, path: str) -> web.StreamResponse:
    content = request.content
    at_hand: bytes | None = None  # what arrived with the head, and is small
    if (
        content.is_eof()
        and not content.at_eof()
        and content.exception() is None
        and content.total_bytes <= LARGE_BODY
    ):
        at_hand = content.read_nowait()

    async def read(limit: int) -> bytes | None:
        body: bytes | None
        if at_hand is not None:
            body = at_hand
        elif content.at_eof():  # it has none, or a middleware has read it: `read` returns it again
            body = await request.read()
        else:
            body = await read_bounded(_chunks(request), limit)
        if body is None or len(body) > limit:
            return None
        if len(body) < content.total_bytes:
            raise ConsumedBodyError.of(len(body), content.total_bytes)
        return body

    asked = Request(
        method=request.method,
        path=path,
        target=request.raw_path,
        headers=Headers.from_bytes(request.raw_headers),
        peer=request.remote or "",
        body=at_hand if at_hand is not None and len(at_hand) == content.total_bytes else None,
        read=read,
        is_gone=lambda: request.transport is None or request.transport.is_closing(),
    )
    answer = await handle(asked)
    return _response(answer) if answer.stream is None else await _streamed(answer, request)


async def _streamed(answer: Answer, request: web.Request) -> web.StreamResponse:
    assert answer.stream is not None  # noqa: S101  # the caller looked
    response = web.StreamResponse(status=answer.status, headers=dict(answer.headers))
    response.headers["Server"] = "receiver"
    response.force_close()
    async with contextlib.aclosing(answer.stream) as chunks:
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # the client is gone
            async for chunk in chunks:
                await response.write(chunk)
    return response


async def _chunks(request: web.BaseRequest) -> AsyncGenerator[bytes, None]:
    try:
        # RFC 9110 §10.1.1: only now is the body wanted.
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(_CONTINUE)
            request.writer.output_size = 0
        async for chunk in request.content.iter_any():
            yield chunk
    except (web.RequestPayloadError, OSError) as exc:
        raise BrokenBodyError from exc


async def _when_it_is_read(request: web.Request) -> None:
    """Send no `100 Continue` yet: the head may be refused. `_chunks` sends it."""
