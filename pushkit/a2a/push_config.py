"""Push-notification configs: their neutral form, and reading and writing each version's.

A2A 1.0 §4.3.1, 0.3 §6.8 and §6.10, 0.1 §6.8 and §6.10, and AgentVault's `webhookUrl`. A client that
mixes the members of two versions is refused: if some were dropped, it would not get what it asked
for.

Values of a config become header values of requests, so the classes check them: a line break in a
token would let a client write headers of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pushkit.a2a.kinds import CONTENT, DATA_OBJECT, EXACT_TEXT, TEXT, TEXTS, one
from pushkit.a2a.members import COLUMNS, columns, one_of, row
from pushkit.a2a.table import (
    Build,
    Kind,
    Member,
    Need,
    Table,
    Writing,
    json_copy,
    json_object,
    reading,
    snake_case,
)
from pushkit.a2a.updates import WireVersion
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidPushConfigError

_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110 §5.6.2: token
_TOKEN = re.compile(r"[\x21-\x7e]+")
_CREDENTIALS = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


_MAX_SCHEMES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """How the sender authenticates itself to the webhook.

    Raises:
        InvalidPushConfigError: A scheme or the credentials cannot be a header value.
    """

    schemes: tuple[str, ...] = ()
    credentials: str | None = field(default=None, repr=False)
    extra: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.schemes, str):  # each letter would be a scheme
            raise InvalidPushConfigError("authentication.schemes: found a string, expected a list")
        if not isinstance(self.schemes, Sequence):
            found = type(self.schemes).__name__
            raise InvalidPushConfigError(f"authentication.schemes: found {found}, expected a list")
        if len(self.schemes) > _MAX_SCHEMES:
            raise InvalidPushConfigError(
                f"authentication.schemes: {len(self.schemes)}, expected at most {_MAX_SCHEMES}"
            )
        for scheme in self.schemes:
            _check_header_value("authentication scheme", scheme, _SCHEME)
        _check_header_value("authentication.credentials", self.credentials, _CREDENTIALS)

    @property
    def scheme(self) -> str | None:
        """The scheme that is used: the first. 1.0 has only one."""
        return self.schemes[0] if self.schemes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConfig:
    """Where and how a client wants its notifications.

    The URL must be present; the destination policy decides whether it is allowed. A repr shows
    neither the token nor the URL, whose query may be a secret. `extra` has the unknown members,
    which are written back in the version that they were read in (`origin`).

    Raises:
        InvalidPushConfigError: No URL, a token that cannot be a header value, or a member of a
            wrong type.
    """

    url: str = field(repr=False)
    id: str | None = None
    token: str | None = field(default=None, repr=False)
    authentication: Authentication | None = None
    task_id: str | None = None
    tenant: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict, repr=False)
    origin: WireVersion | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.url, str) and self.url):
            raise InvalidPushConfigError("url: expected a string that is not empty")
        _check_header_value("token", self.token, _TOKEN)
        kinds = {"id": str, "task_id": str, "tenant": str, "authentication": Authentication}
        for name, kind in kinds.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                found = type(value).__name__
                raise InvalidPushConfigError(f"{name}: found {found}, expected {kind.__name__}")


_MAX_HEADER_VALUE = 4096


def _check_header_value(name: str, value: str | None, allowed: re.Pattern[str]) -> None:
    # RFC 9110 §5.5: CR, LF or NUL in a field value would be a header injection.
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidPushConfigError(f"{name}: found {type(value).__name__}, expected a string")
    if len(value) > _MAX_HEADER_VALUE:
        raise InvalidPushConfigError(
            f"{name}: {len(value)} characters, expected at most {_MAX_HEADER_VALUE}:"
            " it travels in a header"
        )
    if not allowed.fullmatch(value):
        raise InvalidPushConfigError(
            f"{name}: expected visible ASCII characters, without line breaks"
        )


# --- the versions' forms -------------------------------------------------------------------------

# Schemes without credentials of the client: by the sender's signature, or by other means.
_NEEDS_NO_CREDENTIALS = frozenset({"bearer", "jwt", "mtls", "mutualtls", "oauth2", "openidconnect"})


V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0
_NAMES = {V0_1: ("schemes", "scheme"), V0_3: ("schemes", "scheme"), V1_0: ("scheme", "schemes")}


def _build_authentication(version: WireVersion) -> Build:
    own, foreign = _NAMES[version]

    def build(found: dict[str, Any], rest: JsonObject) -> Authentication | None:
        if rest.pop(foreign, None):
            others = " and ".join(other for other, names in _NAMES.items() if names[0] == foreign)
            raise InvalidPushConfigError(
                f"authentication.{foreign}: a member of {others}; {version} has {own} instead"
            )
        schemes = tuple(filter(None, found.get("schemes", ())))
        credentials = found.get("credentials")
        if not schemes and credentials:
            raise InvalidPushConfigError(f"authentication.{own}: expected a scheme's name")
        if not schemes and version is V1_0:
            return None  # in ProtoJSON, a message of defaults is the same as none
        made = Authentication(schemes=schemes, credentials=credentials, extra=rest)
        known = {scheme.lower() for scheme in schemes}
        if schemes and not credentials and known.isdisjoint(_NEEDS_NO_CREDENTIALS):
            raise InvalidPushConfigError(
                "authentication.credentials: required by all of the schemes; Bearer works without,"
                " by the sender's own signature"
            )
        return made

    return build


_ALL = Kind(read=TEXTS.read, write=TEXTS.write, absent=(), writes_empty=True)
_FIRST = Kind(
    read=lambda value, _: (TEXT.read(value, None) or "",),
    write=lambda value, writing: TEXT.write(value[0], writing),
    absent=(),
)
_SCHEMES = {V0_1: _ALL, V0_3: _ALL, V1_0: _FIRST}
# fmt: off
AUTHENTICATION = columns(  # 0.3 §6.9, 1.0 §4.3.2
    Authentication,
    row("schemes",     _SCHEMES, "schemes",     "schemes",     "scheme"),
    row("credentials", TEXT,     "credentials", "credentials", "credentials"),
    build=_build_authentication,
)
_AUTH = one_of(AUTHENTICATION) | {WireVersion.AGENTVAULT_0_2: TEXT}  # it has no such member
CONFIGS = columns(  # 0.1 §6.8, 0.3 §6.8, 1.0 §4.3.1; params of AgentVault's `tasks/send`
    PushConfig,
    row("id",      TEXT,       None,      "id",      "id",      None),
    row("url",     EXACT_TEXT, "url",     "url",     "url",     "webhookUrl", need=Need.BOTH),
    row("token",   TEXT,       "token",   "token",   "token",   None),
    row("authentication", _AUTH, *["authentication"] * 3, None),
    row("task_id", TEXT,       None,      "taskId",  "taskId",  None),
    row("tenant",  TEXT,       None,      "tenant",  "tenant",  None),
    has_origin=True,
)
# fmt: on
# 0.1 §6.10, 0.3 §6.10: an object around the config, with its task's id.
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

# Members of one version that another refuses, in both spellings.
_WRAPPERS = frozenset({"pushNotificationConfig", "push_notification_config"})
_WEBHOOK_URLS = frozenset({"webhookUrl", "webhook_url"})
_CONFIG_MEMBERS = frozenset({"url", "token", "authentication"})
_FOREIGN = {
    WireVersion.V0_1: _WEBHOOK_URLS,
    WireVersion.V0_3: _WEBHOOK_URLS,
    WireVersion.V1_0: _WEBHOOK_URLS | _WRAPPERS,
    WireVersion.AGENTVAULT_0_2: _WRAPPERS | _CONFIG_MEMBERS,
}


def parse_push_config(document: Mapping[str, JsonValue], version: WireVersion) -> PushConfig:
    """Read a config that a client registers.

    Args:
        document: In 0.1 and 0.3 a `PushNotificationConfig`, or the `TaskPushNotificationConfig`
            around it; in 1.0 the flat `TaskPushNotificationConfig`; for AgentVault an object with
            `webhookUrl`. Empty strings count as absent.
        version: The version that the client speaks.

    Raises:
        InvalidPushConfigError: A member is missing, of a wrong type, of another version, or cannot
            be a header value.
    """
    with reading(InvalidPushConfigError):
        copy = json_copy(document)
        _refuse_foreign(copy, _FOREIGN[version], version)
        if _WRAPPERS.isdisjoint(copy):
            config: PushConfig = CONFIGS[version].read(copy)
            return config
        _refuse_foreign(copy, _CONFIG_MEMBERS, version)
        wrapped = _WRAPPED[version].read(copy)
        _refuse_foreign(wrapped["config"], _FOREIGN[version] | _WRAPPERS, version)
        config = CONFIGS[version].read(wrapped["config"])
        return replace(config, task_id=wrapped.get("task_id") or config.task_id)


def _refuse_foreign(
    document: Mapping[str, JsonValue], foreign: frozenset[str], version: WireVersion
) -> None:
    found = sorted(foreign & document.keys())
    if found:
        name = found[0]
        owners = [other.value for other, theirs in _FOREIGN.items() if name not in theirs]
        where = f"{' and '.join(owners)} {'has' if len(owners) == 1 else 'have'} it"
        if version.value in owners:  # beside the wrapper, or the wrapper within itself
            where = f"expected it {'once' if name in _WRAPPERS else 'in pushNotificationConfig'}"
        raise InvalidPushConfigError(f"{name}: {version} has no such member here; {where}")


def format_push_config(config: PushConfig, version: WireVersion) -> JsonObject:
    """Write a config; in 0.1 and 0.3 with its wrapper if it belongs to a task.

    Values that a version cannot carry are dropped: before 1.0 the tenant, in 0.1 the id, in 1.0
    every scheme but the first, for AgentVault everything but the URL. The result includes the token
    and the credentials.
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


