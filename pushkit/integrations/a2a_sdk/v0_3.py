"""a2a-sdk 0.2.12 to 0.3.x: its notification sender and config store, over a `PushSender`.

This SDK gives its config store no call context. If an agent serves several users who must not see
each other's configs, pass an `owner_of` function that returns the user of the current call, from a
`ContextVar` that the agent's authentication sets.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pushkit.a2a import (
    Task,
    TaskSnapshot,
    WireVersion,
    format_push_config,
    parse_update,
)
from pushkit.bounded_json import JsonObject
from pushkit.delivery.sender import PushSender
from pushkit.errors import PushkitError, UnrecognisedBodyError
from pushkit.integrations.client_configs import ClientConfigs, wiring_of
from pushkit.integrations.enqueue_buffer import Buffered, EnqueueBuffer
from pushkit.logs import RepeatedLog
from pushkit.subscriptions.filters import GATHERED_EVERY, FilterChoice
from pushkit.subscriptions.model import EVERYTHING, Subscription

if TYPE_CHECKING:
    from pydantic import BaseModel  # the SDK's `Task` and `PushNotificationConfig` are such

_log: Final = logging.getLogger("pushkit.integrations")

_CARD_PATH: Final = "/.well-known/agent-card.json"


class PushkitConfigStore:
    """The SDK's config store over a `PushSender`'s subscriptions.

    Args:
        sender: Stores the configs, as subscriptions.
        owner_of: Returns the owner of the current call.
        filter: Which updates clients get: a `Filter`, or a function that returns an owner's.
        min_interval: At most one post of a stream's chunks in this time; None to post each. See
            `Filter`.
        snapshots_from: The agent's task store, if each config gets the task as it stands first.
    """

    def __init__(
        self,
        sender: PushSender,
        owner_of: Callable[[], str] = lambda: "",
        *,
        filter: FilterChoice = EVERYTHING,  # noqa: A002  # as `PushSender.subscribe`
        min_interval: timedelta | None = GATHERED_EVERY,
        snapshots_from: Any = None,
    ) -> None:
        wiring_of(sender)  # from now on, configs that nothing sends for are reported
        self._configs = ClientConfigs(sender, self._sdk_error, filter, min_interval)
        self._owner_of = owner_of
        self._task_store = snapshots_from
        self._sdk: Any = importlib.import_module("a2a.types")  # 1.x has other names there

    async def set_info(self, task_id: str, notification_config: BaseModel) -> None:
        """Register a config.

        Raises:
            ServerError: The config is refused (`-32602`), or the outbox is out of reach (`-32603`).
        """
        await self._configs.register(
            task_id,
            _as_json(notification_config),
            version=WireVersion.V0_3,
            owner=self._owner_of(),
            snapshot=None if self._task_store is None else lambda _owner: self._task_of(task_id),
        )

    async def get_info(self, task_id: str) -> list[Any]:
        """Return the caller's own configs for a task, as the SDK's `PushNotificationConfig`.

        They have no tokens and credentials, because the SDK sends them to clients.
        """
        found = await self._configs.of_task(task_id, owner=self._owner_of())
        return [self._to_sdk(subscription) for subscription in found]

    async def delete_info(self, task_id: str, config_id: str | None = None) -> None:
        """Remove a config of the caller; by default, as in the SDK, the one with the task's id.

        Its unfinished deliveries are cancelled.
        """
        await self._configs.remove(task_id, config_id or task_id, owner=self._owner_of())

    async def _task_of(self, task_id: str) -> Task | None:
        task = await self._task_store.get(task_id)
        found = None if task is None else parse_update(_as_json(task), WireVersion.V0_3)
        return found.task if isinstance(found, TaskSnapshot) else None

    def _sdk_error(self, error: PushkitError | None) -> Any:
        sdk = self._sdk
        inner = sdk.InvalidParamsError(message=str(error)) if error else sdk.InternalError()
        return importlib.import_module("a2a.utils.errors").ServerError(error=inner)

    def _to_sdk(self, subscription: Subscription) -> Any:
        document = format_push_config(subscription.config, WireVersion.V0_3)
        inner = document.get("pushNotificationConfig", document)
        return self._sdk.PushNotificationConfig.model_validate(inner)


class PushkitNotificationSender(Buffered):
    """The SDK's notification sender over a `PushSender`.

    Args:
        sender: Enqueues the updates.
        task_store: Not used, because this SDK passes whole tasks; as for a2a-sdk 1.x.
        buffer: Keeps updates while the outbox is out of reach.
    """

    def __init__(
        self,
        sender: PushSender,
        *,
        task_store: object = None,  # noqa: ARG002
        buffer: EnqueueBuffer | None = None,
    ) -> None:
        super().__init__(sender, buffer=buffer)
        self._repeated = RepeatedLog(_log)

    async def send_notification(self, task: BaseModel) -> None:
        """Enqueue a task as it is now for every subscriber; return when it is on disk.

        Members that cannot be sent are left out, and the log says which and why. A task that cannot
        be sent at all, or is one too many in memory, is logged and counted (`buffer.refused`), and
        never raised: the SDK would fail the client's call.
        """
        try:
            document = _as_json(task)
            update = parse_update(document, WireVersion.V0_3)
        except (ValueError, UnrecognisedBodyError) as exc:  # pydantic's, if it cannot be JSON
            self.buffer.refuse(exc)
            return
        if update.left_out:
            message = "task %r: webhooks do not get all of it: %s"
            left_out = "; ".join(update.left_out)
            self._repeated.log("left out", logging.WARNING, message, update.task_id, left_out)
        await self._enqueue(update.task_id or "", update, size=len(json.dumps(document)))


def agent_routes(executor: object, card: Any, *, prefix: str, **arguments: Any) -> list[Any]:
    """Return the Starlette routes of an agent: its card, and JSON-RPC."""
    handlers = importlib.import_module("a2a.server.request_handlers")
    handler = handlers.DefaultRequestHandler(agent_executor=executor, **arguments)
    apps: Any = importlib.import_module("a2a.server.apps")
    app = apps.A2AStarletteApplication(agent_card=card, http_handler=handler)
    paths = {"agent_card_url": f"{prefix}{_CARD_PATH}"} if prefix else {}
    return list(app.routes(rpc_url=prefix or "/", **paths))


def read_card(document: bytes) -> Any:
    """Return the card of a JSON document."""
    sdk: Any = importlib.import_module("a2a.types")
    return sdk.AgentCard.model_validate_json(document)


def with_push(card: Any) -> Any:
    """Return a copy of a card that says `capabilities.pushNotifications`."""
    capabilities = card.capabilities.model_copy(update={"push_notifications": True})
    return card.model_copy(update={"capabilities": capabilities})


def _as_json(sdk_object: BaseModel) -> JsonObject:
    return sdk_object.model_dump(mode="json", by_alias=True, exclude_none=True)
