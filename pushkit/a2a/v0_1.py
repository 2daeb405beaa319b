"""A2A 0.1, also of the first samples: status, artifact or task, told by its members (0.1 §6, §7.2).

The payload of a notification is "convention-based" in 0.1 (§9.4): the task object of the first
samples (`id`, `sessionId`), or a status (`taskId`). What is written says both names of the task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pushkit.a2a.dialect import timestamp_text, without_extra
from pushkit.a2a.typed_parts import AnyPart, TypedParts, TypePart
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
    WireVersion,
)
from pushkit.a2a.wire import (
    EnumValue,
    Identifier,
    Metadata,
    Required,
    Several,
    WireObject,
    checked,
    read_timestamp,
)
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidUpdateError, UnrecognisedBodyError

__all__ = ["V0_1"]


class MessageModel(WireObject):
    """A2A 0.1 §6.4: Message, without an id."""

    role: Annotated[EnumValue, Required] = None
    parts: Annotated[Several[TypePart] | None, Required] = None
    metadata: Metadata | None = None


class StatusModel(WireObject):
    """A2A 0.1 §6.2: TaskStatus."""

    state: Annotated[EnumValue, Required] = None
    message: MessageModel | None = None
    timestamp: str | None = None


class ArtifactModel(WireObject):
    """A2A 0.1 §6.7: Artifact. `index` stands for an id; `append` and `lastChunk` are of events."""

    name: str | None = None
    description: str | None = None
    parts: Annotated[Several[TypePart] | None, Required] = None
    index: int | None = None
    append: bool | None = None
    last_chunk: bool | None = None
    metadata: Metadata | None = None


class TaskModel(WireObject):
    """A2A 0.1 §6.1: Task."""

    id: Identifier
    session_id: str | None = None
    status: StatusModel
    artifacts: Several[ArtifactModel] | None = None
    history: Several[MessageModel] | None = None
    metadata: Metadata | None = None


class EventModel(WireObject):
    """What addresses an event: `id` (0.1 §7.2.2), `taskId` (0.1 §9.4), or both."""

    id: Identifier | None = None
    task_id: Identifier | None = None
    metadata: Metadata | None = None


class StatusEventModel(EventModel):
    """A2A 0.1 §7.2.2: TaskStatusUpdateEvent."""

    status: StatusModel
    final: bool | None = None


class ArtifactEventModel(EventModel):
    """A2A 0.1 §7.2.3: TaskArtifactUpdateEvent."""

    artifact: ArtifactModel


# What 0.1 has no name for, under the one that ends, or holds up, the task as well.
_STATE_NAMES = {state: state.value for state in TaskState} | {
    TaskState.REJECTED: "failed",
    TaskState.AUTH_REQUIRED: "input-required",
}
_ROLE_NAMES = {role: role.value for role in (Role.USER, Role.AGENT)}
_STATES: dict[JsonValue, TaskState] = {state.value: state for state in TaskState}
_ROLES: dict[JsonValue, Role] = {name: role for role, name in _ROLE_NAMES.items()}
_INDEX = re.compile(r"0|-?[1-9]\d{0,4000}", re.ASCII)


class V0_1(TypedParts):  # noqa: N801  (the version's name)
    """The A2A 0.1 dialect."""

    version = WireVersion.V0_1
    state_names = _STATE_NAMES
    role_names = _ROLE_NAMES
    verbatim = frozenset({"text", "uri", "data", "final"})
    discriminator = "type"

    def read(self, document: Mapping[str, JsonValue]) -> TaskUpdate:
        """Read an artifact event, a status, or a task."""
        _check_one_task(document)
        if document.get("artifact") is not None:
            return self._read_artifact_event(document)
        if "final" in document or document.get("id") is None:
            return self._read_status_event(document)
        model = checked(TaskModel, document, UnrecognisedBodyError)
        return TaskSnapshot(task=self._read_task(model), origin=self.version)

    def write(self, update: TaskUpdate) -> JsonObject:
        """Write a task, or an event addressed by both of its names."""
        said = update if update.origin is self.version else without_extra(update)
        model: type[WireObject]
        match said:
            case TaskSnapshot():
                model, document = TaskModel, self._write_task(said.task)
            case StatusUpdate():
                model, document = StatusEventModel, self._write_status_event(said)
            case ArtifactUpdate():
                model, document = ArtifactEventModel, self._write_artifact_event(said)
            case MessageUpdate():
                raise InvalidUpdateError(
                    "A2A 0.1 has no notification of a message: send the task, or its status"
                )
        checked(model, document, InvalidUpdateError, writing=self.version)
        return document

    def read_state(self, name: JsonValue) -> TaskState:
        """Read a state by name, also one that is younger than 0.1."""
        return _STATES.get(name, TaskState.UNKNOWN) if isinstance(name, str) else TaskState.UNKNOWN

    def read_role(self, name: JsonValue) -> Role:
        """Read a role by name."""
        return _ROLES.get(name, Role.UNSPECIFIED) if isinstance(name, str) else Role.UNSPECIFIED

    # --- messages and artifacts ------------------------------------------------------------

    def _read_parts(self, parts: list[AnyPart] | None) -> tuple[Part, ...]:
        return tuple(self.read_part(part) for part in parts or ())

    def _write_parts(self, parts: tuple[Part, ...]) -> list[JsonValue] | None:
        written = [self.write_part(part) for part in parts]
        return [part for part in written if part is not None] or None

    def _read_message(self, model: MessageModel) -> Message:
        return Message(
            message_id="",
            role=self.read_role(model.role),
            parts=self._read_parts(model.parts),
            metadata=model.metadata or {},
            extra=self.unsaid(model),
        )

    def write_message(self, message: Message) -> JsonObject:
        """Write a message."""
        members: JsonObject = {
            "role": self.role_names.get(message.role),
            "parts": self._write_parts(message.parts),
            "metadata": dict(message.metadata) or None,
        }
        return self.written(MessageModel, members, message.extra)

    def _read_artifact(self, model: ArtifactModel, *, in_event: bool) -> Artifact:
        extra = self.unsaid(model)
        if not in_event:  # a task's artifact has no place for what chunks say
            flags = {"append": model.append, "lastChunk": model.last_chunk}
            extra |= {name: True for name, flag in flags.items() if flag}
        return Artifact(
            artifact_id=str(model.index or 0),
            parts=self._read_parts(model.parts),
            name=model.name or None,
            description=model.description or None,
            metadata=model.metadata or {},
            extra=extra,
        )

    def _write_artifact(self, artifact: Artifact, index: int, flags: JsonObject) -> JsonObject:
        members: JsonObject = {
            "name": artifact.name or None,
            "description": artifact.description or None,
            "parts": self._write_parts(artifact.parts),
            "index": index,
            "metadata": dict(artifact.metadata) or None,
        }
        return self.written(ArtifactModel, members | flags, artifact.extra)

    # --- tasks and events ------------------------------------------------------------------

    def _read_status(self, model: StatusModel) -> TaskStatus:
        return TaskStatus(
            state=self.read_state(model.state),
            message=self._read_message(model.message) if model.message else None,
            timestamp=read_timestamp(model.timestamp),
            extra=self.unsaid(model),
        )

    def _write_status(self, status: TaskStatus) -> JsonObject:
        members: JsonObject = {
            "state": self.state_names[status.state],
            "message": self.write_message(status.message) if status.message else None,
            "timestamp": timestamp_text(status.timestamp) if status.timestamp else None,
        }
        return self.written(StatusModel, members, status.extra)

    def _read_task(self, model: TaskModel) -> Task:
        artifacts = model.artifacts or ()
        return Task(
            id=model.id,
            status=self._read_status(model.status),
            context_id=model.session_id or None,
            artifacts=tuple(self._read_artifact(each, in_event=False) for each in artifacts),
            history=tuple(self._read_message(message) for message in model.history or ()),
            metadata=model.metadata or {},
            extra=self.unsaid(model),
        )

    def _write_task(self, task: Task) -> JsonObject:
        artifacts: list[JsonValue] = [
            self._write_artifact(artifact, index, _kept_flags(artifact))
            for artifact, index in zip(task.artifacts, _indices(task.artifacts), strict=True)
        ]
        members: JsonObject = {
            "id": task.id,
            "sessionId": task.context_id or None,
            "status": self._write_status(task.status),
            "artifacts": artifacts or None,
            "history": [self.write_message(message) for message in task.history] or None,
            "metadata": dict(task.metadata) or None,
        }
        return self.written(TaskModel, members, task.extra)

    def _read_status_event(self, document: Mapping[str, JsonValue]) -> StatusUpdate:
        model = checked(StatusEventModel, document, UnrecognisedBodyError)
        return StatusUpdate(
            task_id=_task_id(model),
            status=self._read_status(model.status),
            metadata=model.metadata or {},
            final=model.final,
            extra=self.unsaid(model),
            origin=self.version,
        )

    def _write_status_event(self, update: StatusUpdate) -> JsonObject:
        derived = update.state.terminal or update.state.interrupted
        members: JsonObject = {
            "id": update.task_id,
            "taskId": update.task_id,
            "status": self._write_status(update.status),
            "final": derived if update.final is None else update.final,
            "metadata": dict(update.metadata) or None,
        }
        return self.written(StatusEventModel, members, update.extra)

    def _read_artifact_event(self, document: Mapping[str, JsonValue]) -> ArtifactUpdate:
        model = checked(ArtifactEventModel, document, UnrecognisedBodyError)
        return ArtifactUpdate(
            task_id=_task_id(model),
            artifact=self._read_artifact(model.artifact, in_event=True),
            append=bool(model.artifact.append),
            last_chunk=bool(model.artifact.last_chunk),
            metadata=model.metadata or {},
            extra=self.unsaid(model),
            origin=self.version,
        )

    def _write_artifact_event(self, update: ArtifactUpdate) -> JsonObject:
        (index,) = _indices((update.artifact,))
        flags: JsonObject = {
            "append": update.append or None,
            "lastChunk": update.last_chunk or None,
        }
        members: JsonObject = {
            "id": update.task_id,
            "taskId": update.task_id,
            "artifact": self._write_artifact(update.artifact, index, flags),
            "metadata": dict(update.metadata) or None,
        }
        return self.written(ArtifactEventModel, members, update.extra)


def _check_one_task(document: Mapping[str, JsonValue]) -> None:
    # Two readers could each take another one of the two for the truth.
    named = [document[name] for name in ("id", "taskId", "task_id") if document.get(name)]
    if any(name != named[0] for name in named):
        raise UnrecognisedBodyError("id and taskId: expected the same task in both")
    if not named:
        raise UnrecognisedBodyError("id: expected, but missing")


def _task_id(model: EventModel) -> str:
    return model.id or model.task_id or ""


def _indices(artifacts: tuple[Artifact, ...]) -> list[int]:
    """Return what stands for the ids of artifacts: the number that an id is, or its position."""
    if all(_INDEX.fullmatch(artifact.artifact_id) for artifact in artifacts):
        return [int(artifact.artifact_id) for artifact in artifacts]
    return list(range(len(artifacts)))


def _kept_flags(artifact: Artifact) -> JsonObject:
    return {name: artifact.extra.get(name) for name in ("append", "lastChunk")}
