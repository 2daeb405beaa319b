"""A2A 0.2 and 0.3: a notification is an object with a `kind` (0.3 §6, §7.2, §9.5)."""

from __future__ import annotations

from pushkit.a2a.kinds import (
    FLAG,
    METADATA,
    SAID_FLAG,
    TEXT,
    TEXTS,
    TIME,
    many,
    names,
    one,
    parts,
)
from pushkit.a2a.table import Dialect, Fixed, Member, MismatchError, Need, Table, Writing
from pushkit.a2a.typed_parts import by_class, part_tables
from pushkit.a2a.updates import (
    Artifact,
    ArtifactUpdate,
    Message,
    MessageUpdate,
    Part,
    Role,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    UnknownPart,
    UpdateKind,
    WireVersion,
)
from pushkit.bounded_json import JsonObject

__all__ = ["V0_3"]

_ORIGIN = WireVersion.V0_3
_STATE = names({state: state.value for state in TaskState}, absent=TaskState.UNKNOWN)
_ROLE = names({role: role.value for role in (Role.USER, Role.AGENT)}, absent=Role.UNSPECIFIED)

PARTS = part_tables("kind")


def _read_part(item: JsonObject) -> Part:
    kind = item.get("kind")
    part: Part = PARTS[kind if isinstance(kind, str) and kind in PARTS else ""].read(item)
    return part


_PARTS = parts(_read_part, by_class(PARTS), UnknownPart)

MESSAGE = Table(  # §6.4
    Message,
    Fixed("kind", "message"),
    Member("message_id", "messageId", TEXT, Need.WRITER),
    Member("context_id", "contextId", TEXT),
    Member("task_id", "taskId", TEXT),
    Member("role", "role", _ROLE, Need.WRITER),
    Member("parts", "parts", _PARTS, Need.WRITER),
    Member("metadata", "metadata", METADATA),
    Member("extensions", "extensions", TEXTS),
    Member("reference_task_ids", "referenceTaskIds", TEXTS),
)
ARTIFACT = Table(  # §6.7
    Artifact,
    Member("artifact_id", "artifactId", TEXT, Need.WRITER),
    Member("name", "name", TEXT),
    Member("description", "description", TEXT),
    Member("parts", "parts", _PARTS, Need.WRITER),
    Member("metadata", "metadata", METADATA),
    Member("extensions", "extensions", TEXTS),
)
STATUS = Table(  # §6.2
    TaskStatus,
    Member("state", "state", _STATE, Need.WRITER),
    Member("message", "message", one(MESSAGE)),
    Member("timestamp", "timestamp", TIME),
)
TASK = Table(  # §6.1
    Task,
    Fixed("kind", "task"),
    Member("id", "id", TEXT, Need.BOTH),
    Member("context_id", "contextId", TEXT, Need.WRITER),
    Member("status", "status", one(STATUS), Need.BOTH),
    Member("artifacts", "artifacts", many(ARTIFACT)),
    Member("history", "history", many(MESSAGE)),
    Member("metadata", "metadata", METADATA),
)
STATUS_UPDATE = Table(  # §7.2.2
    StatusUpdate,
    Fixed("kind", "status-update"),
    Member("task_id", "taskId", TEXT, Need.BOTH),
    Member("context_id", "contextId", TEXT, Need.WRITER),
    Member("status", "status", one(STATUS), Need.BOTH),
    Member("final", "final", SAID_FLAG, written="is_final"),
    Member("metadata", "metadata", METADATA),
    origin=_ORIGIN,
)
ARTIFACT_UPDATE = Table(  # §7.2.3
    ArtifactUpdate,
    Fixed("kind", "artifact-update"),
    Member("task_id", "taskId", TEXT, Need.BOTH),
    Member("context_id", "contextId", TEXT, Need.WRITER),
    Member("artifact", "artifact", one(ARTIFACT), Need.BOTH),
    Member("append", "append", FLAG),
    Member("last_chunk", "lastChunk", FLAG),
    Member("metadata", "metadata", METADATA),
    origin=_ORIGIN,
)


def _read(document: JsonObject) -> TaskUpdate:
    match document.get("kind", "task"):  # a task may lack it
        case UpdateKind.TASK:
            return TaskSnapshot(task=TASK.read(document), origin=_ORIGIN)
        case UpdateKind.MESSAGE:
            return MessageUpdate(message=MESSAGE.read(document), origin=_ORIGIN)
        case UpdateKind.STATUS_UPDATE:
            status: StatusUpdate = STATUS_UPDATE.read(document)
            return status
        case UpdateKind.ARTIFACT_UPDATE:
            artifact: ArtifactUpdate = ARTIFACT_UPDATE.read(document)
            return artifact
    raise MismatchError(f"expected one of {', '.join(UpdateKind)}", "kind")


def _write(update: TaskUpdate, writing: Writing) -> JsonObject:
    match update:
        case TaskSnapshot():
            return TASK.write(update.task, writing)
        case MessageUpdate():
            return MESSAGE.write(update.message, writing)
        case StatusUpdate():
            return STATUS_UPDATE.write(update, writing)
        case ArtifactUpdate():
            return ARTIFACT_UPDATE.write(update, writing)


V0_3 = Dialect(
    read=_read,
    write=_write,
    tables=(TASK, STATUS_UPDATE, ARTIFACT_UPDATE, STATUS, MESSAGE, ARTIFACT, *PARTS.values()),
)
