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
from pushkit.a2a.table import snake_case
from pushkit.a2a.updates import WireVersion
from pushkit.bounded_json import JsonValue
from pushkit.errors import InvalidPushConfigError

# Where each version has its config: within `configuration`, or beside the message.
_PLACES = {
    WireVersion.V1_0: ("configuration.", "taskPushNotificationConfig"),
    WireVersion.V0_3: ("configuration.", "pushNotificationConfig"),
    WireVersion.V0_1: ("", "pushNotification"),
    WireVersion.AGENTVAULT_0_2: ("", "webhookUrl"),
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
    found = None
    for other, (path, name) in _PLACES.items():
        document = _object(params, "configuration") if path else params
        given = _either_spelling(document, path, name)
        if other is version:
            found = given
        elif given:
            raise InvalidPushConfigError(
                f"{path}{name}: of {other}, but the client speaks {version}"
            )
    if found is None:
        return None
    spelling, value = found
    if version is WireVersion.AGENTVAULT_0_2:
        value = {"webhookUrl": value}
    elif not isinstance(value, dict):
        raise InvalidPushConfigError(f"{spelling}: expected an object")
    config = parse_push_config(value, version)
    return replace(
        config,
        task_id=config.task_id or _task_id(params, version),
        tenant=config.tenant or (_text(params, "tenant") if version is WireVersion.V1_0 else None),
    )


def _task_id(params: Mapping[str, JsonValue], version: WireVersion) -> str | None:
    if not _PLACES[version][0]:
        return _text(params, "id")
    message = _object(params, "message")
    return _text(message, "taskId") or _text(message, "task_id")


def _either_spelling(
    document: Mapping[str, JsonValue], path: str, name: str
) -> tuple[str, JsonValue] | None:
    found = [each for each in (name, snake_case(name)) if document.get(each) is not None]
    if len(found) > 1:
        raise InvalidPushConfigError(f"{path}{name}: given in both spellings")
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
