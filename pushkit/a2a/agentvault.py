"""AgentVault's A2A profile 0.2: its tables and notifications, which differ from every A2A version.

Its notifications are the payloads of its server-sent events: a status (`taskId`, `state`, and a
message in plain text), a message, or an artifact with one content, a URL, or both (profile
§"Server-Sent Events"). It has no notification of a task. A webhook is registered by its URL alone;
the card says how callers authenticate (§Authentication), see `pushkit.net.authorization`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pushkit.a2a.kinds import (
    BASE64,
    CONTENT,
    DATA,
    EXACT_TEXT,
    METADATA,
    TEXT,
    TIME,
    format_base64,
    names,
    one,
    parts,
    read_base64,
)
from pushkit.a2a.notifications import write_unknown
from pushkit.a2a.table import Dialect, Fixed, Lost, Member, Need, Reading, Table, Writing, lost
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
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    UnknownPart,
    UpdateKind,
    UrlPart,
    WireVersion,
)
from pushkit.bounded_json import JsonObject

# --- parts: `type` is the kind of `content`; a file may have a `url` instead ---------------------

_ABOUT = (
    Member("media_type", "mediaType", TEXT),
    Member("filename", "filename", TEXT),
    Member("metadata", "metadata", METADATA),
)
_WITH_URL = (*_ABOUT, Member("", "url", TEXT, read_only=True))
_CONTENT = {"text": EXACT_TEXT, "data": DATA, "raw": BASE64}


def _inline(node: type[Part], kind: str, attribute: str) -> Table:
    content = Member(attribute, "content", _CONTENT[attribute], Need.BOTH)
    return Table(node, Fixed("type", kind), content, *_WITH_URL)


PARTS: dict[str, Table] = {
    "text": _inline(TextPart, "text", "text"),
    "data": _inline(DataPart, "data", "data"),
    "raw": _inline(RawPart, "file", "raw"),
    "url": Table(
        UrlPart, Fixed("type", "file"), Member("url", "url", EXACT_TEXT, Need.BOTH), *_ABOUT
    ),
    "": Table(UnknownPart, *_WITH_URL),
}


def _content_of(item: JsonObject) -> str:
    content = item.get("content")
    match item.get("type"):
        case "text" if isinstance(content, str):
            return "text"
        case "data" if content is not None:
            return "data"
        case "file" if item.get("url") is not None:
            return "url"
        case "file" if read_base64(content) is not None:
            return "raw"
    return ""


# --- artifacts: one content, one URL, or both ----------------------------------------------------


def _artifact(found: dict[str, Any], rest: JsonObject) -> Artifact:
    content, url, media_type = (found.pop(name, None) for name in ("content", "url", "media_type"))
    parts: list[Part] = []
    if isinstance(content, str):
        parts.append(TextPart(text=content))
    elif content is not None:
        parts.append(DataPart(data=content))
    if url is not None:
        parts.append(UrlPart(url=url))
    if media_type:  # of the content, or else of the URL
        first = parts[0] if parts else UnknownPart()
        parts[:1] = [replace(first, media_type=media_type)]
    return Artifact(parts=tuple(parts), extra=rest, **found)


def _members(artifact: Artifact) -> tuple[object, ...]:
    """Return the members to write: of the parts, only the first content and the first URL."""
    inline = next((part for part in artifact.parts if isinstance(part, TextPart | DataPart)), None)
    linked = next((part for part in artifact.parts if isinstance(part, UrlPart | RawPart)), None)
    first = inline or linked or next(iter(artifact.parts), None)
    known = next((part for part in artifact.parts if not isinstance(part, UnknownPart)), None)
    return (
        artifact.artifact_id,
        artifact.name or _TYPES.get(type(known)),
        inline.text if isinstance(inline, TextPart) else inline.data if inline else None,
        None if linked is None else linked.url if isinstance(linked, UrlPart) else _data(linked),
        first.media_type if first else None,
        artifact.metadata,
    )


_TYPES: dict[type, str] = {TextPart: "text", DataPart: "data", UrlPart: "file", RawPart: "file"}


def _data(part: RawPart) -> str:
    # RFC 2397: the profile has no bytes in an artifact.
    return f"data:{part.media_type or 'application/octet-stream'};base64,{format_base64(part.raw)}"


ARTIFACT = Table(
    Artifact,
    Member("artifact_id", "id", TEXT, Need.WRITER, strict=True),
    Member("name", "type", TEXT, Need.WRITER),
    Member("content", "content", CONTENT),
    Member("url", "url", EXACT_TEXT, strict=True),
    Member("media_type", "mediaType", TEXT),
    Member("metadata", "metadata", METADATA),
    *lost("description", "extensions"),
    build=_artifact,
    values=_members,
)


# --- events ---------------------------------------------------------------------------------------

_ORIGIN = WireVersion.AGENTVAULT_0_2
# Two states have no name in the profile: they get one that also ends, or interrupts, the task.
_STATE_NAMES: dict[TaskState, str] = {state: state.name for state in TaskState}
_STATE_NAMES |= {TaskState.REJECTED: "FAILED", TaskState.AUTH_REQUIRED: "INPUT_REQUIRED"}
del _STATE_NAMES[TaskState.UNKNOWN]
_STATE = names(
    _STATE_NAMES, absent=TaskState.UNKNOWN, kept={state: state.name for state in TaskState}
)
_ROLE = names({Role.USER: "user", Role.AGENT: "assistant"}, absent=Role.UNSPECIFIED)


def _plain_text(message: Message | None) -> str | None:
    """Return the text of a message, or None; its other parts are lost."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)] if message else []
    return "\n".join(texts) or None


