"""An agent with a JSON-RPC endpoint of its own, in FastAPI, without a2a-sdk: it counts to three.

    pip install '.[examples]'
    pushkit keys new keys.json
    python examples/own_agent/agent.py

Clients register webhooks with a message, or by the methods of push configs.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from pushkit import (
    Artifact,
    ArtifactUpdate,
    PushSender,
    StatusUpdate,
    TaskState,
    TaskStatus,
    TextPart,
)
from pushkit.a2a import parse_inline_config
from pushkit.errors import InvalidPushConfigError
from pushkit.integrations.asgi import JwksApp
from pushkit.integrations.push_config_api import Caller, PushConfigApi

ISSUER = "http://127.0.0.1:8001"
USERS = {"a-token-of-alice": "alice"}  # as your agent authenticates them


@dataclass
class Counting:
    """A task, of one user."""

    owner: str
    context_id: str
    state: TaskState = TaskState.SUBMITTED


tasks: dict[str, Counting] = {}
running: set[asyncio.Task[None]] = set()  # so that none is collected
push = PushSender(issuer=ISSUER, keys="keys.json", database="outbox.db", allow=["127.0.0.1:*"])


def task_exists(caller: Caller, task_id: str) -> bool:
    """Return whether a task exists that the caller may follow."""
    return task_id in tasks and tasks[task_id].owner == caller.owner


api = PushConfigApi(push, task_exists=task_exists)


# Delivers while the application runs, also what an earlier process left undelivered.
app = FastAPI(lifespan=push.lifespan)
app.add_route("/.well-known/jwks.json", JwksApp(push))


@app.post("/")
async def endpoint(request: Request) -> Response:
    """Answer a method of the agent's own, or one of push configs."""
    user = USERS.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
    if user is None:
        return Response(status_code=401)
    body = await request.body()
    call = await request.json()
    if api.serves(call["method"]):
        answer = await api.json_rpc(body, owner=user, version=request.headers.get("A2A-Version"))
        return Response(status_code=204) if answer is None else JSONResponse(answer)
    outcome = await own_method(call["method"], call["params"], user)
    return JSONResponse({"jsonrpc": "2.0", "id": call["id"], **outcome})


async def own_method(method: str, params: dict[str, Any], user: str) -> dict[str, Any]:
    """Return the result of a method, or its error."""
    if method == "GetTask":
        if task_exists(Caller(owner=user), params["id"]):
            return {"result": shown(params["id"])}
        return {"error": {"code": -32001, "message": "Task not found"}}
    if method != "SendMessage":
        return {"error": {"code": -32601, "message": "Method not found"}}
    task_id = str(uuid.uuid4())
    try:
        config = parse_inline_config(params, "1.0")
        if config is not None:
            await push.subscribe(
                task_id, config, version="1.0", owner=user, tenant=config.tenant or ""
            )
    except InvalidPushConfigError as exc:
        return {"error": {"code": -32602, "message": str(exc)}}
    tasks[task_id] = Counting(owner=user, context_id=str(uuid.uuid4()))
    counting = asyncio.create_task(count(task_id))
    running.add(counting)
    counting.add_done_callback(running.discard)
    return {"result": {"task": shown(task_id)}}


async def count(task_id: str) -> None:
    """Do the work, and tell of it."""
    await tell(task_id, TaskState.WORKING)
    for number in range(1, 4):
        await asyncio.sleep(0.2)
        artifact = Artifact(artifact_id="numbers", parts=(TextPart(text=str(number)),))
        await push.notify(
            ArtifactUpdate(
                task_id=task_id,
                context_id=tasks[task_id].context_id,
                artifact=artifact,
                append=number > 1,
            )
        )
    await tell(task_id, TaskState.COMPLETED)


async def tell(task_id: str, state: TaskState) -> None:
    """Change a task's state, and notify."""
    task = tasks[task_id]
    task.state = state
    status = TaskStatus(state=state)
    await push.notify(StatusUpdate(task_id=task_id, context_id=task.context_id, status=status))


def shown(task_id: str) -> dict[str, Any]:
    """Return a task as A2A 1.0 writes it."""
    task = tasks[task_id]
    state = f"TASK_STATE_{task.state.name}"
    return {"id": task_id, "contextId": task.context_id, "status": {"state": state}}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=8001, access_log=False)
