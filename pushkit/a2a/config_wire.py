"""Push-notification configs as clients register them.

A2A 1.0 §4.3.1, 0.3 §6.8 and §6.10, 0.1 §6.8 and §6.10, and AgentVault's `webhookUrl`. A client that
mixes the members of two versions is refused: whichever were dropped, it would not get what it asked
for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pushkit.a2a.config import Authentication, PushConfig
from pushkit.a2a.kinds import DATA_OBJECT, EXACT_TEXT, TEXT, TEXTS, one
from pushkit.a2a.table import Kind, Lost, Member, Need, Table, Writing, json_copy, reading
from pushkit.a2a.updates import WireVersion
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidPushConfigError

__all__ = ["format_push_config", "parse_push_config"]

# What needs no credentials of the client: the sender's own signature, or means beside the config.
_NEEDS_NO_CREDENTIALS = frozenset({"bearer", "jwt", "mtls", "mutualtls", "oauth2", "openidconnect"})


def _authentication(version: WireVersion, own: str, foreign: str, schemes: Kind) -> Table:
    def build(found: dict[str, Any], rest: JsonObject) -> Authentication | None:
        if rest.pop(foreign, None):
            raise InvalidPushConfigError(f"authentication.{foreign}: {version} has {own} instead")
        schemes = tuple(filter(None, found.get("schemes", ())))
        credentials = found.get("credentials")
        if not schemes and credentials:
            raise InvalidPushConfigError(f"authentication.{own}: expected a scheme's name")
        if not schemes and own == "scheme":
            return None  # a message of defaults only is as good as none
        made = Authentication(schemes=schemes, credentials=credentials, extra=rest)
        known = {scheme.lower() for scheme in schemes}
        if schemes and not credentials and known.isdisjoint(_NEEDS_NO_CREDENTIALS):
            raise InvalidPushConfigError(
                "authentication.credentials: expected, because none of the schemes works without;"
                " Bearer does, with the sender's own signature"
            )
        return made

    return Table(
        Authentication,
        Member("schemes", own, schemes),
        Member("credentials", "credentials", TEXT),
        build=build,
    )


_ALL_SCHEMES = Kind(read=TEXTS.read, write=TEXTS.write, absent=(), empty_says=True)
_FIRST_SCHEME = Kind(
    read=lambda value: (TEXT.read(value) or "",),
    write=lambda value, writing: TEXT.write(value[0], writing),
    absent=(),
)
# 0.3 §6.9, 1.0 §4.3.2.
AUTHENTICATION = {
    WireVersion.V0_1: _authentication(WireVersion.V0_1, "schemes", "scheme", _ALL_SCHEMES),
    WireVersion.V0_3: _authentication(WireVersion.V0_3, "schemes", "scheme", _ALL_SCHEMES),
    WireVersion.V1_0: _authentication(WireVersion.V1_0, "scheme", "schemes", _FIRST_SCHEME),
}
CONFIGS = {
    WireVersion.V0_1: Table(  # §6.8; one config of a task, and so no id of it
        PushConfig,
        Member("url", "url", EXACT_TEXT, Need.BOTH),
        Member("token", "token", TEXT),
        Member("authentication", "authentication", one(AUTHENTICATION[WireVersion.V0_1])),
        Lost("id"),
        Lost("task_id"),  # stands around it
        Lost("tenant"),
        origin=WireVersion.V0_1,
    ),
    WireVersion.V0_3: Table(  # §6.8
        PushConfig,
        Member("id", "id", TEXT),
        Member("url", "url", EXACT_TEXT, Need.BOTH),
        Member("token", "token", TEXT),
        Member("authentication", "authentication", one(AUTHENTICATION[WireVersion.V0_3])),
        Member("task_id", "taskId", TEXT),  # read; written around it
        Member("tenant", "tenant", TEXT),  # read, not written
        take=lambda config: (config.id, config.url, config.token, config.authentication, "", ""),
        origin=WireVersion.V0_3,
    ),
    WireVersion.V1_0: Table(  # §4.3.1
        PushConfig,
        Member("id", "id", TEXT),
        Member("url", "url", EXACT_TEXT, Need.BOTH),
        Member("token", "token", TEXT),
        Member("authentication", "authentication", one(AUTHENTICATION[WireVersion.V1_0])),
        Member("task_id", "taskId", TEXT),
        Member("tenant", "tenant", TEXT),
        origin=WireVersion.V1_0,
    ),
    WireVersion.AGENTVAULT_0_2: Table(  # params of `tasks/send` have a URL and nothing else
        PushConfig,
        Member("url", "webhookUrl", EXACT_TEXT, Need.BOTH),
        Lost("id"),
        Lost("token"),
        Lost("authentication"),
        Lost("task_id"),
        Lost("tenant"),
        origin=WireVersion.AGENTVAULT_0_2,
    ),
}
# 0.1 §6.10, 0.3 §6.10: where the config stands in a member of its own, beside its task.
_TASK_IDS = {WireVersion.V0_1: "id", WireVersion.V0_3: "taskId"}
_WRAPPED = {
    version: Table(
        dict,
        Member("task_id", name, TEXT),
        Member("config", "pushNotificationConfig", DATA_OBJECT, Need.BOTH),
        extra="",
    )
    for version, name in _TASK_IDS.items()
}

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
    with reading(InvalidPushConfigError):
        copy = json_copy(document)
        if _WRAPPERS.isdisjoint(copy):
            config: PushConfig = CONFIGS[version].read(copy)
            return config
        _refuse_foreign(copy, _OF_A_CONFIG, version)
        wrapped = _WRAPPED[version].read(copy)
        _refuse_foreign(wrapped["config"], _FOREIGN[version] | _WRAPPERS, version)
        config = CONFIGS[version].read(wrapped["config"])
        return replace(config, task_id=wrapped.get("task_id") or config.task_id)


def _refuse_foreign(
    document: Mapping[str, JsonValue], foreign: frozenset[str], version: WireVersion
) -> None:
    found = sorted(foreign & document.keys())
    if found:
        raise InvalidPushConfigError(
            f"{found[0]}: not where {version} has it; a config has the members of one version"
        )


def format_push_config(config: PushConfig, version: WireVersion) -> JsonObject:
    """Write a config; in 0.1 and 0.3 with its wrapper if it belongs to a task.

    What a version cannot say is dropped: before 1.0 the tenant, in 0.1 the id, in 1.0 every scheme
    but the first, for AgentVault everything but the URL. The result carries the token and the
    credentials.
    """
    if version is WireVersion.V1_0 and config.authentication and not config.authentication.schemes:
        config = replace(config, authentication=None)  # 1.0 §4.3.2: the scheme is required
    written = CONFIGS[version].write(config, Writing(keep=config.origin is version))
    if config.task_id is None or version not in _TASK_IDS:
        return written
    return {_TASK_IDS[version]: config.task_id, "pushNotificationConfig": written}
