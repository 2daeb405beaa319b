"""The methods with which clients set, get, list and delete push configs.

They are those of A2A 0.1 (§7.5, §7.6), 0.3 (§7.5 to §7.8) and 1.0 (§9.4), by their JSON-RPC names.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from inspect import isawaitable
from typing import Final, TypeAlias, TypeVar

from pushkit.a2a import (
    PushConfig,
    Task,
    WireVersion,
    format_push_config,
    parse_inline_config,
    parse_push_config,
)
from pushkit.a2a.kinds import format_timestamp, read_timestamp
from pushkit.a2a.push_config import has_inline_config
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.delivery.error_codes import told_to_client
from pushkit.delivery.sender import PushSender
from pushkit.errors import InvalidPushConfigError, UnsupportedVersionError
from pushkit.integrations.client_configs import ClientConfigs
from pushkit.integrations.push_config_api.errors import ApiError, ErrorKind, api_error
from pushkit.outbox.clients import DeliveryProgress, WantedDeliveries
from pushkit.subscriptions.filters import (
    FILTER_EXTENSION,
    FilterChoice,
    filter_chooser,
    write_filter,
)
from pushkit.subscriptions.model import DisabledBy, Subscription, SubscriptionKey, SubscriptionState

V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0

Request = TypeVar("Request")

SNAPSHOT_EXTENSION: Final = "urn:pushkit:push-snapshot:v1"
"""A member of a config, `true`: the task as it stands is the first notification."""

_MAX_ID_CHARS = 512
_MAX_PAGE_SIZE = 100
_NUMBER = re.compile(r"-?\d{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The client that makes a call."""

    owner: str  # the client's name, by the agent's own authentication
    tenant: str = ""  # the tenant that the call names; empty before 1.0


async def named_by(
    owner: Callable[[Request], str | Awaitable[str | None] | None], request: Request
) -> str | None:
    """Return the client of a request; None if it is not authenticated."""
    named = owner(request)
    return await named if isawaitable(named) else named


TaskCheck: TypeAlias = Callable[[Caller, str], bool | Awaitable[bool]]
TaskOf: TypeAlias = Callable[[Caller, str], Awaitable[Task | None]]
Params: TypeAlias = Mapping[str, JsonValue]


@dataclass(slots=True, kw_only=True)
class InlineConfig:
    """The config that came with a message, until its task has an id."""

    clients: ClientConfigs = field(repr=False)
    config: PushConfig
    version: WireVersion
    owner: str
    refusal: ApiError | None = None
    is_registered: bool = False

    async def register(self, task_id: str) -> None:
        """Register it, unless it is already. Raises ApiError: it is refused."""
        if self.is_registered:
            return
        try:
            await self.clients.register(
                task_id,
                self.config,
                version=self.version,
                owner=self.owner,
                tenant=self.config.tenant or "",
            )
        except ApiError as exc:
            self.refusal = exc
            raise
        self.is_registered = True


@dataclass(frozen=True, slots=True)
class _Call:
    caller: Caller
    params: Params
    version: WireVersion


