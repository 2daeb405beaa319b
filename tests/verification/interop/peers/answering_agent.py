"""An agent of A2A 0.3 without an SDK, which answers at once and pushes the end of its task.

python answering_agent.py --port 9000 --folder somewhere
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pushkit import KeyRing, PushSender, TaskState, TaskStatus
from pushkit.a2a import Artifact, Task, TaskSnapshot, TextPart
from pushkit.integrations.push_middleware import PushMiddleware, register_inline_config


def agent(port: int, push: PushSender) -> Any:
    url = f"http://127.0.0.1:{port}/"
    working = {"kind": "task", "id": "task-1", "contextId": "c-1", "status": {"state": "working"}}
    running: set[asyncio.Task[None]] = set()

    async def finish() -> None:
        await asyncio.sleep(1)
        artifact = Artifact(artifact_id="a-1", parts=[TextPart(text="the answer")])
        status = TaskStatus(state=TaskState.COMPLETED)
        task = Task(id="task-1", context_id="c-1", status=status, artifacts=[artifact])
        await push.notify(TaskSnapshot(task=task))

    async def rpc(request: Request) -> JSONResponse:
        call = await request.json()
        await register_inline_config("task-1")
        running.add(asyncio.create_task(finish()))
        return JSONResponse({"jsonrpc": "2.0", "id": call["id"], "result": working})

    async def card(_request: Request) -> JSONResponse:
        return JSONResponse(
            {
                "name": "Answering agent",
                "description": "Answers.",
                "version": "1.0.0",
                "url": url,
                "protocolVersion": "0.3.0",
                "preferredTransport": "JSONRPC",
                "capabilities": {"streaming": False},
                "defaultInputModes": ["text/plain"],
                "defaultOutputModes": ["text/plain"],
                "skills": [],
            }
        )

    @contextlib.asynccontextmanager
    async def lifespan(_app: object) -> AsyncIterator[None]:
        async with push:
            yield

    routes = [
        Route("/.well-known/agent-card.json", card),
        Route("/", rpc, methods=["POST"]),
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    return PushMiddleware(app, push=push, task_exists=None)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    sender = PushSender(
        issuer=f"http://127.0.0.1:{arguments.port}",
        keys=KeyRing.create(datetime.now(UTC)),
        database=arguments.folder / "outbox.db",
        allow=["127.0.0.1:*"],
    )
    app = agent(arguments.port, sender)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning")
