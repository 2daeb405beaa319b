"""A dashboard as an aiohttp application, run alone or mounted by `add_subapp`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

from pushkit.webui.exchange import Answer, PageRequest, joined_fields, path_below

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


def mounted_at(request: web.Request) -> str:
    """Return the path, decoded, under which a sub-application with a route `/{path}` is mounted."""
    resource = request.match_info.route.resource
    return resource.canonical.removesuffix("/{path}") if resource else ""


def path_within(request: web.Request) -> str | None:
    """Return the path below the mount, undecoded, as `path_below` does."""
    return path_below(mounted_at(request), request.rel_url.raw_path)


def _request(request: web.Request) -> PageRequest:
    local = request.transport.get_extra_info("sockname") if request.transport else None
    return PageRequest(
        method=request.method,
        root=mounted_at(request),
        path=path_within(request) or "",  # no page has an empty path
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
