"""The aiohttp edge: requests in, problem details out (RFC 9457)."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from aiohttp import web

from pushkit.webhook import Headers, WebhookRequest
from receiver.pipeline import Verdict

if TYPE_CHECKING:
    from receiver.receiver import Receiver

__all__ = ["problems", "routes"]

_log = logging.getLogger("receiver")

# In place of aiohttp's own, which names its version and Python's.
_HEADERS = {"Server": "receiver"}

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def routes(receiver: Receiver) -> list[web.RouteDef]:
    """Return one POST route per path of a trusted sender."""

    def route(path: str) -> web.RouteDef:
        async def receive(request: web.Request) -> web.Response:
            return _response(await _receive(receiver, request, path))

        return web.post(path, receive)

    return [route(path) for path in sorted(receiver.trust.paths())]


@web.middleware
async def problems(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Answer with problem details where aiohttp would answer with text, and never with a 500."""
    try:
        return await handler(request)
    except web.HTTPException as exc:
        if exc.status < HTTPStatus.BAD_REQUEST:
            raise
        code = HTTPStatus(exc.status).name.lower()
        response = _response(Verdict(status=exc.status, code=code))
        if "Allow" in exc.headers:
            response.headers["Allow"] = exc.headers["Allow"]
        return response
    except Exception:  # noqa: BLE001  # never a 500: the sender comes again
        _log.exception("refused 503 internal: an error of the receiver itself")
        return _response(Verdict(status=503, code="internal"))


async def _receive(receiver: Receiver, request: web.Request, path: str) -> Verdict:
    peer = request.remote or ""
    headers = Headers(
        [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.raw_headers]
    )
    verdict = receiver.pipeline.admit(headers, request.content_length, peer=peer)
    if verdict is not None:
        return verdict
    # Who cannot prove to be somebody is refused here: a stranger's body is never read.
    proven = await receiver.pipeline.select(headers, target=request.raw_path, path=path, peer=peer)
    if isinstance(proven, Verdict):
        return proven
    try:
        async with asyncio.timeout(receiver.pipeline.limits.request_timeout.total_seconds()):
            body = await _read_body(request, proven.max_body_bytes)
    except TimeoutError:
        _log.warning("refused 408 body_timeout peer=%s", peer)
        return Verdict(status=408, code="body_timeout")
    except (web.RequestPayloadError, OSError):
        # Broken framing, or a peer that went away in the middle: nothing to answer, no fault here.
        _log.warning("refused 400 incomplete_body peer=%s", peer)
        return Verdict(status=400, code="incomplete_body")
    if body is None:
        return receiver.pipeline.body_too_large(peer=peer)
    webhook = WebhookRequest(
        method=request.method, target=request.raw_path, headers=headers, body=body
    )
    return await receiver.receive_admitted(webhook, path=path, peer=peer, proven=proven)


async def _read_body(request: web.Request, limit: int) -> bytes | None:
    """Return the body, or None once it is longer than the limit."""
    body = bytearray()
    async for chunk in request.content.iter_any():
        body += chunk
        if len(body) > limit:
            return None
    return bytes(body)


def _response(verdict: Verdict) -> web.Response:
    if not verdict.refused:
        return web.Response(status=verdict.status, headers=_HEADERS)
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(verdict.status).phrase,
        "status": verdict.status,
        "code": verdict.code,
    }
    response = web.Response(
        status=verdict.status,
        headers=_HEADERS,
        body=json.dumps(problem).encode(),
        content_type="application/problem+json",
    )
    if verdict.retry_after is not None:
        response.headers["Retry-After"] = str(math.ceil(verdict.retry_after.total_seconds()))
    if verdict.status in (408, 413) or verdict.code == "incomplete_body":
        response.force_close()  # the rest of the body is not read
    return response
