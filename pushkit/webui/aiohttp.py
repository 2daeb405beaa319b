"""A dashboard as an aiohttp application, run alone or mounted by `add_subapp`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

from pushkit.webui.exchange import Answer, PageRequest, joined_fields

if TYPE_CHECKING:
    from pushkit.webui.site import Site


def application(site: Site) -> web.Application:
    """Return an application that serves every path of a site."""

    async def serve(request: web.Request) -> web.StreamResponse:
        answer = await site.answer(_request(request), lambda limit: read_body(request, limit))
        return await _respond(request, answer)

    app = web.Application()
    app.router.add_route("*", r"/{path:[\s\S]*}", serve)
    return app


def _request(request: web.Request) -> PageRequest:
    resource = request.match_info.route.resource
    root = resource.canonical.removesuffix("/{path}") if resource else ""
    local = request.transport.get_extra_info("sockname") if request.transport else None
    return PageRequest(
        method=request.method,
        root=root,
        path=request.rel_url.raw_path[len(root) :],
        query_string=request.rel_url.raw_query_string,
        headers=joined_fields(request.headers.items()),
        peer=request.remote,
        local_address=local[0] if isinstance(local, tuple) else None,
        is_secure=request.secure,
    )


async def read_body(request: web.Request, limit: int) -> bytes | None:
    """Return the body of a request; None if it exceeds the limit or is cut off."""
    body = bytearray()
    with contextlib.suppress(ConnectionError, web.RequestPayloadError):
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > limit:
                return None
        return bytes(body)
    return None


async def _respond(request: web.Request, answer: Answer) -> web.StreamResponse:
    if answer.events is None:
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    async with contextlib.aclosing(answer.events) as events:
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            async for event in events:
                await response.write(event)
    return response