def _status_update(found: dict[str, Any], rest: JsonObject) -> StatusUpdate:
    message = None
    if text := found.get("message"):
        message = Message(message_id="", role=Role.AGENT, parts=(TextPart(text=text),))
    status = TaskStatus(
        state=found.get("state", TaskState.UNKNOWN),
        message=message,
        timestamp=found.get("timestamp"),
    )
    return StatusUpdate(task_id=found["task_id"], status=status, extra=rest, origin=_ORIGIN)


STATUS_UPDATE = Table(  # the profile's event has the members of the neutral form's status
    StatusUpdate,
    Member("task_id", "taskId", TEXT, Need.BOTH),
    Member("state", "state", _STATE, Need.WRITER, strict=True),
    Member("timestamp", "timestamp", TIME),
    Member("message", "message", TEXT),
    *lost("context_id", "metadata", "generation", "final"),
    build=_status_update,
    values=lambda update: (
        update.task_id,
        update.status.state,
        update.status.timestamp,
        _plain_text(update.status.message),
    ),
)
MESSAGE = Table(
    Message,
    Member("role", "role", _ROLE, Need.WRITER),
    Member("parts", "parts", parts(_content_of, PARTS), Need.WRITER, strict=True),
    Member("metadata", "metadata", METADATA),
    Lost("message_id", ""),
    *lost("context_id", "reference_task_ids", "extensions"),
)


def _message_update(found: dict[str, Any], rest: JsonObject) -> MessageUpdate:
    message = replace(found["message"], task_id=found["task_id"])
    return MessageUpdate(message=message, envelope_extra=rest, origin=_ORIGIN)


# The neutral form has a time only for a status: theirs is kept as an unknown member.
MESSAGE_UPDATE = Table(
    MessageUpdate,
    Member("task_id", "taskId", TEXT, Need.BOTH),
    Member("message", "message", one(MESSAGE), Need.BOTH),
    build=_message_update,
    extra="envelope_extra",
)
ARTIFACT_UPDATE = Table(
    ArtifactUpdate,
    Member("task_id", "taskId", TEXT, Need.BOTH),
    Member("artifact", "artifact", one(ARTIFACT), Need.BOTH),
    *lost("context_id", "append", "last_chunk", "metadata", "generation"),
    extra="envelope_extra",
    origin=_ORIGIN,
)


def _read(document: JsonObject, reading: Reading) -> TaskUpdate:
    table = MESSAGE_UPDATE
    if "state" in document:
        table = STATUS_UPDATE
    elif "artifact" in document:
        table = ARTIFACT_UPDATE
    update: TaskUpdate = table.read(document, reading)
    return update


def _write_task(update: TaskSnapshot, writing: Writing) -> JsonObject:
    status = StatusUpdate(task_id=update.task.id, status=update.task.status)
    return STATUS_UPDATE.write(status, writing)


AGENTVAULT = Dialect(
    read=_read,
    writers={
        UpdateKind.TASK: _write_task,
        UpdateKind.MESSAGE: MESSAGE_UPDATE.write,
        UpdateKind.STATUS_UPDATE: STATUS_UPDATE.write,
        UpdateKind.ARTIFACT_UPDATE: ARTIFACT_UPDATE.write,
        UpdateKind.UNKNOWN: write_unknown,
    },
)
