"""a2a-sdk 1.x: its push-notification sender and config store, over a `PushSender`.

The config store is the outbox's own table of subscriptions: it is durable, keeps the owners of one
task apart, and stores the protocol version of each config. For 1.0 clients, an event is encoded
directly from the SDK's message; it is converted only for other versions. `send_notification`
returns when the event is on disk; the agent's task never waits for a webhook.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from a2a.auth.user import User
from a2a.client.card_resolver import parse_agent_card
from a2a.server.agent_execution import AgentExecutor
from a2a.server.context import ServerCallContext
from a2a.server.owner_resolver import OwnerResolver, resolve_user_scope
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import PushNotificationConfigStore, PushNotificationSender
from a2a.types import a2a_pb2
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, VERSION_HEADER
from a2a.utils.errors import InternalError, InvalidParamsError, VersionNotSupportedError
from google.protobuf.json_format import MessageToDict, ParseDict

from pushkit.a2a import (
    PushConfig,
    Task,
    TaskSnapshot,
    WireVersion,
    format_push_config,
    parse_push_config,
)
from pushkit.delivery.sender import PushSender
from pushkit.errors import PushkitError, UnsupportedVersionError
from pushkit.integrations.a2a_sdk.v1_events import PushEvent, native_update
from pushkit.integrations.client_configs import ClientConfigs, wiring_of
from pushkit.integrations.enqueue_buffer import Buffered, EnqueueBuffer
from pushkit.subscriptions.filters import GATHERED_EVERY, FilterChoice
from pushkit.subscriptions.model import EVERYTHING, Subscription

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


class TaskReader(Protocol):
    """The part of the SDK's task store that is used: reading one task."""

    async def get(self, task_id: str, context: ServerCallContext) -> a2a_pb2.Task | None:
        """Return a task as the context's user sees it, or None."""
        ...


class PushkitConfigStore(PushNotificationConfigStore):
    """The SDK's config store over a `PushSender`'s subscriptions.

    Args:
        sender: Stores the configs, as subscriptions.
        owner_resolver: Returns the owner of a call; the SDK's default is the user's name. For A2A
            0.3 clients, tasks are read as a user of that name, without a tenant: if the resolver
            adds the tenant to the name, the task store must accept such a name as the owner.
        filter: Which updates clients get: a `Filter`, or a function that returns an owner's.
        min_interval: At most one post of a stream's chunks in this time; None to post each. See
            `Filter`.
        snapshots_from: The agent's task store, if each config gets the task as it stands first.
    """

    def __init__(
        self,
        sender: PushSender,
        owner_resolver: OwnerResolver = resolve_user_scope,
        *,
        filter: FilterChoice = EVERYTHING,  # noqa: A002  # as `PushSender.subscribe`
        min_interval: timedelta | None = GATHERED_EVERY,
        snapshots_from: TaskReader | None = None,
    ) -> None:
        wiring_of(sender)  # from now on, configs that nothing sends for are reported
        self._configs = ClientConfigs(sender, _sdk_error, filter, min_interval)
        self._owner_of = owner_resolver
        self._task_store = snapshots_from

    async def set_info(
        self,
        task_id: str,
        notification_config: a2a_pb2.TaskPushNotificationConfig,
        context: ServerCallContext,
    ) -> a2a_pb2.TaskPushNotificationConfig:
        """Register a config, and return it to the client without token and credentials.

        Raises:
            InvalidParamsError: The config is refused (`-32602`).
            VersionNotSupportedError: Its protocol version is not supported (`-32009`).
            InternalError: The outbox is out of reach (`-32603`); the log says why.
        """
        owner, store = self._owner_of(context), self._task_store
        with self._configs.errors(owner):
            version = _version_of(context)
            config = parse_push_config(MessageToDict(notification_config), WireVersion.V1_0)
        subscription = await self._configs.register(
            task_id,
            config,
            version=version,
            owner=owner,
            snapshot=None if store is None else lambda _owner: _task_of(store, task_id, context),
        )
        return _redacted(subscription, context)

    async def get_info(
        self, task_id: str, context: ServerCallContext
    ) -> list[a2a_pb2.TaskPushNotificationConfig]:
        """Return the caller's own configs for a task, without tokens and credentials (A2A#1681)."""
        found = await self._configs.of_task(task_id, owner=self._owner_of(context))
        return [_redacted(subscription, context) for subscription in found]

    async def get_info_for_dispatch(self, task_id: str) -> list[a2a_pb2.TaskPushNotificationConfig]:
        """Return the configs of all owners for a task, with tokens and credentials."""
        configs = await self._configs.sender.configs_to_send_with(task_id)
        return [_to_proto(config) for config in configs]

    async def delete_info(
        self, task_id: str, context: ServerCallContext, config_id: str | None = None
    ) -> None:
        """Remove one of the caller's configs, or all; unfinished deliveries are cancelled."""
        await self._configs.remove(task_id, config_id, owner=self._owner_of(context))


