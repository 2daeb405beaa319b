"""The members of each object in A2A 0.1, 0.3 and 1.0, and their names: one row for all versions.

A row has the neutral name, the kind of value, and the names in 0.1, in 0.3 and in 1.0 (see `row`).
Push configs are in `push_config.py`, AgentVault in `agentvault.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pushkit.a2a.kinds import (
    BASE64,
    COUNT,
    DATA,
    DATA_OBJECT,
    EXACT_FLAG,
    EXACT_TEXT,
    FLAG,
    INDEX,
    METADATA,
    TEXT,
    TEXTS,
    TIME,
    many,
    names,
    one,
    parts,
)
from pushkit.a2a.table import (
    AmbiguousError,
    Build,
    Fixed,
    Kind,
    Lost,
    Member,
    MismatchError,
    Need,
    Table,
    lost,
)
from pushkit.a2a.updates import (
    Artifact,
    ArtifactUpdate,
    DataPart,
    Message,
    RawPart,
    Role,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    TextPart,
    UnknownPart,
    UrlPart,
    WireVersion,
)
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.record import field, record

V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0
BOTH, WRITER = Need.BOTH, Need.WRITER

# --- rows and columns ----------------------------------------------------------------------------

COLUMNS = (WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0, WireVersion.AGENTVAULT_0_2)

Tables: TypeAlias = Mapping[WireVersion, Table]
"""The same object as each version has it."""
Row: TypeAlias = Mapping[WireVersion, Sequence[Member | Lost]]
"""A member: its rows in the table of each version."""


class ReadOnly(str):
    """A name that the version does not define, but senders use: read, and never written."""

    __slots__ = ()


def row(
    neutral: str,  # the neutral attribute; empty if there is none
    kind: Kind | Mapping[WireVersion, Kind],  # by version where they differ
    # In the order of `COLUMNS`: two if the version writes both; None if it has no such member.
    *names: str | tuple[str, str] | None,
    need: Need = Need.NOBODY,
    needed_in: WireVersion | None = None,  # the one version whose writer needs it, if not all
    written: str = "",  # as in `Member`
    strict: bool = False,  # as in `Member`
) -> Row:
    """Return a member's rows in the table of each version."""
    rows: dict[WireVersion, list[Member | Lost]] = {}
    for version, name in zip(COLUMNS, names, strict=False):
        its = kind if isinstance(kind, Kind) else kind[version]
        if isinstance(name, tuple):  # readers accept either
            rows[version] = [
                Member(neutral, each, its, Need.WRITER, strict=strict) for each in name
            ]
        elif name is None:
            rows[version] = [Lost(neutral, its.absent)] if neutral else []
        else:
            needed = Need.WRITER if version is needed_in else need
            read_only = isinstance(name, ReadOnly)
            rows[version] = [
                Member(
                    *(neutral, name, its, needed),
                    written=written,
                    read_only=read_only,
                    strict=strict,
                )
            ]
    return rows


def columns(
    node: type[Any],
    *rows: Row,
    kind: str = "",  # the value of `kind` in 0.3
    has_origin: bool = False,  # whether the class has `origin`, the version that was read
    build: Callable[[WireVersion], Build] | None = None,  # for each version, as in `Table`
) -> dict[WireVersion, Table]:
    """Return the table of each version that the rows have a column for."""
    return {
        version: Table(
            node,
            *([Fixed("kind", kind)] if kind and version is WireVersion.V0_3 else []),
            *(made for each in rows for made in each[version]),
            origin=version if has_origin else None,
            build=build(version) if build else None,
        )
        for version in rows[0]
    }


def one_of(tables: Tables) -> dict[WireVersion, Kind]:
    """Return the kind of a member that holds one such object, for each version."""
    return {version: one(table) for version, table in tables.items()}


def many_of(tables: Tables) -> dict[WireVersion, Kind]:
    """Return the kind of a member that holds a list of such objects, for each version."""
    return {version: many(table) for version, table in tables.items()}


# --- parts ---------------------------------------------------------------------------------------

# In 0.1 to 0.3 a member names the kind of a part (§6.5 of each): `type` in 0.1, `kind` later. In
# 1.0 a part has one of four members, which determines its kind (§4.1.6).

# The official SDK's mark on a value that it wrapped into an object.
_WRAPPED = "data_part_compat"


@record(frozen=True, slots=True, kw_only=True)
class _File:
    """The object `file` of 0.1 to 0.3; the neutral form has its members in the part itself."""

    raw: bytes | None = None
    url: str | None = None
    media_type: str | None = None
    filename: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


