"""The receiving side in short: a webhook that calls back once per update.

python -m examples.quickstart.receiving
"""

from __future__ import annotations

import logging

from aiohttp import web

from receiver import Notification, Receiver, TaskPolicy, TrustedSender

receiver = Receiver(
    url="http://127.0.0.1:9001",
    senders=[
        TrustedSender(
            name="agent",
            issuer="http://127.0.0.1:8001",
            jwks_url="http://127.0.0.1:8001/.well-known/jwks.json",
            tokens=["quickstart-token"],
            tasks=TaskPolicy.ANY,
        )
    ],
    database="quickstart-inbox.db",
)


@receiver.on_status("completed")
async def completed(notification: Notification) -> None:
    """Print a completed task; called once, however often its notification arrives."""
    print(f"completed  {notification.task_id}, signed by {notification.kid[:8]}…", flush=True)


@receiver.on_update()
def every_update(notification: Notification) -> None:
    """Print an update; a function without `async` may block, since it runs in a thread."""
    print(
        f"update     {notification.task_id} seq {notification.seq} {notification.state}", flush=True
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    web.run_app(receiver.app(), host="127.0.0.1", port=9001)
