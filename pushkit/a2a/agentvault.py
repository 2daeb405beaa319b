"""AgentVault's A2A profile 0.2: the payloads of its server-sent events, as bodies of notifications.

A status (`taskId`, `state`, and a message that is plain text), a message, or an artifact that has
one content, a URL, or both (profile §"Server-Sent Events"). There is no notification of a task.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated

from pushkit.a2a.agentvault_content import (
    CONTENT_MEMBERS,
    ArtifactModel,
    PartModel,
    artifact_content,
    artifact_parts,
    artifact_type,
    part_content,
    plain_message,
    plain_text,
    read_content,
)
from pushkit.a2a.dialect import Dialect, timestamp_text, without_extra
from pushkit.a2a.updates import (
    Artifact,
    ArtifactUpdate,
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
    UnknownPart,
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
    format_timestamp,
    read_base64,
    read_timestamp,
)
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidUpdateError, UnrecognisedBodyError

__all__ = ["AgentVault", "stamped"]


class MessageModel(WireObject):
    """A message."""

    role: Annotated[EnumValue, Required] = None
    parts: Annotated[Several[PartModel] | None, Required] = None
    metadata: Metadata | None = None


class StatusEventModel(WireObject):
    """TaskStatusUpdateEvent."""

    task_id: Identifier
    state: Annotated[EnumValue, Required] = None
    timestamp: str | None = None
    message: str | None = None


class MessageEventModel(WireObject):
    """TaskMessageEvent."""

    task_id: Identifier
    message: MessageModel
    timestamp: str | None = None


class ArtifactEventModel(WireObject):
    """TaskArtifactUpdateEvent."""

    task_id: Identifier
    artifact: ArtifactModel
    timestamp: str | None = None


# What the profile has no name for, under the one that ends, or holds up, the task as well.
_STATE_NAMES: dict[TaskState, str] = {
    TaskState.SUBMITTED: "SUBMITTED",
    TaskState.WORKING: "WORKING",
    TaskState.INPUT_REQUIRED: "INPUT_REQUIRED",
    TaskState.AUTH_REQUIRED: "INPUT_REQUIRED",
    TaskState.COMPLETED: "COMPLETED",
    TaskState.CANCELED: "CANCELED",
    TaskState.FAILED: "FAILED",
    TaskState.REJECTED: "FAILED",
}
_STATES: dict[JsonValue, TaskState] = {state.name: state for state in TaskState}
_ROLE_NAMES = {Role.USER: "user", Role.AGENT: "assistant"}
_ROLES: dict[JsonValue, Role] = {
    "user": Role.USER,
    "assistant": Role.AGENT,
    "agent": Role.AGENT,
}


class AgentVault(Dialect):
    """The dialect of AgentVault's profile 0.2."""

    version = WireVersion.AGENTVAULT_0_2
    state_names = _STATE_NAMES
    role_names = _ROLE_NAMES
    verbatim = frozenset({"content", "url"})

    def read(self, document: Mapping[str, JsonValue]) -> TaskUpdate:
        """Read a status, a message or an artifact."""
        if "state" in document:
            status = checked(StatusEventModel, document, UnrecognisedBodyError)
            return self._read_status(status)
        if "artifact" in document:
            artifact = checked(ArtifactEventModel, document, UnrecognisedBodyError)
            return self._read_artifact_event(artifact)
        message = checked(MessageEventModel, document, UnrecognisedBodyError)
        return self._read_message_event(message)

    def write(self, update: TaskUpdate) -> JsonObject:
        """Write an event; of a whole task, its status."""
        said = update if update.origin is self.version else without_extra(update)
        model: type[WireObject]
        match said:
            case TaskSnapshot():
                model = StatusEventModel
                document = self._write_status(said.task.id, said.task.status, {})
            case StatusUpdate():
                model = StatusEventModel
                document = self._write_status(said.task_id, said.status, said.extra)
            case ArtifactUpdate():
                model = ArtifactEventModel
                document = self._write_artifact_event(said)
            case MessageUpdate():
                model = MessageEventModel
                document = self._write_message_event(said)
        checked(model, document, InvalidUpdateError, writing=self.version)
        return document

    def read_state(self, name: JsonValue) -> TaskState:
        """Read a state by its upper-case name."""
        return _STATES.get(name, TaskState.UNKNOWN) if isinstance(name, str) else TaskState.UNKNOWN

    def read_role(self, name: JsonValue) -> Role:
        """Read a role by name."""
        return _ROLES.get(name, Role.UNSPECIFIED) if isinstance(name, str) else Role.UNSPECIFIED

    # --- status ----------------------------------------------------------------------------

    def _read_status(self, model: StatusEventModel) -> StatusUpdate:
        message = plain_message(model.message) if model.message else None
        return StatusUpdate(
            task_id=model.task_id,
            status=TaskStatus(
                state=self.read_state(model.state),
                message=message,
                timestamp=read_timestamp(model.timestamp),
            ),
            extra=self.unsaid(model),
            origin=self.version,
        )

    def _write_status(
        self, task_id: str, status: TaskStatus, extra: Mapping[str, JsonValue]
    ) -> JsonObject:
        members: JsonObject = {
            "taskId": task_id,
            "state": self.state_names.get(status.state),
            "timestamp": timestamp_text(status.timestamp) if status.timestamp else None,
            "message": plain_text(status.message),
        }
        return self.written(StatusEventModel, members, extra)

    # --- message ---------------------------------------------------------------------------

    def _read_message_event(self, model: MessageEventModel) -> MessageUpdate:
        message = Message(
            message_id="",
            role=self.read_role(model.message.role),
            parts=tuple(self._read_part(part) for part in model.message.parts or ()),
            task_id=model.task_id,
            metadata=model.message.metadata or {},
            extra=self.unsaid(model.message),
        )
        return MessageUpdate(
            message=message, origin=self.version, envelope_extra=self._envelope_extra(model)
        )

    def _write_message_event(self, update: MessageUpdate) -> JsonObject:
        parts = [self._write_part(part) for part in update.message.parts]
        message: JsonObject = {
            "role": self.role_names.get(update.message.role),
            "parts": [part for part in parts if part is not None] or None,
            "metadata": dict(update.message.metadata) or None,
        }
        members: JsonObject = {
            "taskId": update.task_id,
            "message": self.written(MessageModel, message, update.message.extra),
        }
        return self.written(MessageEventModel, members, {}) | dict(update.envelope_extra)

    def _read_part(self, part: PartModel) -> Part:
        read = read_content(part)
        return replace(
            read,
            media_type=part.media_type or None,
            filename=part.filename or None,
            metadata=part.metadata or {},
            extra=self._part_extra(part, read),
        )

    def _part_extra(self, part: PartModel, read: Part) -> JsonObject:
        extra = self.unsaid(part)
        content = part_content(read)
        for member in ("type", "content", "url"):
            original: JsonValue = getattr(part, member)
            if original is not None and content.get(member) != original:
                extra[member] = original
        return extra

    def _write_part(self, part: Part) -> JsonObject | None:
        if isinstance(part, UnknownPart) and not part.extra:
            return None
        content = part_content(part)
        members: JsonObject = content | {
            "mediaType": part.media_type or None,
            "filename": part.filename or None,
            "metadata": dict(part.metadata) or None,
        }
        kept = {name: part.extra[name] for name in part.extra if name not in content}
        if isinstance(part, RawPart) and read_base64(part.extra.get("content")) == part.raw:
            kept["content"] = part.extra["content"]  # of the other alphabet, or without padding
        written = self.written(PartModel, members, kept)
        return written | {name: kept[name] for name in CONTENT_MEMBERS if name in kept}

    # --- artifact --------------------------------------------------------------------------

    def _read_artifact_event(self, model: ArtifactEventModel) -> ArtifactUpdate:
        of = model.artifact
        artifact = Artifact(
            artifact_id=of.id or "",
            name=of.type or None,
            parts=artifact_parts(of),
            metadata=of.metadata or {},
            extra=self.unsaid(of),
        )
        return ArtifactUpdate(
            task_id=model.task_id,
            artifact=artifact,
            origin=self.version,
            envelope_extra=self._envelope_extra(model),
        )

    def _write_artifact_event(self, update: ArtifactUpdate) -> JsonObject:
        artifact = update.artifact
        content = artifact_content(artifact.parts)
        members: JsonObject = content | {
            "id": artifact.artifact_id or None,
            "type": artifact.name or artifact_type(artifact.parts),
            "metadata": dict(artifact.metadata) or None,
        }
        event: JsonObject = {
            "taskId": update.task_id,
            "artifact": self.written(ArtifactModel, members, artifact.extra),
        }
        return self.written(ArtifactEventModel, event, {}) | dict(update.envelope_extra)

    def _envelope_extra(self, model: MessageEventModel | ArtifactEventModel) -> JsonObject:
        """Return what the neutral update has no place for, which is the timestamp too."""
        named = "timestamp" in model.model_fields_set
        return self.unsaid(model) | ({"timestamp": model.timestamp} if named else {})


def stamped(update: TaskUpdate, now: datetime) -> TaskUpdate:
    """Return an update with a time, which every event of the profile has and not every neutral."""
    match update:
        case StatusUpdate():
            status = replace(update.status, timestamp=update.status.timestamp or now)
            return replace(update, status=status)
        case TaskSnapshot():
            status = replace(update.task.status, timestamp=update.task.status.timestamp or now)
            return replace(update, task=replace(update.task, status=status))
    if update.origin is WireVersion.AGENTVAULT_0_2 and "timestamp" in update.envelope_extra:
        return update
    kept = update if update.origin is WireVersion.AGENTVAULT_0_2 else without_extra(update)
    extra: JsonObject = dict(kept.envelope_extra) | {"timestamp": format_timestamp(now)}
    return replace(kept, origin=WireVersion.AGENTVAULT_0_2, envelope_extra=extra)
