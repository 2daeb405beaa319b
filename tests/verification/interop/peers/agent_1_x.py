"""An agent on a2a-sdk 1.x, run in an environment of its own; it serves 0.3 clients too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface
from holding import released
from sdk_agent import serve
from starlette.applications import Starlette


class WorkingAgent(AgentExecutor):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            task = new_task_from_user_message(context.message)
            task.id, task.context_id = context.task_id, context.context_id
            await event_queue.enqueue_event(task)
            if context.get_user_input() == "wait":  # for a config, and another message
                await updater.requires_input()
                return
        await updater.start_work()
        await released(self._folder)
        await updater.add_artifact([new_text_part("héllo <b>&")], name="result")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


def card(port: int, *, pushes: bool) -> AgentCard:
    url = f"http://127.0.0.1:{port}/"
    return AgentCard(
        name="Working agent",
        description="Works.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(push_notifications=pushes, streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )


def build(
    port: int, folder: Path, pushes: bool, parts: dict[str, Any], *, routes: Any, lifespan: Any
) -> Starlette:
    agent_card = card(port, pushes=pushes)
    handler = DefaultRequestHandler(
        agent_executor=WorkingAgent(folder), agent_card=agent_card, **parts
    )
    rpc = create_jsonrpc_routes(handler, rpc_url="/", enable_v0_3_compat=True)
    rest = create_rest_routes(handler, enable_v0_3_compat=True)
    cards = create_agent_card_routes(agent_card)
    return Starlette(routes=[*cards, *rpc, *routes, *rest], lifespan=lifespan)


if __name__ == "__main__":
    serve(build)
