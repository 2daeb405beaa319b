"""The JSON-RPC methods of A2A 0.1 (§7.5, §7.6), 0.3 (§7.5 to §7.8) and 1.0 (§9.4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pushkit.a2a import WireVersion, format_push_config, parse_push_config
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidPushConfigError
from pushkit.integrations.push_config_api.configs import Caller, Configs
from pushkit.integrations.push_config_api.errors import ApiError, ErrorKind, json_rpc_error
from pushkit.integrations.push_config_api.members import (
    check_version,
    number,
    optional_text,
    read_object,
    text,
    written,
)

Params: TypeAlias = Mapping[str, JsonValue]
V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0


@dataclass(frozen=True, slots=True)
class _Call:
    configs: Configs
    caller: Caller
    params: Params
    version: WireVersion


async def answer_json_rpc(
    configs: Configs, owner: str, body: bytes, version_header: str | None = None
) -> JsonObject | None:
    """Answer a JSON-RPC request; return None for a notification, which gets no answer.

    The caller limits the length of the body. `A2A-Version` is a header of 1.0 (§3.6.2).
    """
    try:
        request = _read_request(body)
    except ApiError as error:
        return refusal(error)
    answer: JsonObject
    try:
        params = _read_params(request.params)
        result = await operate(configs, owner, request.method, params, version_header)
        answer = {"result": result}
    except ApiError as error:
        version, _ = METHODS.get(request.method, (V1_0, _unknown))
        answer = {"error": json_rpc_error(error, version)}
    if not request.has_id:
        return None
    return {"jsonrpc": "2.0", "id": request.id} | answer


async def operate(
    configs: Configs, owner: str, method: str, params: Params, version_header: str | None
) -> JsonValue:
    """Return the result of a method. Raises ApiError if the call is refused."""
    version, operation = METHODS.get(method, (V1_0, _unknown))
    check_version(version_header, version)
    tenant = optional_text(params, "tenant") if version is V1_0 else None
    caller = Caller(owner=owner, tenant=tenant or "")
    try:
        return await operation(_Call(configs, caller, params, version))
    except InvalidPushConfigError as exc:
        raise ApiError(ErrorKind.PARAMS, str(exc)) from exc


def refusal(error: ApiError) -> JsonObject:
    """Return the answer to an invalid request, whose id and version are not known."""
    return {"jsonrpc": "2.0", "id": None, "error": json_rpc_error(error, V1_0)}


# --- requests ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    params: JsonValue
    id: JsonValue
    has_id: bool


def _read_request(body: bytes) -> _Request:
    document = read_object(body, "one JSON-RPC request", ErrorKind.REQUEST)
    if document.get("jsonrpc") != "2.0":
        raise ApiError(ErrorKind.REQUEST, 'jsonrpc: expected "2.0"')
    request_id, method = document.get("id"), document.get("method")
    if isinstance(request_id, bool) or not isinstance(request_id, str | int | None):
        raise ApiError(ErrorKind.REQUEST, "id: expected a string, an integer or null")
    if not isinstance(method, str):
        raise ApiError(ErrorKind.REQUEST, "method: expected a string")
    return _Request(method, document.get("params"), request_id, "id" in document)


def _read_params(params: JsonValue) -> Params:
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise ApiError(ErrorKind.PARAMS, "params: expected an object")
    return params


# --- methods -------------------------------------------------------------------------------------


async def _unknown(_: _Call) -> JsonValue:
    raise ApiError(ErrorKind.METHOD)


async def _set(call: _Call) -> JsonValue:
    config = parse_push_config(call.params, call.version)
    if config.task_id is None:
        member = "id" if call.version is V0_1 else "taskId"
        raise ApiError(ErrorKind.PARAMS, f"{member}: expected the id of a task")
    stored = await call.configs.put(call.caller, config.task_id, config, call.version)
    return format_push_config(stored, call.version)


async def _get_0_1(call: _Call) -> JsonValue:
    config = await call.configs.get(call.caller, text(call.params, "id"), None)
    return format_push_config(config, V0_1) if config else None  # 0.1 §7.6: null if none is set


# The members that name the task and the config. In 0.3, `get` may omit the config.
_NAMES = {V0_3: ("id", "pushNotificationConfigId"), V1_0: ("taskId", "id")}


async def _get(call: _Call) -> JsonValue:
    task, name = _NAMES[call.version]
    config_id = (
        optional_text(call.params, name) if call.version is V0_3 else text(call.params, name)
    )
    config = await call.configs.get(call.caller, text(call.params, task), config_id)
    if config is None:  # 1.0 §3.1.8 names this error for a config as well
        raise ApiError(ErrorKind.TASK, "the task has no such push config of yours")
    return format_push_config(config, call.version)


async def _delete(call: _Call) -> JsonValue:
    task, config_id = (text(call.params, name) for name in _NAMES[call.version])
    await call.configs.remove(call.caller, task, config_id)
    return None


async def _list_0_3(call: _Call) -> JsonValue:
    found = await call.configs.all(call.caller, text(call.params, "id"))  # 0.3 has no pages
    return [format_push_config(config, V0_3) for config in found]


async def _list_1_0(call: _Call) -> JsonValue:
    page = await call.configs.page(
        call.caller,
        text(call.params, "taskId"),
        size=number(call.params, "pageSize"),
        token=optional_text(call.params, "pageToken") or "",
    )
    return written(page)


METHODS: Mapping[str, tuple[WireVersion, Callable[[_Call], Awaitable[JsonValue]]]] = {
    "tasks/pushNotification/set": (V0_1, _set),
    "tasks/pushNotification/get": (V0_1, _get_0_1),
    "tasks/pushNotificationConfig/set": (V0_3, _set),
    "tasks/pushNotificationConfig/get": (V0_3, _get),
    "tasks/pushNotificationConfig/list": (V0_3, _list_0_3),
    "tasks/pushNotificationConfig/delete": (V0_3, _delete),
    "CreateTaskPushNotificationConfig": (V1_0, _set),
    "GetTaskPushNotificationConfig": (V1_0, _get),
    "ListTaskPushNotificationConfigs": (V1_0, _list_1_0),
    "DeleteTaskPushNotificationConfig": (V1_0, _delete),
}