# --- configs in the params of a message ----------------------------------------------------------

# The methods of a message, over JSON-RPC: for one answer, and for a stream of events.
SENDS = {V0_3: "message/send", V1_0: "SendMessage"}
STREAMS = {V0_3: "message/stream", V1_0: "SendStreamingMessage"}

# Within `configuration` in 0.3 and 1.0, beside the message in 0.1 and AgentVault.
_WITHIN = {
    WireVersion.V1_0: "taskPushNotificationConfig",
    WireVersion.V0_3: "pushNotificationConfig",
}
_BESIDE = {WireVersion.V0_1: "pushNotification", WireVersion.AGENTVAULT_0_2: "webhookUrl"}
INLINE_MEMBERS = {*_WITHIN.values(), *map(snake_case, _WITHIN.values()), "pushNotification"}
_CONFIGURATION = Table(dict, *(Member(v, name, CONTENT) for v, name in _WITHIN.items()), extra="")
_TASK_ID = Table(dict, Member("task_id", "taskId", TEXT), extra="")
_PARAMS = {
    version: Table(
        dict,
        Member("configuration", "configuration", one(_CONFIGURATION)),
        *(Member(v, name, CONTENT) for v, name in _BESIDE.items()),
        *([Member("tenant", "tenant", TEXT)] if version is WireVersion.V1_0 else []),
        Member("id", "id", TEXT)
        if version in _BESIDE
        else Member("message", "message", one(_TASK_ID)),
        extra="",
    )
    for version in COLUMNS
}


