"""An agent on a2a-sdk 1.x, run in an environment of its own; it serves 0.3 clients too.

python agent_1_x.py --port 9000 --sender sdk
python agent_1_x.py --port 9000 --sender pushkit --folder somewhere
python agent_1_x.py --port 9000 --sender none --folder somewhere  # with a gateway in front
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import (
    create_agent_card_routes,
    create_jsonrpc_routes,
    create_rest_routes,
)
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import AgentCapabilities, AgentCard, AgentInterface
from holding import released
from starlette.applications import Starlette
from starlette.routing import Route


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
    agent_card = card(port, pushes=sender != "none")
    handler = DefaultRequestHandler(
        agent_executor=WorkingAgent(folder), agent_card=agent_card, **parts
    )
    rpc = create_jsonrpc_routes(handler, rpc_url="/", enable_v0_3_compat=True)
    rest = create_rest_routes(handler, enable_v0_3_compat=True)
    cards = create_agent_card_routes(agent_card)
    app = Starlette(routes=[*cards, *rpc, *routes, *rest], lifespan=lifespan)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--sender", choices=["sdk", "pushkit", "none"], default="sdk")
    parser.add_argument("--folder", type=Path, default=Path())
    arguments = parser.parse_args()
    serve(arguments.port, arguments.sender, arguments.folder)
