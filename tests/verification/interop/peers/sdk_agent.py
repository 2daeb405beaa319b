"""What agents of all releases of a2a-sdk do alike: their options, their sender, and how they serve.

--port 9000 --sender sdk
--port 9000 --sender pushkit --folder somewhere
--port 9000 --sender none --folder somewhere  # with a gateway in front
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
)


def serve(build: Callable[..., Any]) -> None:
    """Serve the agent that the command line asks for.

    Args:
        build: Makes the application, of its port, its folder, whether it pushes, the parts of its
            request handler, and pushkit's routes and lifespan.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sender", choices=["sdk", "pushkit", "none"], default="sdk")
    parser.add_argument("--folder", type=Path, default=Path())
    given = parser.parse_args()
    task_store = InMemoryTaskStore()
    parts: dict[str, Any] = {"task_store": task_store}
    routes: list[Any] = []
    lifespan = None
    if given.sender == "sdk":
        store = InMemoryPushNotificationConfigStore()
        parts["push_config_store"] = store
        parts["push_sender"] = BasePushNotificationSender(httpx.AsyncClient(), store)
    elif given.sender == "pushkit":  # imported only where pushkit is installed
        from pushkit import KeyRing, PushSender
        from pushkit.integrations.a2a_sdk import A2AIntegration

        push = PushSender(
            issuer=f"http://127.0.0.1:{given.port}",
            keys=KeyRing.create(datetime.now(UTC)),
            database=given.folder / "outbox.db",
            allow=["127.0.0.1:*"],
        )
        a2a = A2AIntegration(push, task_store=task_store)
        parts, routes, lifespan = a2a.handler_arguments, a2a.routes, a2a.lifespan
    pushes = given.sender != "none"
    app = build(given.port, given.folder, pushes, parts, routes=routes, lifespan=lifespan)
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning")