def _file(found: dict[str, Any], rest: JsonObject) -> _File:
    if ("raw" in found) == ("url" in found):
        kind = AmbiguousError if found.keys() >= {"raw", "url"} else MismatchError
        raise kind("expected either bytes or uri")
    return _File(**found, extra=rest)


_FILE = Table(  # 0.3 §6.6
    _File,
    Member("raw", "bytes", BASE64, strict=True),
    Member("url", "uri", EXACT_TEXT, strict=True),
    Member("media_type", "mimeType", TEXT),
    Member("filename", "name", TEXT),
    build=_file,
)


def _file_part(found: dict[str, Any], rest: JsonObject) -> RawPart | UrlPart:
    file: _File = found.pop("file")
    about = found | {"media_type": file.media_type, "filename": file.filename}
    if file.extra:  # kept under the name of its object
        rest["file"] = dict(file.extra)
    if file.raw is not None:
        return RawPart(raw=file.raw, extra=rest, **about)
    return UrlPart(url=file.url or "", extra=rest, **about)


def _file_members(part: RawPart | UrlPart) -> tuple[object, ...]:
    kept = part.extra.get("file")
    file = _File(
        raw=getattr(part, "raw", None),
        url=getattr(part, "url", None),
        media_type=part.media_type,
        filename=part.filename,
        extra=kept if isinstance(kept, dict) else {},
    )
    return file, part.metadata


def _unwrapped(found: dict[str, Any], rest: JsonObject) -> DataPart:
    data, metadata = found["data"], found.get("metadata", {})
    # Unwrap only values that `_wrapped` could have made, so that others stay unchanged.
    if metadata.get(_WRAPPED) is True and data.keys() == {"value"}:
        value = data["value"]
        if not isinstance(value, dict):
            data = value
            metadata = {name: item for name, item in metadata.items() if name != _WRAPPED}
    return DataPart(data=data, metadata=metadata, extra=rest)


def _wrapped(part: DataPart) -> tuple[object, ...]:
    if isinstance(part.data, dict):
        return part.data, part.metadata
    return {"value": part.data}, {**part.metadata, _WRAPPED: True}


def _typed(discriminator: str) -> dict[str, Table]:
    """Return the tables of parts by the value of the discriminating member; "" for any other."""
    metadata = Member("metadata", "metadata", METADATA)
    without = lost("media_type", "filename")
    return {
        "text": Table(  # 0.3 §6.5.1
            TextPart,
            Fixed(discriminator, "text"),
            Member("text", "text", EXACT_TEXT, Need.BOTH),
            metadata,
            *without,
        ),
        "file": Table(  # 0.3 §6.5.2
            RawPart | UrlPart,
            Fixed(discriminator, "file"),
            Member("file", "file", one(_FILE), Need.BOTH),
            metadata,
            build=_file_part,
            values=_file_members,
        ),
        "data": Table(  # 0.3 §6.5.3
            DataPart,
            Fixed(discriminator, "data"),
            Member("data", "data", DATA_OBJECT, Need.BOTH),
            metadata,
            *without,
            build=_unwrapped,
            values=_wrapped,
        ),
        "": Table(UnknownPart, metadata, *without),
    }


_ABOUT = (
    Member("metadata", "metadata", METADATA),
    Member("filename", "filename", TEXT),
    Member("media_type", "mediaType", TEXT),
)
PARTS: dict[WireVersion, dict[str, Table]] = {
    V0_1: _typed("type"),
    V0_3: _typed("kind"),
    V1_0: {
        "text": Table(TextPart, Member("text", "text", EXACT_TEXT, Need.BOTH), *_ABOUT),
        "raw": Table(RawPart, Member("raw", "raw", BASE64, Need.BOTH), *_ABOUT),
        "url": Table(UrlPart, Member("url", "url", EXACT_TEXT, Need.BOTH), *_ABOUT),
        "data": Table(DataPart, Member("data", "data", DATA), *_ABOUT),
        "": Table(UnknownPart, *_ABOUT),
    },
}


def _kind_in_0_1(item: JsonObject) -> object:
    if item.get("type") == "file" and isinstance(file := item.get("file"), dict):
        # §6.6 permits a file with neither bytes nor URI: a part without known content.
        return "file" if any(file.get(name) is not None for name in ("bytes", "uri")) else ""
    return item.get("type")


_CONTENT_IN_1_0 = frozenset({"text", "raw", "url", "data"})
# Frameworks mix the two: by `kind` of 0.3, the contents of 1.0 that may not stand beside it.
_NOT_SAID_BY_KIND = {
    "text": _CONTENT_IN_1_0 - {"text"},
    "file": _CONTENT_IN_1_0 - {"raw", "url"},
    "data": _CONTENT_IN_1_0 - {"data"},
}


