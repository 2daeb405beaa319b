"""An a2a-sdk 1.x agent with pushkit inside.

    pushkit keys new keys.json
    python examples/a2a_sdk_agent/agent.py --allow '127.0.0.1:*'

The lines for pushkit are marked. The agent counts to three, adds the sum as an artifact, and
completes; pushkit delivers every update, signed, to the client's webhook.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette

from pushkit import PushSender
from pushkit.errors import PushkitError
from pushkit.integrations.a2a_sdk import A2AIntegration


class CountingAgent(AgentExecutor):
    """Counts to three, and adds the sum as an artifact."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Run one task."""
        if context.message is None or context.task_id is None or context.context_id is None:
            return
        if context.current_task is None:
            task = new_task_from_user_message(context.message)
            task.id, task.context_id = context.task_id, context.context_id
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        for number in ("one", "two", "three"):
            await updater.start_work(updater.new_agent_message([new_text_part(number)]))
            await asyncio.sleep(0.2)
        await updater.add_artifact([new_text_part("1 + 2 + 3 = 6")], name="sum")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel one task."""
        if context.task_id and context.context_id:
            await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def build_card(url: str) -> AgentCard:
    """Return the card of this agent, which supports push notifications."""
    return AgentCard(
        name="Counting agent",
        description="Counts to three.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=f"{url}/", protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(push_notifications=True, streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="count", name="Count", description="Counts.", tags=["demo"])],
    )


def build_app(url: str, push: PushSender) -> Starlette:
    """Return the agent as a Starlette application."""
    a2a = A2AIntegration(push, task_store=InMemoryTaskStore())  # pushkit
    card = build_card(url)
    handler = DefaultRequestHandler(
        agent_executor=CountingAgent(),
        agent_card=card,
        **a2a.handler_arguments,  # pushkit
    )
    return Starlette(
        routes=[
            *create_agent_card_routes(card),
            *create_jsonrpc_routes(handler, rpc_url="/"),
            *a2a.routes,  # pushkit: the public keys
        ],
        lifespan=a2a.lifespan,  # pushkit: also delivers what an earlier run left
    )


def main() -> None:
    """Serve the agent."""
    parser = argparse.ArgumentParser(description="An a2a-sdk agent with pushkit inside.")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen at")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--keys", default="keys.json")
    parser.add_argument("--database", default="outbox.db")
    parser.add_argument("--allow", action="append", default=[], help="for example 127.0.0.1:*")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    url = f"http://127.0.0.1:{arguments.port}"
    try:
        push = PushSender(  # pushkit
            issuer=url, keys=arguments.keys, database=arguments.database, allow=arguments.allow
        )
    except PushkitError as exc:
        sys.exit(f"error: {exc}")
    app = build_app(url, push)
    uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
