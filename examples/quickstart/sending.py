"""The sending side in short: three updates of one task, signed and delivered.

python -m examples.quickstart.receiving   # in one terminal
python -m examples.quickstart.sending     # in another
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus, save_key_ring
from pushkit.integrations.aiohttp import jwks_route

ISSUER = "http://127.0.0.1:8001"
WEBHOOK = "http://127.0.0.1:9001/a2a/push"
KEYS = Path("quickstart-keys.json")


async def main() -> None:
    """Serve the keys, subscribe the webhook, and notify it."""
    async with PushSender(
        issuer=ISSUER,
        keys=KEYS,
        database="quickstart-outbox.db",
        allow=["127.0.0.1:*"],  # for development: otherwise webhooks must be https and public
    ) as push:
        app = web.Application()
        app.add_routes([jwks_route(push)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 8001).start()

        task_id = f"task-{uuid.uuid4().hex[:8]}"
        config = {"id": "1", "url": WEBHOOK, "token": "quickstart-token"}  # as the client sent it
        await push.subscribe(task_id, config, version="1.0", owner="alice")
        for state in (TaskState.SUBMITTED, TaskState.WORKING, TaskState.COMPLETED):
            update = StatusUpdate(
                task_id=task_id,
                context_id="quickstart",
                status=TaskStatus(state=state, timestamp=datetime.now(UTC)),
            )
            await push.notify(update)  # on disk when this returns; delivered by the worker
            print(f"accepted   {task_id} {state.value}")

        while any(row.state != "delivered" for row in await push.deliveries(task_id)):
            await asyncio.sleep(0.1)
        print("delivered  everything")
        await runner.cleanup()


if __name__ == "__main__":
    if not KEYS.exists():
        save_key_ring(KEYS, KeyRing.create(datetime.now(UTC)))  # or: pushkit keys new
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