def _has_file(item: JsonObject) -> bool:
    return item.get("kind") == "file" and isinstance(item.get("file"), dict)


def _content(item: JsonObject) -> str:
    """Return the content of a part in 1.0, also beside the same `kind`; empty if it has none."""
    found = [name for name in item if name in _CONTENT_IN_1_0 and item[name] is not None]
    if len(found) == 1 and "kind" not in item:
        return found[0]
    kind = item.get("kind")
    if found and isinstance(kind, str) and kind in _NOT_SAID_BY_KIND:
        if len(found) > 1 or found[0] in _NOT_SAID_BY_KIND[kind] or _has_file(item):
            members = " and ".join(found)
            raise AmbiguousError(f"{kind} by the kind of A2A 0.3, and {members} as in A2A 1.0")
    elif len(found) > 1:
        raise AmbiguousError("expected only one of text, raw, url and data")
    return found[0] if found else ""


def _kind_in_0_3(item: JsonObject) -> object:
    kind = item.get("kind")
    if isinstance(kind, str) and kind in _NOT_SAID_BY_KIND:
        if kind != "file" and _NOT_SAID_BY_KIND[kind].isdisjoint(item):
            return kind
    elif "kind" in item or "type" in item:  # of a later or an earlier version
        return kind
    content = _content(item)
    return f"{content} of 1.0" if content and kind in (None, "file") else kind


def _kind_in_1_0(item: JsonObject) -> str:
    if content := _content(item):
        return content
    # A part with none is of a later version: it is not refused. Only `data` may be null.
    return "file of 0.3" if _has_file(item) else "data" if "data" in item else ""


PART_LIST = {
    V0_1: parts(_kind_in_0_1, PARTS[V0_1]),
    V0_3: parts(
        _kind_in_0_3,
        {f"{name} of 1.0": PARTS[V1_0][name] for name in _CONTENT_IN_1_0} | PARTS[V0_3],
        may_be_none=True,
    ),
    V1_0: parts(_kind_in_1_0, {"file of 0.3": PARTS[V0_3]["file"]} | PARTS[V1_0]),
}


# --- names of states and roles -------------------------------------------------------------------

# 1.0 §4.1.3. ProtoJSON readers accept an enum's name or its number, which is the order here.
STATE_NAMES = {
    TaskState.UNKNOWN: "TASK_STATE_UNSPECIFIED",
    TaskState.SUBMITTED: "TASK_STATE_SUBMITTED",
    TaskState.WORKING: "TASK_STATE_WORKING",
    TaskState.COMPLETED: "TASK_STATE_COMPLETED",
    TaskState.FAILED: "TASK_STATE_FAILED",
    TaskState.CANCELED: "TASK_STATE_CANCELED",
    TaskState.INPUT_REQUIRED: "TASK_STATE_INPUT_REQUIRED",
    TaskState.REJECTED: "TASK_STATE_REJECTED",
    TaskState.AUTH_REQUIRED: "TASK_STATE_AUTH_REQUIRED",
}
_STATE_NUMBERS = dict(enumerate(STATE_NAMES))  # also those of 0.3's gRPC binding
_STATES = {state: state.value for state in TaskState}
# Two states have no name in 0.1: they get one that also ends, or interrupts, the task.
_STATES_0_1 = _STATES | {TaskState.REJECTED: "failed", TaskState.AUTH_REQUIRED: "input-required"}
STATE = {
    V0_1: names(_STATES_0_1, absent=TaskState.UNKNOWN, kept=_STATES),
    V0_3: names(_STATES, absent=TaskState.UNKNOWN, numbers=_STATE_NUMBERS),
    V1_0: names(STATE_NAMES, absent=TaskState.UNKNOWN, numbers=_STATE_NUMBERS),
}
ROLE_NAMES = {Role.USER: "ROLE_USER", Role.AGENT: "ROLE_AGENT"}  # 1.0 §4.1.5; 0 is no role
_ROLE_NUMBERS = dict(enumerate(ROLE_NAMES, start=1))
_ROLES = {role: role.value for role in ROLE_NAMES}
ROLE = {
    V0_1: names(_ROLES, absent=Role.UNSPECIFIED),
    V0_3: names(_ROLES, absent=Role.UNSPECIFIED, numbers=_ROLE_NUMBERS),
    V1_0: names(ROLE_NAMES, absent=Role.UNSPECIFIED, numbers=_ROLE_NUMBERS),
}

# --- objects -------------------------------------------------------------------------------------
# fmt: off

