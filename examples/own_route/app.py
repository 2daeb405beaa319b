"""A receiver in a framework without an adapter: one route hands each request to `receive()`.

    pip install '.[examples]'
    python examples/own_route/app.py

Starlette stands for the framework here; it could also mount `receiver.asgi()`.
"""

from __future__ import annotations

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from receiver import Headers, Notification, Receiver, TrustedSender, WebhookRequest

AGENT = "http://127.0.0.1:8001"


def make_app(receiver: Receiver) -> Starlette:
    """Return an application that answers every path below /hooks as the receiver does."""

    async def hook(request: Request) -> Response:
        raw: str = request.scope["raw_path"].decode("latin-1")
        query = f"?{request.url.query}" if request.url.query else ""
        answer = await receiver.receive(
            WebhookRequest(
                method=request.method,
                target=f"{raw}{query}",
                headers=Headers(request.headers.items()),
                body=await request.body(),  # the raw bytes, as they were signed
            ),
            path=f"/{request.path_params['path']}",
            peer=request.client.host if request.client else "",
        )
        return Response(answer.body, answer.status, dict(answer.headers))

    routes = [Route("/hooks/{path:path}", hook, methods=["GET", "POST"])]
    return Starlette(routes=routes, lifespan=receiver.lifespan)


def main() -> None:
    """Serve it."""
    receiver = Receiver(
        url="http://127.0.0.1:9000/hooks",
        senders=[
            TrustedSender(name="agent", issuer=AGENT, jwks_url=f"{AGENT}/.well-known/jwks.json")
        ],
        database="inbox.db",
    )

    @receiver.on_status("completed")
    async def completed(notification: Notification) -> None:
        print(f"completed  {notification.task_id}", flush=True)

    uvicorn.run(make_app(receiver), port=9000)


if __name__ == "__main__":
    main()
