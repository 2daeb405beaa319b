"""A2A 1.0: a notification is a `StreamResponse` (§4.3.3) in ProtoJSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import JsonValue as AnyJson
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from pushkit.a2a.dialect import without_extra
from pushkit.a2a.objects import ObjectDialect
from pushkit.a2a.updates import (
    ArtifactUpdate,
    DataPart,
    MessageUpdate,
    Part,
    RawPart,
    Role,
    StatusUpdate,
    TaskSnapshot,
    TaskState,
    TaskUpdate,
    TextPart,
    UnknownPart,
    UrlPart,
    WireVersion,
)
from pushkit.a2a.wire import (
    ArtifactEventModel,
    Base64Text,
    MessageModel,
    Metadata,
    StatusEventModel,
    TaskModel,
    WireObject,
    checked,
    format_base64,
    read_base64,
)
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidUpdateError, UnrecognisedBodyError

__all__ = ["V1_0", "StreamResponseModel"]

_STATE_NAMES = {
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
_ROLE_NAMES = {Role.USER: "ROLE_USER", Role.AGENT: "ROLE_AGENT"}

# ProtoJSON readers take an enum by its name or its number; the tables are in the numbers' order.
_STATES: dict[JsonValue, TaskState] = {name: state for state, name in _STATE_NAMES.items()}
_STATES |= dict(enumerate(_STATE_NAMES))
_ROLES: dict[JsonValue, Role] = {name: role for role, name in _ROLE_NAMES.items()}
_ROLES |= dict(enumerate(_ROLE_NAMES, start=1))


class PartModel(WireObject):
    """A2A 1.0 §4.1.6: a part is told by which one of four members it has."""

    text: str | None = None
    raw: Base64Text | None = None
    url: str | None = None
    data: AnyJson = None
    media_type: str | None = None
    filename: str | None = None
    metadata: Metadata | None = None

    def contents(self) -> list[str]:
        """Return the content members that are there. `data` may be null, the others not."""
        named = {"text": self.text, "raw": self.raw, "url": self.url, "data": self.data}
        found = [name for name, value in named.items() if value is not None]
        return found or [name for name in ("data",) if name in self.model_fields_set]

    @model_validator(mode="after")
    def _at_most_one_content(self) -> PartModel:
        # None at all is a part of a later version: kept, not refused.
        if len(self.contents()) > 1:
            raise PydanticCustomError("one_of", "expected only one of text, raw, url and data")
        return self


class StreamResponseModel(WireObject):
    """A2A 1.0 §3.2.3: exactly one of four updates."""

    task: TaskModel[PartModel] | None = None
    message: MessageModel[PartModel] | None = None
    status_update: StatusEventModel[PartModel] | None = None
    artifact_update: ArtifactEventModel[PartModel] | None = None

    @model_validator(mode="after")
    def _exactly_one_update(self) -> StreamResponseModel:
        updates = (self.task, self.message, self.status_update, self.artifact_update)
        if sum(update is not None for update in updates) != 1:
            raise PydanticCustomError(
                "one_of", "expected exactly one of task, message, statusUpdate and artifactUpdate"
            )
        return self


class V1_0(ObjectDialect[PartModel]):  # noqa: N801  (the version's name)
    """The A2A 1.0 dialect."""

    version = WireVersion.V1_0
    state_names = _STATE_NAMES
    role_names = _ROLE_NAMES
    verbatim = frozenset({"text", "url", "data"})

    def read(self, document: Mapping[str, JsonValue]) -> TaskUpdate:
        """Read a StreamResponse."""
        model = checked(StreamResponseModel, document, UnrecognisedBodyError)
        return replace(self._read_update(model), envelope_extra=self.unsaid(model))

    def _read_update(self, model: StreamResponseModel) -> TaskUpdate:
        if model.task is not None:
            return TaskSnapshot(task=self.read_task(model.task), origin=self.version)
        if model.status_update is not None:
            return self.read_status_event(model.status_update)
        if model.artifact_update is not None:
            return self.read_artifact_event(model.artifact_update)
        if model.message is not None:
            return MessageUpdate(message=self.read_message(model.message), origin=self.version)
        raise UnrecognisedBodyError("a StreamResponse without an update")  # pragma: no cover

    def write(self, update: TaskUpdate) -> JsonObject:
        """Write a StreamResponse."""
        said = update if update.origin is self.version else without_extra(update)
        document = self.written(StreamResponseModel, self._write_update(said), said.envelope_extra)
        checked(StreamResponseModel, document, InvalidUpdateError, writing=self.version)
        return document

    def _write_update(self, update: TaskUpdate) -> JsonObject:
        match update:
            case TaskSnapshot():
                return {"task": self.write_task(update.task)}
            case StatusUpdate():
                return {"statusUpdate": self.write_status_event(update)}
            case ArtifactUpdate():
                return {"artifactUpdate": self.write_artifact_event(update)}
            case MessageUpdate():
                return {"message": self.write_message(update.message)}

    def read_state(self, name: JsonValue) -> TaskState:
        """Read a state by name or number."""
        return _STATES.get(name, TaskState.UNKNOWN) if _is_enum(name) else TaskState.UNKNOWN

    def read_role(self, name: JsonValue) -> Role:
        """Read a role by name or number."""
        return _ROLES.get(name, Role.UNSPECIFIED) if _is_enum(name) else Role.UNSPECIFIED

    def rewritten(self, member: str, original: JsonValue) -> JsonValue:
        """See `Dialect.rewritten`."""
        match member:
            case "kind" | "final":  # members of 0.3, which 1.0 does not write
                return None
            case "raw":
                raw = read_base64(original)
                return None if raw is None else format_base64(raw)
        return super().rewritten(member, original)

    def read_part(self, part: PartModel) -> Part:
        """Read one part."""
        read = self._read_content(part)
        return replace(
            read,
            media_type=part.media_type or None,
            filename=part.filename or None,
            metadata=part.metadata or {},
            extra=self.unsaid(part),
        )

    def _read_content(self, part: PartModel) -> Part:
        if part.text is not None:
            return TextPart(text=part.text)
        if part.raw is not None:
            return RawPart(raw=read_base64(part.raw) or b"")
        if part.url is not None:
            return UrlPart(url=part.url)
        return DataPart(data=part.data) if part.contents() else UnknownPart()

    def write_part(self, part: Part) -> JsonObject | None:
        """Write one part; an unknown one only from its own version's extra."""
        if isinstance(part, UnknownPart) and not part.extra:
            return None
        content = self._write_content(part)
        members: JsonObject = content | {
            "mediaType": part.media_type or None,
            "filename": part.filename or None,
            "metadata": dict(part.metadata) or None,
        }
        # `content` once more, because data may be null.
        return content | self.written(PartModel, members, part.extra)

    def _write_content(self, part: Part) -> JsonObject:
        match part:
            case TextPart():
                return {"text": part.text}
            case RawPart():
                return {"raw": format_base64(part.raw)}
            case UrlPart():
                return {"url": part.url}
            case DataPart():
                return {"data": part.data}
            case UnknownPart():
                return {}


def _is_enum(name: JsonValue) -> bool:
    return isinstance(name, str | int) and not isinstance(name, bool)
