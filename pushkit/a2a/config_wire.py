"""Push-notification configs as clients register them.

A2A 1.0 §4.3.1, 0.3 §6.8 and §6.10, 0.1 §6.8 and §6.10, and AgentVault's `webhookUrl`. A client that
mixes the members of two versions is refused: whichever were dropped, it would not get what it asked
for.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue as AnyJson

from pushkit.a2a.config import Authentication, PushConfig
from pushkit.a2a.updates import WireVersion
from pushkit.a2a.wire import WireObject, checked
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidPushConfigError

__all__ = ["format_push_config", "parse_push_config"]


class _AuthenticationModel(WireObject):
    schemes: list[str] | None = None  # 0.1 to 0.3
    scheme: str | None = None  # 1.0
    credentials: str | None = None


class _PlainConfigModel(WireObject):
    """0.1, which has one config of a task and so no id of it."""

    url: str
    token: str | None = None
    authentication: _AuthenticationModel | None = None


class _ConfigModel(_PlainConfigModel):
    id: str | None = None
    task_id: str | None = None
    tenant: str | None = None


class _WebhookUrlModel(WireObject):
    """AgentVault, whose params of `tasks/send` have a URL and nothing else."""

    webhook_url: str


class _WrappedConfigModel(WireObject):
    """0.3 §6.10 and 0.1 §6.10, where the config stands in a member of its own."""

    id: str | None = None  # of the task, in 0.1
    task_id: str | None = None  # in 0.3
    push_notification_config: dict[str, AnyJson]


# Which members are whose, in both spellings.
_WRAPPERS = frozenset({"pushNotificationConfig", "push_notification_config"})
_WEBHOOK_URLS = frozenset({"webhookUrl", "webhook_url"})
_OF_A_CONFIG = frozenset({"url", "token", "authentication"})
_FOREIGN = {
    WireVersion.V0_1: _WEBHOOK_URLS,
    WireVersion.V0_3: _WEBHOOK_URLS,
    WireVersion.V1_0: _WEBHOOK_URLS | _WRAPPERS,
    WireVersion.AGENTVAULT_0_2: _WRAPPERS | _OF_A_CONFIG,
}


def parse_push_config(document: Mapping[str, JsonValue], version: WireVersion) -> PushConfig:
    """Read a config as a client registers it.

    Args:
        document: 0.1 and 0.3: `PushNotificationConfig`, or the `TaskPushNotificationConfig` around
            it; the flat `TaskPushNotificationConfig` of 1.0; AgentVault: an object with
            `webhookUrl`. Empty strings count as absent.
        version: The version that the client speaks.

    Raises:
        InvalidPushConfigError: A member is missing, of a wrong type, of another version, or cannot
            be a header value.
    """
    _refuse_foreign(document, _FOREIGN[version], version)
    if version is WireVersion.AGENTVAULT_0_2:
        webhook = checked(_WebhookUrlModel, document, InvalidPushConfigError)
        return PushConfig(
            url=webhook.webhook_url, extra=dict(webhook.__pydantic_extra__), origin=version
        )
    if _WRAPPERS.isdisjoint(document):
        return _read_config(document, version)
    _refuse_foreign(document, _OF_A_CONFIG, version)
    wrapped = checked(_WrappedConfigModel, document, InvalidPushConfigError)
    config = wrapped.push_notification_config
    _refuse_foreign(config, _FOREIGN[version] | _WRAPPERS, version)
    task_id = wrapped.id if version is WireVersion.V0_1 else wrapped.task_id
    return _read_config(config, version, task_id)


def _refuse_foreign(
    document: Mapping[str, JsonValue], foreign: frozenset[str], version: WireVersion
) -> None:
    found = sorted(foreign & document.keys())
    if found:
        raise InvalidPushConfigError(
            f"{found[0]}: not where {version} has it; a config has the members of one version"
        )


def _read_config(
    document: Mapping[str, JsonValue], version: WireVersion, task_id: str | None = None
) -> PushConfig:
    if version is WireVersion.V0_1:
        plain = checked(_PlainConfigModel, document, InvalidPushConfigError)
        return _push_config(plain, version, task_id=task_id or None)
    model = checked(_ConfigModel, document, InvalidPushConfigError)
    return _push_config(
        model,
        version,
        task_id=task_id or model.task_id or None,
        config_id=model.id or None,
        tenant=model.tenant or None,
    )


def _push_config(
    model: _PlainConfigModel,
    version: WireVersion,
    *,
    task_id: str | None,
    config_id: str | None = None,
    tenant: str | None = None,
) -> PushConfig:
    return PushConfig(
        url=model.url,
        id=config_id,
        token=model.token or None,
        authentication=_read_authentication(model.authentication, version),
        task_id=task_id,
        tenant=tenant,
        extra=dict(model.__pydantic_extra__),
        origin=version,
    )


# What needs no credentials of the client: the sender's own signature, or means beside the config.
_NEEDS_NO_CREDENTIALS = frozenset({"bearer", "jwt", "mtls", "mutualtls", "oauth2", "openidconnect"})


def _read_authentication(
    model: _AuthenticationModel | None, version: WireVersion
) -> Authentication | None:
    if model is None:
        return None
    one = version is WireVersion.V1_0
    foreign, name, own = (model.schemes, "schemes", "scheme")
    if not one:
        foreign, name, own = ([model.scheme] if model.scheme else None, "scheme", "schemes")
    if foreign:
        raise InvalidPushConfigError(f"authentication.{name}: {version} has {own} instead")
    named = [model.scheme or ""] if one else model.schemes or []
    schemes = tuple(scheme for scheme in named if scheme)
    if not schemes and model.credentials:
        raise InvalidPushConfigError(f"authentication.{own}: expected a scheme's name")
    if one and not schemes:
        return None  # a message of defaults only is as good as none
    extra = dict(model.__pydantic_extra__)
    found = Authentication(schemes=schemes, credentials=model.credentials or None, extra=extra)
    if schemes and not model.credentials and not _satisfiable(schemes):
        raise InvalidPushConfigError(
            "authentication.credentials: expected, because none of the schemes works without;"
            " Bearer does, with the sender's own signature"
        )
    return found


def _satisfiable(schemes: tuple[str, ...]) -> bool:
    return any(scheme.lower() in _NEEDS_NO_CREDENTIALS for scheme in schemes)


def format_push_config(config: PushConfig, version: WireVersion) -> JsonObject:
    """Write a config; in 0.1 and 0.3 with its wrapper if it belongs to a task.

    What a version cannot say is dropped: before 1.0 the tenant, in 0.1 the id, in 1.0 every scheme
    but the first, for AgentVault everything but the URL. The result carries the token and the
    credentials.
    """
    kept = config.origin is version
    extra = dict(config.extra) if kept else {}
    if version is WireVersion.AGENTVAULT_0_2:
        return {"webhookUrl": config.url} | extra
    members: JsonObject = {
        "id": None if version is WireVersion.V0_1 else config.id,
        "url": config.url,
        "token": config.token,
        "authentication": _write_authentication(config.authentication, version, kept=kept),
    }
    if version is WireVersion.V1_0:
        return _present(members | {"taskId": config.task_id, "tenant": config.tenant}) | extra
    written = _present(members) | extra
    if config.task_id is None:
        return written
    address = "id" if version is WireVersion.V0_1 else "taskId"
    return {address: config.task_id, "pushNotificationConfig": written}


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
