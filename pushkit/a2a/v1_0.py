"""A2A 1.0: a notification is a `StreamResponse` (§4.3.3) in ProtoJSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pushkit.a2a.kinds import (
    BASE64,
    DATA,
    EXACT_TEXT,
    FLAG,
    METADATA,
    TEXT,
    TEXTS,
    TIME,
    many,
    names,
    one,
    parts,
)
from pushkit.a2a.table import Dialect, Member, MismatchError, Need, Table, Writing
from pushkit.a2a.updates import (
    Artifact,
    ArtifactUpdate,
    DataPart,
    Message,
    MessageUpdate,
    Part,
    RawPart,
    Role,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    UnknownPart,
    UrlPart,
    WireVersion,
)
from pushkit.bounded_json import JsonObject

__all__ = ["V1_0"]

_ORIGIN = WireVersion.V1_0
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
ROLE_NAMES = {Role.USER: "ROLE_USER", Role.AGENT: "ROLE_AGENT"}
# ProtoJSON readers take an enum by its name or its number; the names stand in the numbers' order.
STATE = names(STATE_NAMES, absent=TaskState.UNKNOWN, read=dict(enumerate(STATE_NAMES)))
ROLE = names(ROLE_NAMES, absent=Role.UNSPECIFIED, read=dict(enumerate(ROLE_NAMES, start=1)))


# §4.1.6: a part is told by which one of four members it has.
_ABOUT_A_PART = (
    Member("metadata", "metadata", METADATA),
    Member("filename", "filename", TEXT),
    Member("media_type", "mediaType", TEXT),
)
PARTS: dict[str, Table] = {
    "text": Table(TextPart, Member("text", "text", EXACT_TEXT, Need.BOTH), *_ABOUT_A_PART),
    "raw": Table(RawPart, Member("raw", "raw", BASE64, Need.BOTH), *_ABOUT_A_PART),
    "url": Table(UrlPart, Member("url", "url", EXACT_TEXT, Need.BOTH), *_ABOUT_A_PART),
    "data": Table(DataPart, Member("data", "data", DATA), *_ABOUT_A_PART),
    "": Table(UnknownPart, *_ABOUT_A_PART),
}


def _read_part(item: JsonObject) -> Part:
    found = [name for name in ("text", "raw", "url", "data") if item.get(name) is not None]
    if len(found) > 1:
        raise MismatchError("expected only one of text, raw, url and data")
    # None at all is a part of a later version: kept, not refused. Data alone may be null.
    content = found[0] if found else "data" if "data" in item else ""
    part: Part = PARTS[content].read(item)
    return part


PART_LIST = parts(_read_part, {table.node: table for table in PARTS.values()}, UnknownPart)

MESSAGE = Table(  # §4.1.4
    Message,
    Member("message_id", "messageId", TEXT, Need.WRITER),
    Member("context_id", "contextId", TEXT),
    Member("task_id", "taskId", TEXT),
    Member("role", "role", ROLE, Need.WRITER),
    Member("parts", "parts", PART_LIST, Need.WRITER),
    Member("metadata", "metadata", METADATA),
    Member("extensions", "extensions", TEXTS),
    Member("reference_task_ids", "referenceTaskIds", TEXTS),
)
ARTIFACT = Table(  # §4.1.7
    Artifact,
    Member("artifact_id", "artifactId", TEXT, Need.WRITER),
    Member("name", "name", TEXT),
    Member("description", "description", TEXT),
    Member("parts", "parts", PART_LIST, Need.WRITER),
    Member("metadata", "metadata", METADATA),
    Member("extensions", "extensions", TEXTS),
)
STATUS = Table(  # §4.1.2
    TaskStatus,
    Member("state", "state", STATE, Need.WRITER),
    Member("message", "message", one(MESSAGE)),
    Member("timestamp", "timestamp", TIME),
)
TASK = Table(  # §4.1.1
    Task,
    Member("id", "id", TEXT, Need.BOTH),
    Member("context_id", "contextId", TEXT),
    Member("status", "status", one(STATUS), Need.BOTH),
    Member("artifacts", "artifacts", many(ARTIFACT)),
    Member("history", "history", many(MESSAGE)),
    Member("metadata", "metadata", METADATA),
)
STATUS_UPDATE = Table(  # §4.2.1
    StatusUpdate,
    Member("task_id", "taskId", TEXT, Need.BOTH),
    Member("context_id", "contextId", TEXT, Need.WRITER),
    Member("status", "status", one(STATUS), Need.BOTH),
    Member("final", "final", FLAG, kept=True),  # of 0.3
    Member("metadata", "metadata", METADATA),
    origin=_ORIGIN,
)
ARTIFACT_UPDATE = Table(  # §4.2.2
    ArtifactUpdate,
    Member("task_id", "taskId", TEXT, Need.BOTH),
    Member("context_id", "contextId", TEXT, Need.WRITER),
    Member("artifact", "artifact", one(ARTIFACT), Need.BOTH),
    Member("append", "append", FLAG),
    Member("last_chunk", "lastChunk", FLAG),
    Member("metadata", "metadata", METADATA),
    origin=_ORIGIN,
)


def _update(found: dict[str, Any], rest: JsonObject) -> TaskUpdate:
    if len(found) != 1:
        raise MismatchError(
            "expected exactly one of task, message, statusUpdate and artifactUpdate"
        )
    match found.popitem():
        case ("task", task):
            return TaskSnapshot(task=task, origin=_ORIGIN, envelope_extra=rest)
        case ("message", message):
            return MessageUpdate(message=message, origin=_ORIGIN, envelope_extra=rest)
        case (_, update):
            read: StatusUpdate | ArtifactUpdate = update
            return replace(read, envelope_extra=rest) if rest else read


STREAM_RESPONSE = Table(  # §3.2.3
    dict,
    Member("task", "task", one(TASK)),
    Member("message", "message", one(MESSAGE)),
    Member("status_update", "statusUpdate", one(STATUS_UPDATE)),
    Member("artifact_update", "artifactUpdate", one(ARTIFACT_UPDATE)),
    build=_update,
    extra="envelope_extra",
)


def _write(update: TaskUpdate, writing: Writing) -> JsonObject:
    name, table, attribute = _PLACES[type(update)]
    node = getattr(update, attribute) if attribute else update
    try:
        document: JsonObject = {name: table.write(node, writing)}
    except MismatchError as exc:
        raise exc.inside(name) from None
    if writing.keep:
        STREAM_RESPONSE.write_rest(document, update, writing)
    return document


_PLACES: dict[type, tuple[str, Table, str]] = {
    TaskSnapshot: ("task", TASK, "task"),
    MessageUpdate: ("message", MESSAGE, "message"),
    StatusUpdate: ("statusUpdate", STATUS_UPDATE, ""),
    ArtifactUpdate: ("artifactUpdate", ARTIFACT_UPDATE, ""),
}
V1_0 = Dialect(
    read=STREAM_RESPONSE.read,
    write=_write,
    tables=(TASK, STATUS_UPDATE, ARTIFACT_UPDATE, STATUS, MESSAGE, ARTIFACT, *PARTS.values()),
)
