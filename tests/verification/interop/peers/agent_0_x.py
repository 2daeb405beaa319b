"""An agent on a2a-sdk 0.2.11 to 0.3.x, run in an environment of its own.

python agent_0_x.py --port 9000 --sender sdk
python agent_0_x.py --port 9000 --sender pushkit --folder somewhere
python agent_0_x.py --port 9000 --sender none --folder somewhere  # with a gateway in front
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import AgentCard, Part, TaskState, TextPart
from a2a.utils import new_task
from holding import released
from starlette.routing import Route


class WorkingAgent(AgentExecutor):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task = context.current_task or new_task(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        contexts = getattr(task, "context_id", None) or getattr(task, "contextId", None)
        updater = TaskUpdater(event_queue, task.id, contexts)
        if context.current_task is None and context.get_user_input() == "wait":
            # for a config, and another message
            await updater.update_status(TaskState.input_required, final=True)
            return
        await updater.update_status(TaskState.working)
        await released(self._folder)
        await updater.add_artifact([Part(root=TextPart(text="héllo <b>&"))], name="result")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


def card(port: int, *, pushes: bool) -> AgentCard:
    return AgentCard.model_validate(
        {
            "name": "Working agent",
            "description": "Works.",
            "url": f"http://127.0.0.1:{port}/",
            "version": "1.0.0",
            "capabilities": {"pushNotifications": pushes, "streaming": True},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [],
        }
    )


def serve(port: int, sender: str, folder: Path) -> None:
    task_store = InMemoryTaskStore()
    parts: dict[str, Any] = {"task_store": task_store}
    routes: list[Route] = []
    lifespan = None
    if sender == "sdk":
        store = InMemoryPushNotificationConfigStore()
        parts["push_config_store"] = store
        parts["push_sender"] = BasePushNotificationSender(httpx.AsyncClient(), store)
    elif sender == "pushkit":
        from pushkit_parts import pushkit_parts  # only where pushkit is installed

        a2a = pushkit_parts(port, folder, task_store=task_store)
        parts, routes, lifespan = a2a.handler_arguments, a2a.routes, a2a.lifespan
    handler = DefaultRequestHandler(agent_executor=WorkingAgent(folder), **parts)
    agent_card = card(port, pushes=sender != "none")
    app = A2AStarletteApplication(agent_card=agent_card, http_handler=handler)
    built = app.build(routes=routes, lifespan=lifespan) if lifespan else app.build()
    uvicorn.run(built, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sender", choices=["sdk", "pushkit", "none"], default="sdk")
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    serve(arguments.port, arguments.sender, arguments.folder)
