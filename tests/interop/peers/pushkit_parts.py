"""pushkit's parts for an a2a-sdk agent of either generation."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.routing import Route

from pushkit import KeyRing, PushSender
from pushkit.integrations.a2a_sdk import PushkitConfigStore, PushkitNotificationSender
from pushkit.integrations.asgi import JwksApp


def pushkit_parts(
    port: int, folder: Path, *, task_store: Any
) -> tuple[dict[str, Any], list[Route], Any]:
    """Return the parts of the request handler, the routes and the lifespan."""
    push = PushSender(
        issuer=f"http://127.0.0.1:{port}",
        keys=KeyRing.create(datetime.now(UTC)),
        database=folder / "outbox.db",
        allow=["127.0.0.1:*"],
    )

    @contextlib.asynccontextmanager
    async def lifespan(_app: object) -> AsyncIterator[None]:
        async with push:
            yield

    sender = PushkitNotificationSender(push, task_store=task_store)
    store = PushkitConfigStore(push)
    routes = [Route("/.well-known/jwks.json", JwksApp(push))]
    return {"push_config_store": store, "push_sender": sender}, routes, lifespan
