"""The payloads of AgentVault's server-sent events, as bodies of notifications.

A status (`taskId`, `state`, and a message that is plain text), a message, or an artifact that has
one content, a URL, or both (profile §"Server-Sent Events"). There is no notification of a task.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pushkit.a2a.agentvault.content import ARTIFACT, PARTS, plain_message, plain_text, read_part
from pushkit.a2a.kinds import METADATA, TEXT, TIME, names, one, parts
from pushkit.a2a.table import Dialect, Lost, Member, Need, Table, Writing
from pushkit.a2a.updates import (
    ArtifactUpdate,
    Message,
    MessageUpdate,
    Role,
    StatusUpdate,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    UnknownPart,
    WireVersion,
)
from pushkit.bounded_json import JsonObject

__all__ = ["AGENTVAULT"]

_ORIGIN = WireVersion.AGENTVAULT_0_2
# What the profile has no name for, under the one that ends, or holds up, the task as well.
_STATE_NAMES: dict[TaskState, str] = {state: state.name for state in TaskState}
_STATE_NAMES |= {TaskState.REJECTED: "FAILED", TaskState.AUTH_REQUIRED: "INPUT_REQUIRED"}
del _STATE_NAMES[TaskState.UNKNOWN]
_STATE = names(
    _STATE_NAMES,
    absent=TaskState.UNKNOWN,
    read={state.name: state for state in TaskState},
)
_ROLE = names(
    {Role.USER: "user", Role.AGENT: "assistant"},
    absent=Role.UNSPECIFIED,
    read={"agent": Role.AGENT},
)


def _status_update(found: dict[str, Any], rest: JsonObject) -> StatusUpdate:
    text = found.get("message")
    status = TaskStatus(
        state=found.get("state", TaskState.UNKNOWN),
        message=plain_message(text) if text else None,
        timestamp=found.get("timestamp"),
    )
    return StatusUpdate(task_id=found["task_id"], status=status, extra=rest, origin=_ORIGIN)


STATUS_UPDATE = Table(  # what the neutral form says of the status, the profile says of the event
    StatusUpdate,
    Member("task_id", "taskId", TEXT, Need.BOTH),
    Member("state", "state", _STATE, Need.WRITER),
    Member("timestamp", "timestamp", TIME),
    Member("message", "message", TEXT),
    Lost("context_id"),
    Lost("metadata"),
    Lost("final"),
    build=_status_update,
    take=lambda update: (
        update.task_id,
        update.status.state,
        update.status.timestamp,
        plain_text(update.status.message),
    ),
)
MESSAGE = Table(
    Message,
    Member("role", "role", _ROLE, Need.WRITER),
    Member(
        "parts",
        "parts",
        parts(read_part, {table.node: table for table in PARTS.values()}, UnknownPart),
        Need.WRITER,
    ),
    Member("metadata", "metadata", METADATA),
    Lost("message_id", ""),
    Lost("context_id"),
    Lost("reference_task_ids"),
    Lost("extensions"),
)


def _message_update(found: dict[str, Any], rest: JsonObject) -> MessageUpdate:
    message = replace(found["message"], task_id=found["task_id"])
    return MessageUpdate(message=message, envelope_extra=rest, origin=_ORIGIN)


# The neutral form has the time of a status alone.
_TIMESTAMP = Member("", "timestamp", TEXT, kept=True)
MESSAGE_UPDATE = Table(
    MessageUpdate,
    Member("task_id", "taskId", TEXT, Need.BOTH),
    Member("message", "message", one(MESSAGE), Need.BOTH),
    _TIMESTAMP,
    build=_message_update,
    extra="envelope_extra",
)
ARTIFACT_UPDATE = Table(
    ArtifactUpdate,
    Member("task_id", "taskId", TEXT, Need.BOTH),
    Member("artifact", "artifact", one(ARTIFACT), Need.BOTH),
    _TIMESTAMP,
    Lost("context_id"),
    Lost("append"),
    Lost("last_chunk"),
    Lost("metadata"),
    extra="envelope_extra",
    origin=_ORIGIN,
)


def _read(document: JsonObject) -> TaskUpdate:
    name = next((name for name in ("state", "artifact") if name in document), "message")
    update: TaskUpdate = _TABLES[name].read(document)
    return update


_TABLES = {"state": STATUS_UPDATE, "artifact": ARTIFACT_UPDATE, "message": MESSAGE_UPDATE}


def _write(update: TaskUpdate, writing: Writing) -> JsonObject:
    match update:
        case TaskSnapshot():
            status = StatusUpdate(task_id=update.task.id, status=update.task.status)
            return STATUS_UPDATE.write(status, writing)
        case StatusUpdate():
            return STATUS_UPDATE.write(update, writing)
        case ArtifactUpdate():
            return ARTIFACT_UPDATE.write(update, writing)
        case MessageUpdate():
            return MESSAGE_UPDATE.write(update, writing)


AGENTVAULT = Dialect(
    read=_read,
    write=_write,
    tables=(STATUS_UPDATE, ARTIFACT_UPDATE, MESSAGE_UPDATE, MESSAGE, ARTIFACT, *PARTS.values()),
)