class Configs:
    """The methods, over a sender. Their results never contain a secret.

    Without a sender, push notifications are not supported. `task_exists` returns whether a task
    exists that this caller may follow, `task_of` the task as this caller sees it.
    """

    def __init__(
        self,
        sender: PushSender | None,
        task_exists: TaskCheck | None,
        filter: FilterChoice,  # noqa: A002  # as `PushSender.subscribe`
        task_of: TaskOf | None,
    ) -> None:
        chosen = filter_chooser(filter)  # checked without a sender, too
        self._clients = None if sender is None else ClientConfigs(sender, api_error, chosen)
        self._task_exists = task_exists
        self._task_of = task_of

    async def call(
        self, method: str, params: Params | JsonValue, *, owner: str, version: str | None
    ) -> JsonValue:
        """Return the result of a method. Raises ApiError if the call is refused.

        `version` is the `A2A-Version` of the call, a header of 1.0 (§3.6.2), if there is one.
        """
        params = {} if params is None else params
        if not isinstance(params, Mapping):
            raise ApiError(ErrorKind.PARAMS, "params: expected an object")
        if method not in METHODS:
            raise ApiError(ErrorKind.METHOD)
        named, operation = METHODS[method]
        spoken = named or V1_0
        if named is not None:
            check_version(version, spoken)
        tenant = optional_text(params, "tenant") if spoken is V1_0 else None
        caller = Caller(owner=owner, tenant=tenant or "")
        try:
            return await operation(self, _Call(caller, params, spoken))
        except InvalidPushConfigError as exc:
            raise ApiError(ErrorKind.PARAMS, str(exc)) from exc

    async def inline(
        self, params: Params, version: WireVersion, caller: Callable[[], Awaitable[str | None]]
    ) -> InlineConfig | None:
        """Return the config of a message, if it has one. Raises ApiError: it is refused.

        The caller is asked for only if it has.
        """
        if self._clients is None:
            raise ApiError(ErrorKind.PUSH)
        owner = await caller() if has_inline_config(params) else None
        with self._clients.errors(owner or ""):
            config = parse_inline_config(params, version)
        if config is None:
            return None
        if owner is None:
            raise ApiError(ErrorKind.CALLER, "the caller is not known")
        with self._clients.errors(owner):
            self._clients.sender.check_url(config.url)
        return InlineConfig(clients=self._clients, config=config, version=version, owner=owner)

    async def set(self, call: _Call) -> JsonValue:
        """Register a config, or change the one with the same id."""
        config = parse_push_config(call.params, call.version)
        if config.task_id is None:
            member = "id" if call.version is V0_1 else "taskId"
            raise ApiError(ErrorKind.PARAMS, f"{member}: expected the id of a task")
        caller, task_id = call.caller, config.task_id
        clients = await self._clients_of(caller, task_id)
        asked = config.extra.get(SNAPSHOT_EXTENSION, False)
        if not isinstance(asked, bool):
            raise ApiError(ErrorKind.PARAMS, f"{SNAPSHOT_EXTENSION}: expected true or false")
        task_of = self._task_of if asked else None
        stored = await clients.register(
            task_id,
            config,
            version=call.version,
            owner=caller.owner,
            tenant=caller.tenant,
            snapshot=None if task_of is None else lambda _owner: task_of(caller, task_id),
        )
        return _written(stored, call.version, has_snapshot=task_of is not None)

    async def get_0_1(self, call: _Call) -> JsonValue:
        """Return the config of a task; null if none is set (0.1 §7.6)."""
        found = await self._found(call, text(call.params, "id"), None)
        return _written(found, V0_1) if found else None

    async def get(self, call: _Call) -> JsonValue:
        """Return a config. In 0.3, the call may omit the config's name."""
        task, name = _NAMES[call.version]
        named = optional_text if call.version is V0_3 else text
        config_id = named(call.params, name)
        found = await self._found(call, text(call.params, task), config_id)
        if found is None:  # 1.0 §3.1.8 names this error for a config as well
            raise ApiError(ErrorKind.TASK, _NO_CONFIG)
        return _written(found, call.version)

    async def delete(self, call: _Call) -> JsonValue:
        """Remove a config, if it exists, and cancel its unfinished deliveries."""
        task_id, config_id = (text(call.params, name) for name in _NAMES[call.version])
        caller, clients = call.caller, await self._clients_of(call.caller, task_id)
        await clients.remove(task_id, config_id, owner=caller.owner, tenant=caller.tenant)
        return None

    async def list_0_3(self, call: _Call) -> JsonValue:
        """Return all configs of a task, by id; 0.3 has no pages."""
        found = await self._of_caller(call.caller, text(call.params, "id"))
        return [_written(each, V0_3) for each in sorted(found, key=lambda each: each.key.config_id)]

    async def list_1_0(self, call: _Call) -> JsonValue:
        """Return the page of a task's configs after a token, by id."""
        task_id, size = text(call.params, "taskId"), number(call.params, "pageSize")
        token = optional_text(call.params, "pageToken")
        if size < 0:
            raise ApiError(ErrorKind.PARAMS, "pageSize: expected 0 or more")
        size = min(size or _MAX_PAGE_SIZE, _MAX_PAGE_SIZE)
        after = _read_page_token(token) if token else ""
        found = {each.key.config_id: each for each in await self._of_caller(call.caller, task_id)}
        ids = sorted(config_id for config_id in found if config_id > after)
        page: JsonObject = {"configs": [_written(found[each], V1_0) for each in ids[:size]]}
        if len(ids) > size:
            page["nextPageToken"] = _page_token(ids[size - 1])
        return page

    async def progress(self, call: _Call) -> JsonObject:
        """Return how far the deliveries of a config are (`urn:pushkit:delivery-state:v1`)."""
        clients, key = await self._key_of(call)
        with clients.errors(key.owner):
            found = await clients.sender.progress(key)
        if found is None:
            raise ApiError(ErrorKind.TASK, _NO_CONFIG)
        return _progress(found)

    async def enable(self, call: _Call) -> JsonValue:
        """Enable a config that failures or a 410 disabled; return how far its deliveries are."""
        clients, key = await self._key_of(call)
        with clients.errors(key.owner):
            await clients.sender.enable(
                key.task_id,
                key.config_id,
                owner=key.owner,
                tenant=key.tenant,
                disabled_by=(DisabledBy.FAILING, DisabledBy.GONE),
            )
        found = await self.progress(call)
        if found["state"] == SubscriptionState.DISABLED:
            raise ApiError(ErrorKind.PARAMS, "the agent's operator disabled it: ask there")
        return found

    async def recover(self, call: _Call) -> JsonValue:
        """Send notifications of a config again (`urn:pushkit:recover:v1`)."""
        clients, key = await self._key_of(call)
        seqs = (number(call.params, "fromSeq"), number(call.params, "toSeq") or None)
        wanted = WantedDeliveries(
            *seqs, _moment(call.params, "since"), _moment(call.params, "until")
        )
        with clients.errors(key.owner):
            found = await clients.sender.recover(key, wanted)
        if found is None:
            raise ApiError(ErrorKind.TASK, _NO_CONFIG)
        rest: JsonObject = {} if found.next_seq is None else {"nextSeq": found.next_seq}
        return {"seqs": [*found.seqs], **rest}

    async def _key_of(self, call: _Call) -> tuple[ClientConfigs, SubscriptionKey]:
        """Return the configs of clients, and the one that a call of an extension names.

        Without an id, that is the config registered without one, whose id is the task's.
        """
        caller, task_id = call.caller, text(call.params, "taskId")
        config_id = optional_text(call.params, "id") or task_id
        clients = await self._clients_of(caller, task_id)
        _check_id("id", config_id)
        return clients, SubscriptionKey(caller.tenant, task_id, caller.owner, config_id)

    async def _found(self, call: _Call, task_id: str, config_id: str | None) -> Subscription | None:
        """Return a config; None if there is none.

        Without an id, that is the config registered without one, whose id is the task's, or else
        the oldest.
        """
        found = await self._of_caller(call.caller, task_id, config_id)
        chosen = [each for each in found if each.key.config_id == task_id] or found
        return chosen[0] if chosen else None

    async def _of_caller(
        self, caller: Caller, task_id: str, config_id: str | None = None
    ) -> list[Subscription]:
        clients = await self._clients_of(caller, task_id)
        return await clients.of_task(task_id, config_id, owner=caller.owner, tenant=caller.tenant)

    async def _clients_of(self, caller: Caller, task_id: str) -> ClientConfigs:
        """Check that a caller may set configs of a task, and return all clients' configs."""
        if self._clients is None:
            raise ApiError(ErrorKind.PUSH)
        _check_id("task id", task_id)
        if caller.tenant:
            _check_id("tenant", caller.tenant)
        if self._task_exists is not None:
            answer = self._task_exists(caller, task_id)
            if not (await answer if isawaitable(answer) else answer):
                raise ApiError(ErrorKind.TASK)
        return self._clients


