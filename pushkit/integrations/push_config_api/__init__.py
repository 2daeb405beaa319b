"""The A2A methods with which clients register push configs, for agents not built on a2a-sdk.

`PushConfigApi` as an application: of ASGI, and of aiohttp.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from aiohttp import web

from pushkit.integrations.asgi import answer
from pushkit.integrations.push_config_api.configs import Caller, TaskCheck, TaskOf, named_by
from pushkit.integrations.push_config_api.http import ApiRequest, PushConfigApi, query_members
from pushkit.webui.aiohttp import REQUEST, application
from pushkit.webui.asgi import Message, Receive, Send, path_within, read_body, refuse_websocket

__all__ = ["Caller", "PushConfigApi", "PushConfigAsgi", "TaskCheck", "TaskOf", "push_config_app"]

OwnerOf: TypeAlias = Callable[[web.Request], str | Awaitable[str | None] | None]
OwnerOfScope: TypeAlias = Callable[[Mapping[str, Any]], str | Awaitable[str | None] | None]


class PushConfigAsgi:
    """Serves JSON-RPC where it is mounted, and HTTP+JSON below.

        Starlette(routes=[Mount("/push-configs", PushConfigAsgi(api, owner=owner_of))])

    Args:
        api: The API.
        owner: Returns the client of a request, given its ASGI scope; None to answer with 401. May
            be a coroutine function.
    """

    def __init__(self, api: PushConfigApi, *, owner: OwnerOfScope) -> None:
        self._api = api
        self._owner = owner

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await refuse_websocket(receive, send)
        if scope["type"] != "http":
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        found = await self._api.handle(
            ApiRequest(
                owner=await named_by(self._owner, scope),
                method=scope["method"],
                path=path_within(scope),
                query=query_members(scope.get("query_string", b"").decode("latin-1")),
                content_type=headers.get(b"content-type", ""),
                version=headers.get(b"a2a-version"),
                body=await read_body(receive, self._api.max_body_bytes),
            )
        )
        await answer(send, found.status, found.headers, found.body)


def push_config_app(api: PushConfigApi, *, owner: OwnerOf) -> web.Application:
    """Return the API as an aiohttp application, for `add_subapp` or on its own.

    It serves JSON-RPC at its root, HTTP+JSON below.

    Args:
        api: The API.
        owner: Returns the client of a request, by the agent's own authentication; None to answer
            with 401. May be a coroutine function.
    """
    return application(PushConfigAsgi(api, owner=lambda scope: owner(scope[REQUEST])))
