"""Configs that come with a message instead of through a method of their own.

1.0 `SendMessage`: `configuration.taskPushNotificationConfig`; 0.3 `message/send`:
`configuration.pushNotificationConfig`; 0.1 `tasks/send`: `pushNotification`; AgentVault
`tasks/send`: `webhookUrl`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pushkit.a2a.config import PushConfig
from pushkit.a2a.config_wire import parse_push_config
from pushkit.a2a.updates import WireVersion
from pushkit.bounded_json import JsonValue
from pushkit.errors import InvalidPushConfigError

__all__ = ["parse_inline_config"]

# Where each version has its config: in `configuration` or beside the message, under which names.
_IN_CONFIGURATION = {
    WireVersion.V1_0: ("taskPushNotificationConfig", "task_push_notification_config"),
    WireVersion.V0_3: ("pushNotificationConfig", "push_notification_config"),
}
_IN_PARAMS = {
    WireVersion.V0_1: ("pushNotification", "push_notification"),
    WireVersion.AGENTVAULT_0_2: ("webhookUrl", "webhook_url"),
}


def parse_inline_config(
    params: Mapping[str, JsonValue], version: WireVersion | str
) -> PushConfig | None:
    """Read the config that the params of a message carry, if they carry one.

    Its `task_id` is that of the message, where the message is of a task that exists, and its
    `tenant` that of the request.

    Args:
        params: The params of `SendMessage`, `message/send` or `tasks/send` (or the body of
            `POST /message:send`), as the client sent them.
        version: The version that the client speaks.

    Raises:
        InvalidPushConfigError: The config is malformed, or stands where another version has it.
        UnsupportedVersionError: A version that pushkit does not speak.
    """
    version = WireVersion.parse(str(version))
    configuration = _object(params, "configuration")
    _refuse_others(configuration, _IN_CONFIGURATION, version, "configuration.")
    _refuse_others(params, _IN_PARAMS, version, "")
    if version in _IN_CONFIGURATION:
        found = _one_of(configuration, _IN_CONFIGURATION[version], "configuration.")
    else:
        found = _one_of(params, _IN_PARAMS[version], "")
    if found is None:
        return None
    name, value = found
    config = parse_push_config(_config_object(name, value, version), version)
    return replace(
        config,
        task_id=config.task_id or _task_id(params, version),
        tenant=config.tenant or (_text(params, "tenant") if version is WireVersion.V1_0 else None),
    )


def _config_object(name: str, value: JsonValue, version: WireVersion) -> Mapping[str, JsonValue]:
    if version is WireVersion.AGENTVAULT_0_2:
        return {"webhookUrl": value}
    if not isinstance(value, dict):
        raise InvalidPushConfigError(f"{name}: expected an object")
    return value


def _task_id(params: Mapping[str, JsonValue], version: WireVersion) -> str | None:
    if version in _IN_PARAMS:
        return _text(params, "id")
    message = _object(params, "message")
    return _text(message, "taskId") or _text(message, "task_id")


def _refuse_others(
    document: Mapping[str, JsonValue],
    names: Mapping[WireVersion, tuple[str, ...]],
    version: WireVersion,
    path: str,
) -> None:
    for other, spellings in names.items():
        if other is not version and _one_of(document, spellings, path):
            raise InvalidPushConfigError(
                f"{path}{spellings[0]}: of {other}, but the client speaks {version}"
            )


def _one_of(
    document: Mapping[str, JsonValue], spellings: tuple[str, ...], path: str
) -> tuple[str, JsonValue] | None:
    found = [name for name in spellings if document.get(name) is not None]
    if len(found) > 1:
        raise InvalidPushConfigError(f"{path}{spellings[0]}: given in both spellings")
    return (path + found[0], document[found[0]]) if found else None


def _object(document: Mapping[str, JsonValue], name: str) -> Mapping[str, JsonValue]:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidPushConfigError(f"{name}: expected an object")
    return value


def _text(document: Mapping[str, JsonValue], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidPushConfigError(f"{name}: expected a string")
    return value or None