# The version of each method; None for those of extensions, which clients of every version call.
METHODS: Final[
    Mapping[str, tuple[WireVersion | None, Callable[[Configs, _Call], Awaitable[JsonValue]]]]
] = {
    "tasks/pushNotification/set": (V0_1, Configs.set),
    "tasks/pushNotification/get": (V0_1, Configs.get_0_1),
    "tasks/pushNotificationConfig/set": (V0_3, Configs.set),
    "tasks/pushNotificationConfig/get": (V0_3, Configs.get),
    "tasks/pushNotificationConfig/list": (V0_3, Configs.list_0_3),
    "tasks/pushNotificationConfig/delete": (V0_3, Configs.delete),
    "CreateTaskPushNotificationConfig": (V1_0, Configs.set),
    "GetTaskPushNotificationConfig": (V1_0, Configs.get),
    "ListTaskPushNotificationConfigs": (V1_0, Configs.list_1_0),
    "DeleteTaskPushNotificationConfig": (V1_0, Configs.delete),
    "GetPushDeliveryState": (None, Configs.progress),
    "EnablePushNotifications": (None, Configs.enable),
    "RecoverPushNotifications": (None, Configs.recover),
}
_NO_CONFIG: Final = "the task has no such push config of yours"
# The members that name the task and the config.
_NAMES: Final = {V0_3: ("id", "pushNotificationConfigId"), V1_0: ("taskId", "id")}