class PushkitNotificationSender(Buffered, PushNotificationSender):
    """The SDK's notification sender over a `PushSender`.

    Args:
        sender: Enqueues the updates.
        task_store: The agent's task store. A2A 0.3 clients get whole tasks from it, each as its
            owner sees them; if a task is missing there, they get only statuses.
        buffer: Keeps updates while the outbox is out of reach.
    """

    def __init__(
        self, sender: PushSender, *, task_store: TaskReader, buffer: EnqueueBuffer | None = None
    ) -> None:
        super().__init__(sender, buffer=buffer)
        self._task_store = task_store

    async def send_notification(self, task_id: str, event: PushEvent) -> None:
        """Enqueue an event for every subscriber of its task; return when it is on disk.

        While the outbox is out of reach, the event is kept in memory and stored later. A subscriber
        that cannot have it is reported as by `PushSender.notify`; the others get it. An event
        without a task, or one too many in memory, is logged and counted (`buffer.refused`), not
        raised: a2a-sdk before 1.2.3 would fail the client's call.

        Raises:
            InvalidUpdateError: The object is not an event that is pushed.
        """
        update = native_update(event)

        snapshot = functools.partial(self._snapshot, update.task_id)
        await self._enqueue(task_id, update, size=event.ByteSize(), snapshot=snapshot)

    async def _snapshot(self, task_id: str, owner: str) -> Task | None:
        """Return a task as its owner sees it: task stores are scoped by owner, too."""
        return await _task_of(self._task_store, task_id, ServerCallContext(user=_Owner(owner)))


async def _task_of(store: TaskReader, task_id: str, context: ServerCallContext) -> Task | None:
    task = await store.get(task_id, context)
    found = None if task is None else native_update(task).neutral
    return found.task if isinstance(found, TaskSnapshot) else None


def agent_routes(
    executor: AgentExecutor, card: a2a_pb2.AgentCard, *, prefix: str, **arguments: Any
) -> list[BaseRoute]:
    """Return the routes of an agent, for clients of 1.0 and 0.3: its card, and JSON-RPC."""
    from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes

    handler = DefaultRequestHandler(agent_executor=executor, agent_card=card, **arguments)
    return [
        *create_agent_card_routes(card, card_url=f"{prefix}{AGENT_CARD_WELL_KNOWN_PATH}"),
        *create_jsonrpc_routes(handler, rpc_url=prefix or "/", enable_v0_3_compat=True),
    ]


def read_card(document: bytes) -> a2a_pb2.AgentCard:
    """Return the card of a JSON document."""
    return parse_agent_card(json.loads(document))


def with_push(card: a2a_pb2.AgentCard) -> a2a_pb2.AgentCard:
    """Return a copy of a card that says `capabilities.pushNotifications`."""
    changed = a2a_pb2.AgentCard()
    changed.CopyFrom(card)
    changed.capabilities.push_notifications = True
    return changed


class _Owner(User):
    """The owner of a subscription, as the SDK's user who reads that owner's task."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return bool(self._name)

    @property
    def user_name(self) -> str:
        return self._name


def _sdk_error(error: PushkitError | None) -> Exception:
    if error is None:
        return InternalError()
    if isinstance(error, UnsupportedVersionError):
        return VersionNotSupportedError(message=str(error))
    return InvalidParamsError(message=str(error))


def _redacted(
    subscription: Subscription, context: ServerCallContext
) -> a2a_pb2.TaskPushNotificationConfig:
    """Return a config as a client may read it, with the tenant that the call names."""
    task_id = subscription.key.task_id
    return _to_proto(replace(subscription.config, task_id=task_id, tenant=context.tenant or None))


def _to_proto(config: PushConfig) -> a2a_pb2.TaskPushNotificationConfig:
    document = format_push_config(config, WireVersion.V1_0)
    proto = a2a_pb2.TaskPushNotificationConfig()
    ParseDict(document, proto)
    return proto


def _version_of(context: ServerCallContext) -> WireVersion:
    """Return the protocol version of a call; a network call that names none is 0.3 (1.0 §3.6.2)."""
    headers, call = context.state.get("headers"), context.state.get("grpc_context")
    if call is not None:
        headers = dict(call.invocation_metadata() or ())
    if not isinstance(headers, Mapping):
        return WireVersion.V1_0  # a call within the process
    named = headers.get(VERSION_HEADER) or headers.get(VERSION_HEADER.lower())
    return WireVersion.parse(str(named)) if named else WireVersion.V0_3
