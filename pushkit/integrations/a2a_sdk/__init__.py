"""a2a-sdk 0.2.12 to 1.x: what replaces its push-notification sender and its config store.

    push = PushSender(issuer="https://agent.example.com", keys="keys.json", database="outbox.db")
    a2a = A2AIntegration(push, task_store=task_store)
    handler = DefaultRequestHandler(agent_executor=..., agent_card=card, **a2a.handler_arguments)
    app = Starlette(routes=[*a2a.routes, *agent_routes], lifespan=a2a.lifespan)

`adapter` is that of the installed a2a-sdk: `v1`, or `v0_3` for the releases before 1.0. Both have
the same names; types are those of 1.x.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeVar

from pushkit.delivery.sender import PushSender
from pushkit.integrations.asgi import HealthApp, JwksApp, MetricsApp
from pushkit.integrations.client_configs import wiring_of
from pushkit.integrations.enqueue_buffer import EnqueueBuffer
from pushkit.keys.jwks import JWKS_PATH
from pushkit.lazy import from_extra
from pushkit.subscriptions.filters import GATHERED_EVERY, FilterChoice
from pushkit.subscriptions.model import EVERYTHING

with from_extra("a2a", "the adapter of a2a-sdk needs it"):
    installed = version("a2a-sdk")

if TYPE_CHECKING:
    from starlette.routing import BaseRoute
if TYPE_CHECKING or not installed.startswith("0."):
    from pushkit.integrations.a2a_sdk import v1 as adapter
else:
    from pushkit.integrations.a2a_sdk import v0_3 as adapter

__all__ = ["A2AIntegration", "PushkitConfigStore", "PushkitNotificationSender"]

PushkitConfigStore = adapter.PushkitConfigStore
PushkitNotificationSender = adapter.PushkitNotificationSender

Card = TypeVar("Card")


class A2AIntegration:
    """The parts of an a2a-sdk agent that push.

        a2a = A2AIntegration(push, task_store=InMemoryTaskStore())
        card = a2a.with_push(card)
        routes = [*a2a.routes, *a2a.agent_routes(executor, card)]
        app = Starlette(routes=routes, lifespan=a2a.lifespan)

    An agent that makes its own request handler passes `**a2a.handler_arguments` to it. Half of it
    is reported: a config that comes while nobody sends, or before the sender was started.

    Args:
        push: Stores the configs, and delivers the updates.
        task_store: The agent's task store.
        owner_of: Returns the owner of a call: with a2a-sdk 1.x given its `ServerCallContext`, by
            default the user's name; with 0.3 given nothing, by default one owner for all.
        filter: Which updates clients get: a `Filter` for all, or a function that returns the filter
            of an owner when it sets a config.
        min_interval: At most one post of a stream's chunks in this time; None to post each.
        buffer: Keeps updates while the outbox is out of reach.
        snapshot: Whether each config gets the task as it stands first, if there is one already.

    Attributes:
        config_store: The SDK's config store.
        notifications: The SDK's notification sender.
    """

    def __init__(
        self,
        push: PushSender,
        *,
        task_store: Any,
        owner_of: Callable[..., str] | None = None,
        filter: FilterChoice = EVERYTHING,  # noqa: A002  # as `PushSender.subscribe`
        min_interval: timedelta | None = GATHERED_EVERY,
        buffer: EnqueueBuffer | None = None,
        snapshot: bool = False,
    ) -> None:
        self.push = push
        owners = () if owner_of is None else (owner_of,)
        self.config_store = adapter.PushkitConfigStore(
            push,
            *owners,
            filter=filter,
            min_interval=min_interval,
            snapshots_from=task_store if snapshot else None,
        )
        self.notifications = adapter.PushkitNotificationSender(
            push, task_store=task_store, buffer=buffer
        )
        self._task_store = task_store

    @property
    def handler_arguments(self) -> dict[str, Any]:
        """The arguments of the SDK's request handler: its task store, config store and sender."""
        return {
            "task_store": self._task_store,
            "push_config_store": self.config_store,
            "push_sender": self.notifications,
        }

    @property
    def routes(self) -> list[BaseRoute]:
        """The Starlette routes that everybody may reach: the public keys."""
        from starlette.routing import Route

        return [Route(JWKS_PATH, JwksApp(self.push))]

    @property
    def operator_routes(self) -> list[BaseRoute]:
        """The Starlette routes of health and metrics, for operators only."""
        from starlette.routing import Route

        return [Route("/readyz", HealthApp(self)), Route("/metrics", MetricsApp(self.push))]

    def agent_routes(self, executor: Any, card: Any, *, prefix: str = "") -> list[BaseRoute]:
        """Return the Starlette routes of an agent: its card, and JSON-RPC.

        Args:
            executor: The SDK's `AgentExecutor`.
            card: The SDK's card, as by `with_push`.
            prefix: The path of both, such as `/agent`.
        """
        return adapter.agent_routes(executor, card, prefix=prefix, **self.handler_arguments)

    def with_push(self, card: Card) -> Card:
        """Return a copy of the SDK's card that says `capabilities.pushNotifications`."""
        copied: Callable[[Any], Any] = adapter.with_push
        changed: Card = copied(card)
        return changed

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Run the sender: the `lifespan` of a Starlette or FastAPI application."""
        async with self.push, self.notifications:
            yield

    async def unready(self) -> dict[str, str]:
        """Return what prevents delivery, as `PushSender.unready`, also for want of a sender."""
        found = await self.push.unready()
        if fault := wiring_of(self.push).fault(self.push):
            found["sender"] = f"sender: {fault}"
        return found
