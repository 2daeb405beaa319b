"""An agent on a2a-sdk 0.2.11 to 0.3.x, run in an environment of its own (see `sdk_agent`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCard, Part, TaskState, TextPart
from a2a.utils import new_task
from holding import released
from sdk_agent import serve
from starlette.applications import Starlette


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


def build(
    port: int, folder: Path, pushes: bool, parts: dict[str, Any], **pushkit: Any
) -> Starlette:
    handler = DefaultRequestHandler(agent_executor=WorkingAgent(folder), **parts)
    agent_card = card(port, pushes=pushes)
    app = A2AStarletteApplication(agent_card=agent_card, http_handler=handler)
    return app.build(**pushkit) if pushkit["lifespan"] else app.build()


if __name__ == "__main__":
    serve(build)
