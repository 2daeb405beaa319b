"""aiohttp: the push-config API as an application, for `add_subapp` or on its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeAlias

from aiohttp import web

from pushkit.integrations.push_config_api.http import ApiRequest, PushConfigApi, query_members
from pushkit.webui.aiohttp import path_within, read_body

OwnerOf: TypeAlias = Callable[[web.Request], str | Awaitable[str | None] | None]


def push_config_app(api: PushConfigApi, *, owner: OwnerOf) -> web.Application:
    """Return the API as an application: JSON-RPC at its root, HTTP+JSON below.

    Args:
        api: The API.
        owner: Returns the client of a request, by the agent's own authentication; None to answer
            with 401. May be a coroutine function.
    """

    async def serve(request: web.Request) -> web.Response:
        named = owner(request)
        answer = await api.handle(
            ApiRequest(
                owner=await named if isawaitable(named) else named,
                method=request.method,
                path=path_within(request),
                query=query_members(request.rel_url.raw_query_string),
                content_type=request.headers.get("Content-Type", ""),
                version=request.headers.get("A2A-Version"),
                body=await read_body(request, api.max_body_bytes),
            )
        )
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", serve)
    app.router.add_route("*", "", serve)  # the root of a sub-application, without a slash
    return app
