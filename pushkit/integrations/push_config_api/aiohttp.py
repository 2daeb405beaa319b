"""aiohttp: the push-config API as an application, for `add_subapp` or on its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, TypeAlias

from aiohttp import web

from pushkit.integrations.push_config_api.asgi import PushConfigAsgi
from pushkit.integrations.push_config_api.http import PushConfigApi
from pushkit.webui.aiohttp import REQUEST, application

OwnerOf: TypeAlias = Callable[[web.Request], str | Awaitable[str | None] | None]


def push_config_app(api: PushConfigApi, *, owner: OwnerOf) -> web.Application:
    """Return the API as an application: JSON-RPC at its root, HTTP+JSON below.

    Args:
        api: The API.
        owner: Returns the client of a request, by the agent's own authentication; None to answer
            with 401. May be a coroutine function.
    """

    async def owner_of(scope: Mapping[str, Any]) -> str | None:
        named = owner(scope[REQUEST])
        return await named if isawaitable(named) else named

    return application(PushConfigAsgi(api, owner=owner_of))
