"""The objects that A2A 0.3 and 1.0 have in common, to neutral ones and back.

What differs (parts, names of states and roles, `kind`, `final`, the envelope) is in the dialects.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

from pushkit.a2a.dialect import Dialect, timestamp_text
from pushkit.a2a.updates import (
    Artifact,
    ArtifactUpdate,
    Message,
    Part,
    StatusUpdate,
    Task,
    TaskStatus,
    UpdateKind,
)
from pushkit.a2a.wire import (
    ArtifactEventModel,
    ArtifactModel,
    MessageModel,
    StatusEventModel,
    StatusModel,
    TaskModel,
    read_timestamp,
)
from pushkit.bounded_json import JsonObject, JsonValue

__all__ = ["ObjectDialect"]

PartT = TypeVar("PartT")


class ObjectDialect(Dialect, Generic[PartT]):
    """A dialect whose tasks, messages, artifacts and events are those of A2A 0.3 and 1.0."""

    @abstractmethod
    def read_part(self, part: PartT) -> Part:
        """Read one part."""

    @abstractmethod
    def write_part(self, part: Part) -> JsonObject | None:
        """Write one part; None if this version has no way to say it."""

    def kind(self, kind: UpdateKind) -> str | None:
        """Return the `kind` member of an object, in versions that have one."""
        del kind
        return None

    def final(self, update: StatusUpdate) -> bool | None:
        """Return the `final` member of a status update, in versions that have one."""
        del update
        return None

    # --- messages and artifacts ------------------------------------------------------------

    def read_message(self, model: MessageModel[PartT]) -> Message:
        """Read a message."""
        return Message(
            message_id=model.message_id or "",
            role=self.read_role(model.role),
            parts=self._read_parts(model.parts),
            context_id=model.context_id or None,
            task_id=model.task_id or None,
            reference_task_ids=tuple(model.reference_task_ids or ()),
            extensions=tuple(model.extensions or ()),
            metadata=model.metadata or {},
            extra=self.unsaid(model),
        )

    def write_message(self, message: Message) -> JsonObject:
        """Write a message."""
        members: JsonObject = {
            "kind": self.kind(UpdateKind.MESSAGE),
            "messageId": message.message_id or None,
            "contextId": message.context_id or None,
            "taskId": message.task_id or None,
            "role": self.role_names.get(message.role),
            "parts": self._write_parts(message.parts),
            "metadata": dict(message.metadata) or None,
            "extensions": list(message.extensions) or None,
            "referenceTaskIds": list(message.reference_task_ids) or None,
        }
        return self.written(MessageModel, members, message.extra)

    def read_artifact(self, model: ArtifactModel[PartT]) -> Artifact:
        """Read an artifact."""
        return Artifact(
            artifact_id=model.artifact_id or "",
            parts=self._read_parts(model.parts),
            name=model.name or None,
            description=model.description or None,
            extensions=tuple(model.extensions or ()),
            metadata=model.metadata or {},
            extra=self.unsaid(model),
        )

    def write_artifact(self, artifact: Artifact) -> JsonObject:
        """Write an artifact."""
        members: JsonObject = {
            "artifactId": artifact.artifact_id or None,
            "name": artifact.name or None,
            "description": artifact.description or None,
            "parts": self._write_parts(artifact.parts),
            "metadata": dict(artifact.metadata) or None,
            "extensions": list(artifact.extensions) or None,
        }
        return self.written(ArtifactModel, members, artifact.extra)

    def _read_parts(self, parts: list[PartT] | None) -> tuple[Part, ...]:
        return tuple(self.read_part(part) for part in parts or ())

    def _write_parts(self, parts: tuple[Part, ...]) -> list[JsonValue] | None:
        written = [self.write_part(part) for part in parts]
        return [part for part in written if part is not None] or None

    # --- tasks -----------------------------------------------------------------------------

    def read_status(self, model: StatusModel[PartT]) -> TaskStatus:
        """Read the status of a task."""
        return TaskStatus(
            state=self.read_state(model.state),
            message=self.read_message(model.message) if model.message else None,
            timestamp=read_timestamp(model.timestamp),
            extra=self.unsaid(model),
        )

    def write_status(self, status: TaskStatus) -> JsonObject:
        """Write the status of a task."""
        members: JsonObject = {
            "state": self.state_names[status.state],
            "message": self.write_message(status.message) if status.message else None,
            "timestamp": timestamp_text(status.timestamp) if status.timestamp else None,
        }
        return self.written(StatusModel, members, status.extra)

    def read_task(self, model: TaskModel[PartT]) -> Task:
        """Read a task."""
        return Task(
            id=model.id,
            status=self.read_status(model.status),
            context_id=model.context_id or None,
            artifacts=tuple(self.read_artifact(artifact) for artifact in model.artifacts or ()),
            history=tuple(self.read_message(message) for message in model.history or ()),
            metadata=model.metadata or {},
            extra=self.unsaid(model),
        )

    def write_task(self, task: Task) -> JsonObject:
        """Write a task."""
        members: JsonObject = {
            "kind": self.kind(UpdateKind.TASK),
            "id": task.id,
            "contextId": task.context_id or None,
            "status": self.write_status(task.status),
            "artifacts": [self.write_artifact(artifact) for artifact in task.artifacts] or None,
            "history": [self.write_message(message) for message in task.history] or None,
            "metadata": dict(task.metadata) or None,
        }
        return self.written(TaskModel, members, task.extra)

    # --- events ----------------------------------------------------------------------------

    def read_status_event(self, model: StatusEventModel[PartT]) -> StatusUpdate:
        """Read a TaskStatusUpdateEvent."""
        return StatusUpdate(
            task_id=model.task_id,
            context_id=model.context_id or None,
            status=self.read_status(model.status),
            metadata=model.metadata or {},
            final=model.final,
            extra=self.unsaid(model),
            origin=self.version,
        )

    def write_status_event(self, update: StatusUpdate) -> JsonObject:
        """Write a TaskStatusUpdateEvent."""
        members: JsonObject = {
            "kind": self.kind(update.kind),
            "taskId": update.task_id,
            "contextId": update.context_id or None,
            "status": self.write_status(update.status),
            "final": self.final(update),
            "metadata": dict(update.metadata) or None,
        }
        return self.written(StatusEventModel, members, update.extra)

    def read_artifact_event(self, model: ArtifactEventModel[PartT]) -> ArtifactUpdate:
        """Read a TaskArtifactUpdateEvent."""
        return ArtifactUpdate(
            task_id=model.task_id,
            context_id=model.context_id or None,
            artifact=self.read_artifact(model.artifact),
            append=bool(model.append),
            last_chunk=bool(model.last_chunk),
            metadata=model.metadata or {},
            extra=self.unsaid(model),
            origin=self.version,
        )

    def write_artifact_event(self, update: ArtifactUpdate) -> JsonObject:
        """Write a TaskArtifactUpdateEvent."""
        members: JsonObject = {
            "kind": self.kind(update.kind),
            "taskId": update.task_id,
            "contextId": update.context_id or None,
            "artifact": self.write_artifact(update.artifact),
            "append": update.append or None,
            "lastChunk": update.last_chunk or None,
            "metadata": dict(update.metadata) or None,
        }
        return self.written(ArtifactEventModel, members, update.extra)
