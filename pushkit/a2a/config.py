"""Push-notification configs as clients register them (A2A 1.0 §4.3.1, 0.3 §6.8 and §6.10).

What a config carries becomes header values of requests, so it is checked where it comes in, however
it is made: a line break in a token would let a client write headers of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue as AnyJson

from pushkit.a2a.updates import WireVersion, no_members
from pushkit.a2a.wire import WireObject, checked
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidPushConfigError

__all__ = ["Authentication", "PushConfig", "format_push_config", "parse_push_config"]

_TOKEN = re.compile(r"[\x21-\x7e]+")
_CREDENTIALS = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """How the sender authenticates itself to the webhook.

    Raises:
        InvalidPushConfigError: A scheme or the credentials cannot be a header value.
    """

    schemes: tuple[str, ...] = ()
    credentials: str | None = field(default=None, repr=False)
    extra: Mapping[str, JsonValue] = field(default_factory=no_members, repr=False)

    def __post_init__(self) -> None:
        for scheme in self.schemes:
            _check_header_value("authentication scheme", scheme, _TOKEN)
        _check_header_value("authentication.credentials", self.credentials, _CREDENTIALS)

    @property
    def scheme(self) -> str | None:
        """The scheme that is used: the first; 1.0 knows only one."""
        return self.schemes[0] if self.schemes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig:
    """Where and how a client wants its notifications.

    The URL is only checked to be there: which destinations are allowed is the policy's question. A
    repr shows neither token nor URL, whose query may be a secret.
    `extra` holds unknown members, written back in the version that they came in (`origin`).

    Raises:
        InvalidPushConfigError: No URL, or a token that cannot be a header value.
    """

    url: str = field(repr=False)
    id: str | None = None
    token: str | None = field(default=None, repr=False)
    authentication: Authentication | None = None
    task_id: str | None = None
    tenant: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=no_members, repr=False)
    origin: WireVersion | None = None

    def __post_init__(self) -> None:
        if not self.url:
            raise InvalidPushConfigError("url: expected a string that is not empty")
        _check_header_value("token", self.token, _TOKEN)


_MAX_HEADER_VALUE = 4096


def _check_header_value(name: str, value: str | None, allowed: re.Pattern[str]) -> None:
    # RFC 9110 §5.5: CR, LF and NUL in a field value are an injection.
    if value is None:
        return
    if len(value) > _MAX_HEADER_VALUE:
        raise InvalidPushConfigError(
            f"{name}: {len(value)} characters, expected at most {_MAX_HEADER_VALUE}:"
            " it travels in a header"
        )
    if not allowed.fullmatch(value):
        raise InvalidPushConfigError(
            f"{name}: expected visible ASCII characters, without line breaks"
        )


# --- the wire ----------------------------------------------------------------------------------


class _AuthenticationModel(WireObject):
    schemes: list[str] | None = None  # 0.3
    scheme: str | None = None  # 1.0
    credentials: str | None = None


class _ConfigModel(WireObject):
    url: str
    id: str | None = None
    token: str | None = None
    authentication: _AuthenticationModel | None = None
    task_id: str | None = None
    tenant: str | None = None


class _WrappedConfigModel(WireObject):
    """0.3 §6.10, where the config stands in a member of its own."""

    task_id: str | None = None
    push_notification_config: dict[str, AnyJson]


def parse_push_config(document: Mapping[str, JsonValue], version: WireVersion) -> PushConfig:
    """Read a config as a client registers it.

    Args:
        document: 0.3 `PushNotificationConfig`, or the `TaskPushNotificationConfig` around it; the
            flat `TaskPushNotificationConfig` of 1.0. Empty strings count as absent.
        version: The version that the client speaks.

    Raises:
        InvalidPushConfigError: A member is missing, of a wrong type, or cannot be a header value.
    """
    if version is WireVersion.V1_0:
        return _read_config(document, version)
    if not _WRAPPERS.isdisjoint(document):
        wrapped = checked(_WrappedConfigModel, document, InvalidPushConfigError)
        return _read_config(wrapped.push_notification_config, version, wrapped.task_id)
    return _read_config(document, version)


_WRAPPERS = frozenset({"pushNotificationConfig", "push_notification_config"})


def _read_config(
    document: Mapping[str, JsonValue], version: WireVersion, task_id: str | None = None
) -> PushConfig:
    model = checked(_ConfigModel, document, InvalidPushConfigError)
    return PushConfig(
        url=model.url,
        id=model.id or None,
        token=model.token or None,
        authentication=_read_authentication(model.authentication, version),
        task_id=task_id or model.task_id or None,
        tenant=model.tenant or None,
        extra=dict(model.__pydantic_extra__),
        origin=version,
    )


def _read_authentication(
    model: _AuthenticationModel | None, version: WireVersion
) -> Authentication | None:
    if model is None:
        return None
    named = model.schemes or [] if version is WireVersion.V0_3 else [model.scheme or ""]
    schemes = tuple(scheme for scheme in named if scheme)
    if version is WireVersion.V1_0 and not schemes:
        if model.credentials:
            raise InvalidPushConfigError("authentication.scheme: expected a scheme's name")
        return None  # a message of defaults only is as good as none
    extra = dict(model.__pydantic_extra__)
    return Authentication(schemes=schemes, credentials=model.credentials or None, extra=extra)


def format_push_config(config: PushConfig, version: WireVersion) -> JsonObject:
    """Write a config; in 0.3 with its wrapper if it belongs to a task.

    What a version cannot say is dropped: in 0.3 the tenant, in 1.0 every scheme but the first.
    The result carries the token and the credentials.
    """
    kept = config.origin is version
    members: JsonObject = {
        "id": config.id,
        "url": config.url,
        "token": config.token,
        "authentication": _write_authentication(config.authentication, version, kept=kept),
    }
    extra = config.extra if kept else {}
    if version is WireVersion.V1_0:
        return _present(members | {"taskId": config.task_id, "tenant": config.tenant}) | dict(extra)
    written = _present(members) | dict(extra)
    if config.task_id is None:
        return written
    return {"taskId": config.task_id, "pushNotificationConfig": written}


def _write_authentication(
    authentication: Authentication | None, version: WireVersion, *, kept: bool
) -> JsonObject | None:
    if authentication is None:
        return None
    named: JsonObject = {"schemes": list(authentication.schemes)}
    if version is WireVersion.V1_0:
        if authentication.scheme is None:
            return None  # 1.0 §4.3.2: the scheme is required
        named = {"scheme": authentication.scheme}
    members = _present(named | {"credentials": authentication.credentials})
    return members | dict(authentication.extra) if kept else members


def _present(members: JsonObject) -> JsonObject:
    return {name: value for name, value in members.items() if value is not None}
