"""Google's Agent Development Kit, 1.x and 2.x: its `to_a2a`, with durable push notifications.

    app = to_a2a(agent, push=push, host="agent.example.com", port=443, protocol="https")

ADK's own function takes a config store, but no sender: configs are accepted, and nothing is sent.
This one has the same arguments (but for `push_config_store`, which is the outbox), and builds the
application from the same parts of ADK: its executor, its runner and its card's builder.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pushkit.delivery.sender import PushSender
from pushkit.integrations.a2a_sdk import A2AIntegration, adapter
from pushkit.lazy import from_extra
from pushkit.subscriptions.filters import GATHERED_EVERY, FilterChoice
from pushkit.subscriptions.model import EVERYTHING

if TYPE_CHECKING:
    from starlette.applications import Starlette

Lifespan: TypeAlias = "Callable[[Starlette], AbstractAsyncContextManager[None]]"


def to_a2a(
    agent: Any,
    *,
    push: PushSender,
    host: str = "localhost",
    port: int = 8000,
    protocol: str = "http",
    rpc_path: str = "",
    agent_card: Any = None,
    task_store: Any = None,
    runner: Any = None,
    lifespan: Lifespan | None = None,
    agent_executor_factory: Callable[[Any], Any] | None = None,
    owner_of: Callable[..., str] | None = None,
    filter: FilterChoice = EVERYTHING,  # noqa: A002  # as `PushSender.subscribe`
    min_interval: timedelta | None = GATHERED_EVERY,
    snapshot: bool = False,
    **card_options: Any,
) -> Starlette:
    """Return an ADK agent as a Starlette application that pushes.

    It serves the public keys, too, and runs `push` while it lives.

    Args:
        agent: The ADK agent, or workflow.
        push: Stores the configs, and delivers the updates.
        host: The host of the agent's URL in its card.
        port: The port of that URL.
        protocol: The scheme of that URL.
        rpc_path: The path of the agent and of its card.
        agent_card: The SDK's card, or the path of one as JSON; None to let ADK write it.
        task_store: The SDK's task store; None for one in memory.
        runner: ADK's runner; None for one whose services are in memory.
        lifespan: A lifespan of your own, within that of `push`.
        agent_executor_factory: Returns ADK's executor, given the runner.
        owner_of: Returns the owner of a call, as for `A2AIntegration`.
        filter: Which updates clients get, as there.
        min_interval: At most one post of a stream's chunks in this time, as there.
        snapshot: Whether each config gets the task as it stands first, as there.
        card_options: Further arguments of ADK's `AgentCardBuilder`, such as `security_schemes`.
    """
    with from_extra("a2a", "to_a2a needs google-adk[a2a], and"):
        from a2a.server.tasks import InMemoryTaskStore
        from google.adk.a2a.executor.a2a_agent_executor import A2aAgentExecutor
        from google.adk.a2a.utils import agent_to_a2a
        from google.adk.a2a.utils.agent_card_builder import AgentCardBuilder
        from starlette.applications import Starlette

    a2a = A2AIntegration(
        push,
        task_store=task_store or InMemoryTaskStore(),
        owner_of=owner_of,
        filter=filter,
        min_interval=min_interval,
        snapshot=snapshot,
    )
    prefix = f"/{rpc_path.strip('/')}" if rpc_path.strip("/") else ""
    make = agent_executor_factory or (lambda own_runner: A2aAgentExecutor(runner=own_runner))
    executors: list[Any] = []

    def keep(own_runner: Any) -> Any:
        executors.append(make(own_runner))
        return executors[0]

    agent_to_a2a.to_a2a(agent, runner=runner, agent_executor_factory=keep)  # it makes the runner
    given = agent_card
    if isinstance(agent_card, str | Path):
        given = adapter.read_card(Path(agent_card).read_bytes())
    url = f"{protocol}://{host}:{port}{prefix}/"

    @contextlib.asynccontextmanager
    async def around(app: Starlette) -> AsyncIterator[None]:
        card = given or await AgentCardBuilder(agent=agent, rpc_url=url, **card_options).build()
        found = a2a.agent_routes(executors[0], a2a.with_push(card), prefix=prefix)
        app.router.routes[:] = [*a2a.routes, *found]  # also if it is entered again
        async with a2a.lifespan(), lifespan(app) if lifespan else contextlib.nullcontext():
            yield

    return Starlette(lifespan=around)