def parse_inline_config(
    params: Mapping[str, JsonValue], version: WireVersion | str
) -> PushConfig | None:
    """Read the config in the params of a message; None if there is none.

    Its `task_id` is that of the message, if the message belongs to an existing task, whatever the
    config says (in 1.0 nothing), and its `tenant` is that of the request.

    Args:
        params: The params of `SendMessage`, `message/send` or `tasks/send` (or the body of
            `POST /message:send`, with the `tenant` of its path), as the client sent them.
        version: The version that the client speaks.

    Raises:
        InvalidPushConfigError: The config is malformed, of another tenant, or in the place where
            another version has it.
        UnsupportedVersionError: A version that pushkit does not speak.
    """
    version = WireVersion.parse(str(version))
    with reading(InvalidPushConfigError):
        found: dict[str, Any] = _PARAMS[version].read(json_object(params))
    configs = {v: found[v] for v in _BESIDE if v in found} | found.get("configuration", {})
    for other in configs:
        if other is version:
            continue
        name = f"configuration.{_WITHIN[other]}" if other in _WITHIN else _BESIDE[other]
        raise InvalidPushConfigError(
            f"{name}: a member of {other}, but the client speaks {version}"
        )
    if version not in configs:
        return None
    value = configs[version]
    if version is WireVersion.AGENTVAULT_0_2:
        value = {"webhookUrl": value}
    config = parse_push_config(value, version)
    tenant = found.get("tenant")
    if config.tenant not in (None, tenant):  # the agent authorized the request's tenant
        raise InvalidPushConfigError("tenant: expected the request's tenant in the config, too")
    # The config's own task id could name a task that the message does not belong to.
    task_id = found.get("id") or found.get("message", {}).get("task_id")
    return replace(config, task_id=task_id, tenant=tenant)


def has_inline_config(params: Mapping[str, JsonValue]) -> bool:
    """Return whether the configuration of a message has a config, in whatever version."""
    return not INLINE_MEMBERS.isdisjoint(configuration_of(params))


def configuration_of(params: Mapping[str, JsonValue]) -> JsonObject:
    """Return the configuration of a message; empty if it has none."""
    found = params.get("configuration")
    return found if isinstance(found, dict) else {}


def without_inline_config(params: Mapping[str, JsonValue], *also: str) -> JsonObject:
    """Return the params of a message without its config, and without members of its configuration.

    Nor do they keep a configuration that is empty then: some agents expect members in it.
    """
    gone = INLINE_MEMBERS.union(also)
    left = {name: each for name, each in configuration_of(params).items() if name not in gone}
    changed = {**params, "configuration": left}
    if not left:
        del changed["configuration"]
    return changed
