"""ASGI: the requests and answers of a dashboard, and the parts that other ASGI adapters share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import parse_qs, quote, unquote

from pushkit.webhook import Headers

_MAX_VALUES = 1000

# The names of the ASGI specification; its messages are loosely typed by design.
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A request for a page."""

    method: str
    # The path under which the dashboard is mounted, percent-encoded, without a trailing slash.
    root: str
    path: str  # the path below it, percent-encoded; empty if it is not below it
    query_string: str
    # The header fields by lower-case name (`joined_fields`).
    headers: Mapping[str, str] = field(repr=False)
    peer: str | None  # the address of the client
    local_address: str | None  # the address of this machine that the client connected to
    is_secure: bool = False  # whether it came over TLS
    # The first value of each name of the query; empty until the site has read it.
    query: Mapping[str, str] = field(default_factory=dict)
    # The values of the route's parameters in the path, by name.
    values: Mapping[str, str] = field(default_factory=dict)
    # The values of a form; a name may have several.
    form: Mapping[str, list[str]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, scope: Message) -> PageRequest:
        """Return the request of a scope of the type `http`."""
        client, server = scope.get("client"), scope.get("server")
        return cls(
            method=scope["method"],
            root=quote(scope.get("root_path", "").rstrip("/")),
            path=path_within(scope) or "",
            query_string=scope.get("query_string", b"").decode("latin-1"),
            headers=joined_fields(Headers.from_bytes(scope["headers"])),
            peer=client[0] if client else None,
            local_address=server[0] if server else None,
            is_secure=scope.get("scheme") == "https",
        )

    def cookie(self, name: str) -> str:
        """Return the value of a cookie; empty if there is none of that name."""
        for each in self.headers.get("cookie", "").split(";"):
            found, _, value = each.strip().partition("=")
            if found == name:
                return value
        return ""

    def field(self, name: str) -> str:
        """Return the first value of a form's field; empty if there is none."""
        return next(iter(self.form.get(name, ())), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAnswer:
    """An answer: a body, or a stream of server-sent events."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)
    events: AsyncGenerator[bytes, None] | None = None  # sent one by one in place of a body

    async def send(self, receive: Receive, send: Send) -> None:
        """Send it. Events are sent until they end or the client disconnects."""
        fields = [(name.lower().encode(), value.encode("latin-1")) for name, value in self.headers]
        if self.events is None:
            fields.append((b"content-length", str(len(self.body)).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": fields})
        if self.events is not None:
            gone = asyncio.ensure_future(_disconnected(receive))
            try:
                async with contextlib.aclosing(self.events) as events:
                    async for event in events:
                        if gone.done():
                            return
                        more: Message = {"body": event, "more_body": True}
                        await send({"type": "http.response.body", **more})
            finally:
                gone.cancel()
        await send({"type": "http.response.body", "body": self.body})


class PageRefused(Exception):  # noqa: N818  # an answer, no error of this program
    """Raised to answer a request with a refusal."""

    def __init__(self, status: int, text: str, *headers: tuple[str, str]) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


def path_within(scope: Mapping[str, Any], prefix: str = "") -> str | None:
    """Return the path below the mount and a prefix, as `path_below` does.

    In ASGI, `path` is the whole path, and `root_path` the part of it under which the application is
    mounted. The path is undecoded, with its %2F, if the server has a `raw_path`, and no middleware
    has rewritten the `path`.
    """
    mount, whole = scope.get("root_path", "").rstrip("/"), f"{scope['path']}/"
    if not whole.startswith(f"{mount}/"):
        # A server may leave a root path that its proxy strips out of `path`. Starlette appends
        # its own mounts to `root_path`, and keeps the server's part in `app_root_path`.
        mount = mount.removeprefix(scope.get("app_root_path", mount))
    if not whole.startswith(f"{mount}/"):
        mount = ""
    raw: bytes = scope.get("raw_path") or b""
    path = raw.partition(b"?")[0].decode("latin-1")
    if unquote(path) != scope["path"]:
        path = quote(scope["path"], errors="replace")  # a server may leave lone surrogates in it
    return path_below(mount + prefix, path)


def path_below(mount: str, path: str) -> str | None:
    """Return the part of an undecoded path below a mount, at least `/`.

    Routers and middlewares match a path after decoding it, and so is the mount found here, however
    it is spelled. None if a segment belongs to it only in part (`/mount%2Fa`): the path would name
    one thing for them, and another for an application that splits it at its slashes.
    """
    segments = path.split("/", mount.count("/") + 1)
    candidates = ("/".join(segments[:number]) for number in range(1, len(segments) + 1))
    found = next((each for each in candidates if unquote(each) == mount), None)
    return None if found is None else path[len(found) :] or "/"


def joined_fields(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return header fields by lower-case name; the values of a repeated name are joined."""
    found: dict[str, str] = {}
    for name, value in fields:
        name = name.lower()  # noqa: PLW2901  # the same name
        between = "; " if name == "cookie" else ", "
        found[name] = f"{found[name]}{between}{value}" if name in found else value
    return found


def values_of(encoded: str) -> dict[str, list[str]]:
    """Return the values of a query or a form by name. Raises PageRefused: there are too many."""
    try:
        return parse_qs(encoded, keep_blank_values=True, max_num_fields=_MAX_VALUES)
    except ValueError as exc:
        raise PageRefused(400, f"expected at most {_MAX_VALUES} values") from exc


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


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Refuse a WebSocket handshake; the server answers 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1000})


async def _disconnected(receive: Receive) -> None:
    """Return once the client has disconnected; never, if that is not said.

    A middleware that has read the body may repeat it at each call, without a pause.
    """
    while (message := await receive()).get("more_body", False):
        pass
    if message["type"] != "http.disconnect" and (await receive())["type"] != "http.disconnect":
        await asyncio.Event().wait()