def _check_id(name: str, value: str) -> None:
    if not value or len(value) > _MAX_ID_CHARS or not value.isprintable():
        raise ApiError(
            ErrorKind.PARAMS,
            f"{name}: expected 1 to {_MAX_ID_CHARS} printable characters, found {len(value)}",
        )


def _written(
    subscription: Subscription, version: WireVersion, *, has_snapshot: bool = False
) -> JsonObject:
    """Return the config as a client may read it: without token and credentials, with its filter.

    Answers are logged and cached, and the client that registered the secrets has them.
    """
    key, filtered = subscription.key, write_filter(subscription.wanted)
    config = replace(
        subscription.config,
        id=key.config_id,
        task_id=key.task_id,
        tenant=key.tenant or None,
        extra=({FILTER_EXTENSION: filtered} if filtered else {})
        | ({SNAPSHOT_EXTENSION: True} if has_snapshot else {}),
        origin=version,
    )
    return format_push_config(config, version)


def _progress(found: DeliveryProgress) -> JsonObject:
    """Return how far the deliveries of a config are, without members that have no value."""
    subscription, error = found.subscription, found.last_error
    members: dict[str, JsonValue | datetime] = {
        "taskId": subscription.key.task_id,
        "id": subscription.key.config_id,
        "state": subscription.state.value,
        "lastSeq": subscription.last_seq,
        "deliveredSeq": found.delivered_seq,
        "waiting": found.waiting,
        "dead": found.dead,
        "failingSince": subscription.failing_since,
        "lastError": None if error is None else told_to_client(error),
        "lastStatus": found.last_status,
        "disabledBy": subscription.disabled_by and subscription.disabled_by.value,
        "disabledAt": subscription.disabled_at,
    }
    return {
        name: format_timestamp(value) if isinstance(value, datetime) else value
        for name, value in members.items()
        if value is not None
    }


def _page_token(config_id: str) -> str:
    return base64.urlsafe_b64encode(config_id.encode()).decode().rstrip("=")


def _read_page_token(token: str) -> str:
    try:
        padded = token + "=" * (-len(token) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as exc:
        raise ApiError(ErrorKind.PARAMS, "pageToken: expected one of a page before") from exc


# --- members of params and queries ---------------------------------------------------------------


def optional_text(params: Params, name: str) -> str | None:
    """Return a string; None if it is absent, null or empty."""
    value = _member(params, name)
    if value is not None and not isinstance(value, str):
        raise ApiError(ErrorKind.PARAMS, f"{name}: expected a string")
    return value or None


def text(params: Params, name: str) -> str:
    """Return a required string."""
    value = optional_text(params, name)
    if value is None:
        raise ApiError(ErrorKind.PARAMS, f"{name}: expected, but missing")
    return value


def number(params: Params, name: str) -> int:
    """Return an integer, which may be a string in ProtoJSON; 0 if it is absent."""
    value = _member(params, name)
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | None):
        raise ApiError(ErrorKind.PARAMS, f"{name}: expected an integer")
    return value or 0


def _moment(params: Params, name: str) -> datetime | None:
    value = optional_text(params, name)
    moment = None if value is None else read_timestamp(value)
    if value is not None and moment is None:
        raise ApiError(ErrorKind.PARAMS, f"{name}: expected a timestamp of RFC 3339")
    return moment


def _member(params: Params, name: str) -> JsonValue:
    # By its camelCase or snake_case name (ProtoJSON).
    snake = re.sub(r"(?=[A-Z])", "_", name).lower()
    if name != snake and name in params and snake in params:
        raise ApiError(ErrorKind.PARAMS, f"{name}: given in both spellings")
    return params.get(name, params.get(snake))


def check_version(header: str | None, version: WireVersion) -> None:
    """Check the `A2A-Version` of a call, if there is one, against the version of its method."""
    if not header:
        return
    try:
        named = WireVersion.parse(header)
    except UnsupportedVersionError as exc:
        raise ApiError(ErrorKind.VERSION, "A2A-Version: expected 0.1, 0.3 or 1.0") from exc
    if named is not version:
        raise ApiError(ErrorKind.VERSION, f"A2A-Version: found {named}, expected {version}")
