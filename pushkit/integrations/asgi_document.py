"""What the small ASGI applications here share: one document, for GET and HEAD, with an `ETag`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias

__all__ = ["Document", "DocumentApp"]

# The three names of the ASGI specification; its messages are loosely typed by design.
_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]


class Document(Protocol):
    """The HTTP answer that a document is served with."""

    @property
    def status(self) -> int:
        """200, or 304 where the client has it already."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Media type, `ETag`, `Cache-Control`."""
        ...

    @property
    def body(self) -> bytes:
        """The document; empty with 304."""
        ...


class DocumentApp(ABC):
    """Answers every GET and HEAD with a document, whatever the path."""

    @abstractmethod
    async def document(self, if_none_match: Sequence[str]) -> Document:
        """Return the answer to a client that sent these `If-None-Match` fields."""

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:  # noqa: ARG002  # the interface
        """Serve one request."""
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, {"Allow": "GET, HEAD"}, b"")
            return
        wanted = [v.decode("latin-1") for k, v in scope["headers"] if k.lower() == b"if-none-match"]
        answer = await self.document(wanted)
        body = b"" if scope["method"] == "HEAD" else answer.body
        await _answer(send, answer.status, answer.headers, body)


async def _answer(send: _Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    fields = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
