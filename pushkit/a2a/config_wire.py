"""Push-notification configs as clients register them.

A2A 1.0 §4.3.1, 0.3 §6.8 and §6.10, 0.1 §6.8 and §6.10, and AgentVault's `webhookUrl`. A client that
mixes the members of two versions is refused: whichever were dropped, it would not get what it asked
for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pushkit.a2a.columns import Elsewhere, Row, columns, one_of
from pushkit.a2a.config import Authentication, PushConfig
from pushkit.a2a.kinds import DATA_OBJECT, EXACT_TEXT, TEXT, TEXTS
from pushkit.a2a.table import Build, Kind, Member, Need, Table, Writing, json_copy, reading
from pushkit.a2a.updates import WireVersion
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidPushConfigError

# What needs no credentials of the client: the sender's own signature, or means beside the config.
_NEEDS_NO_CREDENTIALS = frozenset({"bearer", "jwt", "mtls", "mutualtls", "oauth2", "openidconnect"})


V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0
_NAMES = {V0_1: ("schemes", "scheme"), V0_3: ("schemes", "scheme"), V1_0: ("scheme", "schemes")}


def _build_authentication(version: WireVersion) -> Build:
    own, foreign = _NAMES[version]

    def build(found: dict[str, Any], rest: JsonObject) -> Authentication | None:
        if rest.pop(foreign, None):
            raise InvalidPushConfigError(f"authentication.{foreign}: {version} has {own} instead")
        schemes = tuple(filter(None, found.get("schemes", ())))
        credentials = found.get("credentials")
        if not schemes and credentials:
            raise InvalidPushConfigError(f"authentication.{own}: expected a scheme's name")
        if not schemes and version is V1_0:
            return None  # a message of defaults only is as good as none
        made = Authentication(schemes=schemes, credentials=credentials, extra=rest)
        known = {scheme.lower() for scheme in schemes}
        if schemes and not credentials and known.isdisjoint(_NEEDS_NO_CREDENTIALS):
            raise InvalidPushConfigError(
                "authentication.credentials: expected, because none of the schemes works without;"
                " Bearer does, with the sender's own signature"
            )
        return made

    return build


_ALL = Kind(read=TEXTS.read, write=TEXTS.write, absent=(), empty_says=True)
_FIRST = Kind(
    read=lambda value: (TEXT.read(value) or "",),
    write=lambda value, writing: TEXT.write(value[0], writing),
    absent=(),
)
_SCHEMES = {V0_1: _ALL, V0_3: _ALL, V1_0: _FIRST}
# fmt: off
AUTHENTICATION = columns(  # 0.3 §6.9, 1.0 §4.3.2
    Authentication,
    Row("schemes",     _SCHEMES, "schemes",     "schemes",     "scheme"),
    Row("credentials", TEXT,     "credentials", "credentials", "credentials"),
    build=_build_authentication,
)
_AUTH = one_of(AUTHENTICATION) | {WireVersion.AGENTVAULT_0_2: TEXT}  # which has none
_AROUND = Elsewhere("`id` around it")
CONFIGS = columns(  # 0.1 §6.8, 0.3 §6.8, 1.0 §4.3.1; params of AgentVault's `tasks/send`
    PushConfig,
    Row("id",      TEXT,       None,      "id",      "id",      None),
    Row("url",     EXACT_TEXT, "url",     "url",     "url",     "webhookUrl", need=Need.BOTH),
    Row("token",   TEXT,       "token",   "token",   "token",   None),
    Row("authentication", _AUTH, *["authentication"] * 3, None),
    Row("task_id", TEXT,       _AROUND,   "taskId",  "taskId",  None),
    Row("tenant",  TEXT,       None,      "tenant",  "tenant",  None),
    has_origin=True,
)
# fmt: on
# 0.1 §6.10, 0.3 §6.10: where the config stands in a member of its own, beside its task.
_TASK_IDS = {V0_1: "id", V0_3: "taskId"}
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
    writing = Writing(config.origin is version)
    if version not in _TASK_IDS:
        return CONFIGS[version].write(config, writing)
    written = CONFIGS[version].write(replace(config, task_id=None, tenant=None), writing)
    if config.task_id is None:
        return written
    return {_TASK_IDS[version]: config.task_id, "pushNotificationConfig": written}
