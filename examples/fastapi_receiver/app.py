"""A FastAPI application that starts tasks of an agent and awaits their notifications.

    pip install '.[examples]'
    python examples/fastapi_receiver/app.py
    curl -X POST 'http://127.0.0.1:9000/tasks?text=Please+count.'

The agent of `examples/a2a_sdk_agent` must be running. The lines for the receiver are marked.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

import uvicorn
from a2a.client import ClientConfig, create_client
from fastapi import FastAPI, HTTPException

from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from receiver.integrations.a2a_sdk import PushClient

AGENT = "http://127.0.0.1:8001"

receiver = Receiver(  # receiver
    url="http://127.0.0.1:9000/hooks",  # how the agent reaches the mount below
    senders=[
        TrustedSender(
            name="counting-agent",
            issuer=AGENT,
            jwks_url=f"{AGENT}/.well-known/jwks.json",
            tasks=TaskPolicy.BIND,
        )
    ],
    database="fastapi-inbox.db",
)


@receiver.on_status("completed")  # receiver
async def completed(notification: Notification) -> None:
    """Print a completed task; called once for each, even after a restart."""
    print(f"completed  {notification.task_id}", flush=True)


@contextlib.asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    """Start the receiver with the application, which does not forward its lifespan to mounts."""
    async with receiver:  # receiver
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/hooks", receiver.asgi())  # receiver


@app.post("/tasks")
async def run_task(text: str) -> dict[str, str | None]:
    """Send a message to the agent; answer when its task ends or needs input."""
    async with await create_client(AGENT, ClientConfig(streaming=False)) as client:
        task = await PushClient(client, receiver).send(text)  # receiver
    try:
        update = await task.wait(timeout=60)  # receiver
    except TimeoutError as exc:
        raise HTTPException(504, "the agent is still working") from exc
    return {"task": task.task_id, "state": update.state}


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    uvicorn.run(app, host="127.0.0.1", port=9000, log_level="warning")
