"""`ReceiverMiddleware`: a receiver in front of another ASGI application, which it runs around.

app.add_middleware(ReceiverMiddleware, receiver=receiver, prefix="/hooks")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import unquote

from pushkit.webui.asgi import Message, Receive, Send, path_within
from receiver.asgi import live, serve
from receiver.receiver import Receiver

_App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

_ENDED: Final = (
    "lifespan.shutdown.complete",
    "lifespan.shutdown.failed",
    "lifespan.startup.failed",
)


class ReceiverMiddleware:
    """Answers requests at the paths of senders and mailboxes, and passes all others on.

    Args:
        receiver: It starts before the application, and stops after it.
        prefix: The prefix of the senders' paths.
    """

    def __init__(self, app: _App, *, receiver: Receiver, prefix: str = "") -> None:
        self._app = app
        self._receiver = receiver
        self._prefix = prefix.rstrip("/")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or pass it on."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
            return
        if scope["type"] == "http":
            path = unquote(path_within(scope, self._prefix) or "")
            if self._receiver.handler.answers(path):
                await serve(self._receiver.handler, scope, receive, send, path=path)
                return
        await self._app(scope, receive, send)

    async def _live(self, scope: Message, receive: Receive, send: Send) -> None:
        """Run the application's own lifespan inside the receiver's."""
        asked = started = False

        async def receive_then_start() -> Message:
            nonlocal asked, started
            asked = True
            message = await receive()
            if message["type"] == "lifespan.startup":
                started = True  # and may be cancelled halfway
                await self._receiver.start()
            return message

        async def close_then_send(message: Message) -> None:
            nonlocal started
            if started and message["type"] in _ENDED:
                started = False
                await self._receiver.close()
            await send(message)

        try:
            await self._app(scope, receive_then_start, close_then_send)
        except Exception:
            if asked:
                raise
        finally:
            if started:
                await self._receiver.close()
        if not asked:  # it has no lifespan: it raised before it received, as Django's does
            await live(self._receiver, receive, send)