_ARTIFACT_ID = {V0_1: INDEX, V0_3: TEXT, V1_0: TEXT}
MESSAGE = columns(  # 0.1 §6.4, 0.3 §6.4, 1.0 §4.1.4
    Message,
    row("message_id",         TEXT,      None,       "messageId",        "messageId", need=WRITER),
    row("context_id",         TEXT,      None,       "contextId",        "contextId"),
    row("task_id",            TEXT,      None,       "taskId",           "taskId", strict=True),
    row("role",               ROLE,      "role",     "role",             "role", need=WRITER),
    row("parts", PART_LIST, "parts", "parts", "parts", need=WRITER, strict=True),
    row("metadata",           METADATA,  "metadata", "metadata",         "metadata"),
    row("extensions",         TEXTS,     None,       "extensions",       "extensions"),
    row("reference_task_ids", TEXTS,     None,       "referenceTaskIds", "referenceTaskIds"),
    kind="message",
)
ARTIFACT = columns(  # 0.1 §6.7, 0.3 §6.7, 1.0 §4.1.7
    Artifact,
    row("artifact_id", _ARTIFACT_ID, "index", "artifactId", "artifactId", need=WRITER, strict=True),
    row("name",        TEXT,      "name",        "name",        "name"),
    row("description", TEXT,      "description", "description", "description"),
    row("parts",       PART_LIST, "parts",       "parts",       "parts", need=WRITER, strict=True),
    row("metadata",    METADATA,  "metadata",    "metadata",    "metadata"),
    row("extensions",  TEXTS,     None,          "extensions",  "extensions"),
    # These two are for artifacts in an event only.
    row("", FLAG, ReadOnly("append"), None, None, strict=True),
    row("", FLAG, ReadOnly("lastChunk"), None, None, strict=True),
)
STATUS = columns(  # 0.1 §6.2, 0.3 §6.2, 1.0 §4.1.2
    TaskStatus,
    row("state",     STATE,           "state",     "state",     "state", need=WRITER, strict=True),
    row("message",   one_of(MESSAGE), "message",   "message",   "message"),
    row("timestamp", TIME,            "timestamp", "timestamp", "timestamp"),
)
TASK = columns(  # 0.1 §6.1, 0.3 §6.1, 1.0 §4.1.1
    Task,
    row("id",         TEXT,              "id",        "id",        "id", need=BOTH),
    row("context_id", TEXT,              "sessionId", "contextId", "contextId", needed_in=V0_3),
    row("status",     one_of(STATUS),    "status",    "status",    "status", need=BOTH),
    row("artifacts",  many_of(ARTIFACT), "artifacts", "artifacts", "artifacts"),
    row("history",    many_of(MESSAGE),  "history",   "history",   "history"),
    row("metadata",   METADATA,          "metadata",  "metadata",  "metadata"),
    row("generation", COUNT,             None,        None,        "generation"),  # 1.1's draft
    kind="task",
)
_TASK_ID = ("id", "taskId")  # §7.2.2 and §9.4 of 0.1
STATUS_UPDATE = columns(  # 0.1 §7.2.2, 0.3 §7.2.2, 1.0 §4.2.1
    StatusUpdate,
    row("task_id",    TEXT,           _TASK_ID,   "taskId",    "taskId", need=BOTH, strict=True),
    row("context_id", TEXT,           None,       "contextId", "contextId", need=WRITER),
    row("status",     one_of(STATUS), "status",   "status",    "status", need=BOTH),
    row("final", EXACT_FLAG, "final", "final", ReadOnly("final"), written="is_final", strict=True),
    row("metadata",   METADATA,       "metadata", "metadata",  "metadata"),
    row("generation", COUNT,          None,       None,        "generation"),
    kind="status-update",
    has_origin=True,
)
ARTIFACT_UPDATE = columns(  # 0.1 §7.2.3, 0.3 §7.2.3, 1.0 §4.2.2
    ArtifactUpdate,
    row("task_id",    TEXT,             _TASK_ID,   "taskId",    "taskId", need=BOTH, strict=True),
    row("context_id", TEXT,             None,       "contextId", "contextId", need=WRITER),
    row("artifact",   one_of(ARTIFACT), "artifact", "artifact",  "artifact", need=BOTH),
    # 0.1 has these two in its artifact.
    row("append",     FLAG,             None,       "append",    "append", strict=True),
    row("last_chunk", FLAG,             None,       "lastChunk", "lastChunk", strict=True),
    row("metadata",   METADATA,         "metadata", "metadata",  "metadata"),
    row("generation", COUNT,            None,       None,        "generation"),
    kind="artifact-update",
    has_origin=True,
)
# fmt: on
