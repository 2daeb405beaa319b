"""A dashboard as an ASGI application, run alone or mounted: `app.mount("/ops", …)`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, unquote

from pushkit.webui.exchange import Answer, PageRequest, joined_fields, path_below

if TYPE_CHECKING:
    from pushkit.webui.site import Site


# The names of the ASGI specification; its messages are loosely typed by design.
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


class AsgiSite:
    """A site as an ASGI application."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request; acknowledge a server's lifespan events, for which nothing is done."""
        if scope["type"] == "lifespan":
            for done in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{done}.complete"})
        elif scope["type"] == "websocket":
            await refuse_websocket(receive, send)
        elif scope["type"] == "http":
            answer = await self._site.answer(
                _request(scope), lambda limit: read_body(receive, limit)
            )
            await _send(answer, receive, send)


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Refuse a WebSocket handshake; the server answers 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1000})


def mounted_at(scope: Mapping[str, Any]) -> str:
    """Return the part of a request's `path` under which the application is mounted.

    Empty at the root. In ASGI, `path` is the whole path, and `root_path` its mounted part.
    """
    path, root = f"{scope['path']}/", scope.get("root_path", "").rstrip("/")
    if not path.startswith(f"{root}/"):
        # A server may leave a root path that its proxy strips out of `path`. Starlette appends
        # its own mounts to `root_path`, and keeps the server's part in `app_root_path`.
        root = root.removeprefix(scope.get("app_root_path", root))
    return root if path.startswith(f"{root}/") else ""


def path_within(scope: Mapping[str, Any], prefix: str = "") -> str | None:
    """Return the path below the mount and a prefix, as `path_below` does.

    It is undecoded, with its %2F, if the server has a `raw_path`, and no middleware has rewritten
    the `path`.
    """
    raw: bytes = scope.get("raw_path") or b""
    path = raw.partition(b"?")[0].decode("latin-1")
    if unquote(path) != scope["path"]:
        path = quote(scope["path"], errors="replace")  # a server may leave lone surrogates in it
    return path_below(mounted_at(scope) + prefix, path)


def _request(scope: Message) -> PageRequest:
    client, server = scope.get("client"), scope.get("server")
    return PageRequest(
        method=scope["method"],
        root=quote(scope.get("root_path", "").rstrip("/")),
        path=path_within(scope) or "",  # no page has an empty path
        query_string=scope.get("query_string", b"").decode("latin-1"),
        headers=joined_fields(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]
        ),
        peer=client[0] if client else None,
        local_address=server[0] if server else None,
        is_secure=scope.get("scheme") == "https",
    )


async def read_body(receive: Receive, limit: int) -> bytes | None:
    """Return the body of a request; None if it exceeds the limit or is cut off."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit or message["type"] == "http.disconnect":
            return None
    return bytes(body)


async def _send(answer: Answer, receive: Receive, send: Send) -> None:
    fields = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers]
    if answer.events is None:
        fields.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": fields})
    if answer.events is not None:
        await _send_events(answer.events, receive, send)
    await send({"type": "http.response.body", "body": answer.body})


async def _send_events(moments: AsyncGenerator[bytes, None], receive: Receive, send: Send) -> None:
    """Send events until they end or the client disconnects, which `receive` reports."""
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        async with contextlib.aclosing(moments) as events:
            async for event in events:
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": event, "more_body": True})
    finally:
        gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
