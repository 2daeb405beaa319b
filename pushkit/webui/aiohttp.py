"""An ASGI application under aiohttp, run alone or mounted by `add_subapp`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import unquote

from aiohttp import web

from pushkit.webui.asgi import Message, Receive, Send

REQUEST: Final = "aiohttp.request"
"""The member of a scope that has aiohttp's own request."""

AsgiApp: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]


def application(served: AsgiApp) -> web.Application:
    """Return an aiohttp application that passes every request to an ASGI application."""
    ending = asyncio.Event()

    async def end(_app: web.Application) -> None:
        ending.set()

    async def serve(request: web.Request) -> web.StreamResponse:
        exchange = _Exchange(request, ending)
        with contextlib.suppress(ConnectionError):  # the client is gone
            await served(_scope(request), exchange.receive, exchange.send)
        return exchange.response or web.Response(status=500)  # which nobody reads

    app = web.Application()
    app.router.add_route("*", r"/{path:[\s\S]*}", serve)
    app.router.add_route("*", "", serve)  # the root of a sub-application, without a slash
    app.on_shutdown.append(end)  # aiohttp then waits for the last answers, for a minute
    return app


def _scope(request: web.Request) -> Message:
    local = request.transport.get_extra_info("sockname") if request.transport else None
    path = request.rel_url.raw_path
    return {
        "type": "http",
        "method": request.method,
        "scheme": "https" if request.secure else "http",
        "root_path": _mounted_at(request),
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": request.rel_url.raw_query_string.encode(),
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "client": (request.remote, 0) if request.remote else None,
        "server": local if isinstance(local, tuple) else None,
        REQUEST: request,
    }


class _Exchange:
    """The messages of one request and of its answer."""

    def __init__(self, request: web.Request, ending: asyncio.Event) -> None:
        self._request = request
        self._ending = ending  # of the application: answers that do not end by themselves end then
        self._is_read = False
        self._start: Message = {}
        self.response: web.StreamResponse | None = None

    async def receive(self) -> Message:
        """Return the next part of the body; after the last one, wait as ASGI servers do."""
        if self._is_read:
            await self._ending.wait()
            return {"type": "http.disconnect"}
        content = self._request.content
        try:
            body = await content.readany()
        except (ConnectionError, web.RequestPayloadError):
            return {"type": "http.disconnect"}
        self._is_read = content.at_eof()
        return {"type": "http.request", "body": body, "more_body": not self._is_read}

    async def send(self, message: Message) -> None:
        """Send the next part of the answer; a short one is sent when the handler returns it."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        if self.response is None:
            fields = [
                (name.decode(), value.decode("latin-1")) for name, value in self._start["headers"]
            ]
            if not message.get("more_body"):
                self.response = web.Response(
                    status=self._start["status"], headers=fields, body=message["body"]
                )
                return
            self.response = web.StreamResponse(status=self._start["status"], headers=fields)
            await self.response.prepare(self._request)
        await self.response.write(message["body"])


def _mounted_at(request: web.Request) -> str:
    """Return the path, decoded, under which a sub-application with a route `/{path}` is mounted."""
    resource = request.match_info.route.resource
    return resource.canonical.removesuffix("/{path}") if resource else ""
