"""Wire models to neutral updates and back: the part that A2A 0.3 and 1.0 have in common.

A `Dialect` is one version. What differs (parts, names of states and roles, `kind`, `final`, the
envelope) is in the subclass; what is the same is here, once. The rule about `extra` is here too:
`rewritten` says what would be written for a member as received; where that is not the original,
the original is kept (`_unsaid`), and written back as long as `rewritten` still agrees (`_written`).
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from typing import ClassVar, Generic, TypeVar, cast

from pushkit.a2a.updates import (
    Artifact,
    ArtifactUpdate,
    Message,
    Part,
    Role,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    TaskUpdate,
    UpdateKind,
    WireVersion,
)
from pushkit.a2a.wire import (
    ArtifactEventModel,
    ArtifactModel,
    MessageModel,
    StatusEventModel,
    StatusModel,
    TaskModel,
    WireObject,
    format_timestamp,
    member_names,
    read_timestamp,
    received,
)
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidUpdateError

__all__ = ["Dialect", "without_extra"]

PartT = TypeVar("PartT")
Node = TypeVar("Node")


class Dialect(ABC, Generic[PartT]):
    """One A2A version: reads its JSON into neutral updates, and writes them."""

    version: ClassVar[WireVersion]
    state_names: ClassVar[Mapping[TaskState, str]]
    role_names: ClassVar[Mapping[Role, str]]
    # Members whose empty value says something, so that it is written.
    verbatim: ClassVar[frozenset[str]]

    @abstractmethod
    def read(self, document: Mapping[str, JsonValue]) -> TaskUpdate:
        """Read a notification. Raises UnrecognisedBodyError."""

    @abstractmethod
    def write(self, update: TaskUpdate) -> JsonObject:
        """Write a notification, checked against the specification. Raises InvalidUpdateError."""

    @abstractmethod
    def read_part(self, part: PartT) -> Part:
        """Read one part."""

    @abstractmethod
    def write_part(self, part: Part) -> JsonObject | None:
        """Write one part; None if this version has no way to say it."""

    @abstractmethod
    def read_state(self, name: JsonValue) -> TaskState:
        """Read a state; `unknown` if it has no name here."""

    @abstractmethod
    def read_role(self, name: JsonValue) -> Role:
        """Read a role; `unspecified` if it has no name here."""

    def kind(self, kind: UpdateKind) -> str | None:
        """Return the `kind` member of an object, in versions that have one."""
        del kind
        return None

    def final(self, update: StatusUpdate) -> bool | None:
        """Return the `final` member of a status update, in versions that have one."""
        del update
        return None

    # --- what the neutral form has no place for --------------------------------------------

    def rewritten(self, member: str, original: JsonValue) -> JsonValue:
        """Return what is written for a known member that was read as `original`, None: nothing."""
        match member:
            case "state":
                return self.state_names[self.read_state(original)]
            case "role":
                return self.role_names.get(self.read_role(original))
            case "timestamp":
                moment = read_timestamp(original)
                return format_timestamp(moment) if moment else None
        if member in self.verbatim or not _says_nothing(original):
            return original
        return None

    def _unsaid(self, model: WireObject) -> JsonObject:
        known = member_names(type(model))
        return {
            member: original
            for member, original in received(model).items()
            if member not in known or not self._comes_back(member, original)
        }

    def _comes_back(self, member: str, original: JsonValue) -> bool:
        if original is None:
            return member == "data"  # the one member for which null is a value
        return self.rewritten(member, original) == original

    def _written(
        self,
        model: type[WireObject],
        members: Mapping[str, JsonValue],
        extra: Mapping[str, JsonValue],
    ) -> JsonObject:
        known = member_names(model)
        written: JsonObject = {
            member: value for member, value in members.items() if value is not None
        }
        for member, original in extra.items():
            if member not in known or self.rewritten(member, original) == written.get(member):
                written[member] = original
        return written

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
            extra=self._unsaid(model),
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
        return self._written(MessageModel, members, message.extra)

    def read_artifact(self, model: ArtifactModel[PartT]) -> Artifact:
        """Read an artifact."""
        return Artifact(
            artifact_id=model.artifact_id or "",
            parts=self._read_parts(model.parts),
            name=model.name or None,
            description=model.description or None,
            extensions=tuple(model.extensions or ()),
            metadata=model.metadata or {},
            extra=self._unsaid(model),
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
        return self._written(ArtifactModel, members, artifact.extra)

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
            extra=self._unsaid(model),
        )

    def write_status(self, status: TaskStatus) -> JsonObject:
        """Write the status of a task."""
        members: JsonObject = {
            "state": self.state_names[status.state],
            "message": self.write_message(status.message) if status.message else None,
            "timestamp": _timestamp_text(status.timestamp) if status.timestamp else None,
        }
        return self._written(StatusModel, members, status.extra)

    def read_task(self, model: TaskModel[PartT]) -> Task:
        """Read a task."""
        return Task(
            id=model.id,
            status=self.read_status(model.status),
            context_id=model.context_id or None,
            artifacts=tuple(self.read_artifact(artifact) for artifact in model.artifacts or ()),
            history=tuple(self.read_message(message) for message in model.history or ()),
            metadata=model.metadata or {},
            extra=self._unsaid(model),
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
        return self._written(TaskModel, members, task.extra)

    # --- events ----------------------------------------------------------------------------

    def read_status_event(self, model: StatusEventModel[PartT]) -> StatusUpdate:
        """Read a TaskStatusUpdateEvent."""
        return StatusUpdate(
            task_id=model.task_id,
            context_id=model.context_id or None,
            status=self.read_status(model.status),
            metadata=model.metadata or {},
            final=model.final,
            extra=self._unsaid(model),
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
        return self._written(StatusEventModel, members, update.extra)

    def read_artifact_event(self, model: ArtifactEventModel[PartT]) -> ArtifactUpdate:
        """Read a TaskArtifactUpdateEvent."""
        return ArtifactUpdate(
            task_id=model.task_id,
            context_id=model.context_id or None,
            artifact=self.read_artifact(model.artifact),
            append=bool(model.append),
            last_chunk=bool(model.last_chunk),
            metadata=model.metadata or {},
            extra=self._unsaid(model),
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
        return self._written(ArtifactEventModel, members, update.extra)


def without_extra(node: Node) -> Node:
    """Return an update, or anything in one, without what was kept from its origin's version."""
    if isinstance(node, tuple):
        items = tuple(map(without_extra, node))
        # What has nothing to lose is not built anew: most updates are the agent's own.
        return node if all(map(operator.is_, items, node)) else cast("Node", items)
    changes: dict[str, object] = {}
    kind: type = type(node)
    for name in _members(kind):
        value = getattr(node, name)
        said = (value and {}) if name in _KEPT else without_extra(value)
        if said is not value:
            changes[name] = said
    return replace(node, **changes) if changes else node  # type: ignore[type-var]  # has members


@functools.cache
def _members(node: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(node)) if is_dataclass(node) else ()


_KEPT = frozenset({"extra", "envelope_extra"})


def _says_nothing(value: JsonValue) -> bool:
    return value is None or value is False or value in ("", [], {})


def _timestamp_text(moment: datetime) -> str:
    if moment.utcoffset() is None:
        raise InvalidUpdateError("status.timestamp: expected an aware datetime")
    try:
        return format_timestamp(moment)
    except OverflowError as exc:
        raise InvalidUpdateError("status.timestamp: outside the years 1 to 9999 in UTC") from exc
