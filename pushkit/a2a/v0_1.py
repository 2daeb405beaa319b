"""A2A 0.1, also of the first samples: status, artifact or task, told by its members (0.1 §6, §7.2).

The payload of a notification is "convention-based" in 0.1 (§9.4): the task object of the first
samples (`id`, `sessionId`), or a status (`taskId`). What is written says both names of the task.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from pushkit.a2a.kinds import FLAG, METADATA, SAID_FLAG, TEXT, TIME, many, names, one, parts
from pushkit.a2a.table import Dialect, Kind, Lost, Member, MismatchError, Need, Table, Writing
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
    WireVersion,
)
from pushkit.bounded_json import JsonObject

__all__ = ["MESSAGE", "V0_1"]

_ORIGIN = WireVersion.V0_1
# What 0.1 has no name for, under the one that ends, or holds up, the task as well.
_STATE = names(
    {state: state.value for state in TaskState}
    | {TaskState.REJECTED: "failed", TaskState.AUTH_REQUIRED: "input-required"},
    absent=TaskState.UNKNOWN,
    read={state.value: state for state in TaskState},
)
_ROLE = names({role: role.value for role in (Role.USER, Role.AGENT)}, absent=Role.UNSPECIFIED)


def _read_index(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise MismatchError("expected a valid integer")
    return str(value)


_INDEX = Kind(read=_read_index, write=lambda value, _: int(value), absent="0")

PARTS = part_tables("type")


def _read_part(item: JsonObject) -> Part:
    kind = item.get("type")
    if kind == "file" and isinstance(file := item.get("file"), dict):
        # §6.6 permits a file of neither bytes nor URI: a part without known content.
        kind = kind if any(file.get(name) is not None for name in ("bytes", "uri")) else ""
    part: Part = PARTS[kind if isinstance(kind, str) and kind in PARTS else ""].read(item)
    return part


_PARTS = parts(_read_part, by_class(PARTS), UnknownPart)

MESSAGE = Table(  # §6.4
    Message,
    Member("role", "role", _ROLE, Need.WRITER),
    Member("parts", "parts", _PARTS, Need.WRITER),
    Member("metadata", "metadata", METADATA),
    Lost("message_id", ""),
    Lost("context_id"),
    Lost("task_id"),
    Lost("reference_task_ids"),
    Lost("extensions"),
)
_OF_AN_ARTIFACT = (
    Member("name", "name", TEXT),
    Member("description", "description", TEXT),
    Member("parts", "parts", _PARTS, Need.WRITER),
    Member("artifact_id", "index", _INDEX),
    Member("metadata", "metadata", METADATA),
    Lost("extensions"),
)
ARTIFACT = Table(  # §6.7; `append` and `lastChunk` say something in an event alone
    Artifact,
    *_OF_AN_ARTIFACT,
    Member("", "append", FLAG, kept=True),
    Member("", "lastChunk", FLAG, kept=True),
)
STATUS = Table(  # §6.2
    TaskStatus,
    Member("state", "state", _STATE, Need.WRITER),
    Member("message", "message", one(MESSAGE)),
    Member("timestamp", "timestamp", TIME),
)
TASK = Table(  # §6.1
    Task,
    Member("id", "id", TEXT, Need.BOTH),
    Member("context_id", "sessionId", TEXT),
    Member("status", "status", one(STATUS), Need.BOTH),
    Member("artifacts", "artifacts", many(ARTIFACT)),
    Member("history", "history", many(MESSAGE)),
    Member("metadata", "metadata", METADATA),
)
_OF_AN_EVENT = (
    Member("task_id", "id", TEXT, Need.WRITER),  # §7.2.2
    Member("task_id", "taskId", TEXT, Need.WRITER),  # §9.4
)
STATUS_UPDATE = Table(  # §7.2.2
    StatusUpdate,
    *_OF_AN_EVENT,
    Member("status", "status", one(STATUS), Need.BOTH),
    Member("final", "final", SAID_FLAG, written="is_final"),
    Member("metadata", "metadata", METADATA),
    Lost("context_id"),
    origin=_ORIGIN,
)


def _chunk_members(update: ArtifactUpdate) -> tuple[object, ...]:
    of = update.artifact
    about = (of.name, of.description, of.parts, of.artifact_id, of.metadata)
    return (*about, update.append, update.last_chunk)


CHUNK = Table(  # §6.7: what the neutral form says of the event, 0.1 says of its artifact
    Artifact,
    *_OF_AN_ARTIFACT,
    Member("append", "append", FLAG),
    Member("last_chunk", "lastChunk", FLAG),
    build=lambda found, rest: found | {"extra": rest},
    take=_chunk_members,
    extra="artifact.extra",
)


def _artifact_update(found: dict[str, Any], rest: JsonObject) -> ArtifactUpdate:
    artifact = found.pop("artifact")
    flags = {name: artifact.pop(name) for name in ("append", "last_chunk") if name in artifact}
    return ArtifactUpdate(artifact=Artifact(**artifact), extra=rest, **found, **flags)


ARTIFACT_UPDATE = Table(  # §7.2.3
    ArtifactUpdate,
    *_OF_AN_EVENT,
    Member("artifact", "artifact", one(CHUNK), Need.BOTH),
    Member("metadata", "metadata", METADATA),
    Lost("context_id"),
    build=_artifact_update,
    take=lambda update: (update.task_id, update.task_id, update, update.metadata),
    origin=_ORIGIN,
)


def _read(document: JsonObject) -> TaskUpdate:
    _check_one_task(document)
    if document.get("artifact") is not None:
        artifact: ArtifactUpdate = ARTIFACT_UPDATE.read(document)
        return artifact
    if "final" in document or document.get("id") is None:
        status: StatusUpdate = STATUS_UPDATE.read(document)
        return status
    return TaskSnapshot(task=TASK.read(document), origin=_ORIGIN)


def _write(update: TaskUpdate, writing: Writing) -> JsonObject:
    match update:
        case TaskSnapshot():
            task = replace(update.task, artifacts=_indexed(update.task.artifacts))
            return TASK.write(task, writing)
        case StatusUpdate():
            return STATUS_UPDATE.write(update, writing)
        case ArtifactUpdate():
            (artifact,) = _indexed((update.artifact,))
            return ARTIFACT_UPDATE.write(replace(update, artifact=artifact), writing)
        case MessageUpdate():
            raise MismatchError(
                "A2A 0.1 has no notification of a message: send the task, or its status"
            )


_NUMBER = re.compile(r"0|-?[1-9]\d{0,4000}", re.ASCII)


def _indexed(artifacts: tuple[Artifact, ...]) -> tuple[Artifact, ...]:
    """Return artifacts whose ids are numbers: those that they are, or their positions."""
    if all(_NUMBER.fullmatch(artifact.artifact_id) for artifact in artifacts):
        return artifacts
    return tuple(
        replace(artifact, artifact_id=str(index)) for index, artifact in enumerate(artifacts)
    )


def _check_one_task(document: JsonObject) -> None:
    # Two readers could each take another one of the two for the truth.
    named = [document[name] for name in ("id", "taskId", "task_id") if document.get(name)]
    if any(name != named[0] for name in named):
        raise MismatchError("expected the same task in both", "id and taskId")
    if not named:
        raise MismatchError("expected, but missing", "id")


V0_1 = Dialect(
    read=_read,
    write=_write,
    tables=(TASK, STATUS_UPDATE, ARTIFACT_UPDATE, STATUS, MESSAGE, ARTIFACT, *PARTS.values()),
)
