"""A2A 0.2 and 0.3: a notification is an object with a `kind` (0.3 §6, §7.2, §9.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, TypeAlias

from pydantic import Discriminator, Tag, model_validator
from pydantic import JsonValue as AnyJson
from pydantic_core import PydanticCustomError

from pushkit.a2a.dialect import Dialect, without_extra
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
    UpdateKind,
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

__all__ = ["V0_3"]

# The official SDK's mark of a value that had to be wrapped into an object.
_WRAPPED = "data_part_compat"


class PartModel(WireObject):
    """A2A 0.3 §6.5: a part of any kind, also of one that is not known."""

    kind: AnyJson = None
    metadata: Metadata | None = None


class TextPartModel(PartModel):
    """A2A 0.3 §6.5.1."""

    text: str


class FileModel(WireObject):
    """A2A 0.3 §6.6: a file has either `bytes` or `uri`."""

    bytes: Base64Text | None = None
    uri: str | None = None
    mime_type: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _one_content(self) -> FileModel:
        if (self.bytes is None) == (self.uri is None):
            raise PydanticCustomError("one_of", "expected either bytes or uri")
        return self


class FilePartModel(PartModel):
    """A2A 0.3 §6.5.2."""

    file: FileModel


class DataPartModel(PartModel):
    """A2A 0.3 §6.5.3."""

    data: dict[str, AnyJson]


def _part_tag(part: object) -> str:
    kind = part.get("kind") if isinstance(part, dict) else None
    return f"@{kind}" if kind in ("text", "file", "data") else "@other"


AnyPart: TypeAlias = Annotated[
    Annotated[TextPartModel, Tag("@text")]
    | Annotated[FilePartModel, Tag("@file")]
    | Annotated[DataPartModel, Tag("@data")]
    | Annotated[PartModel, Tag("@other")],
    Discriminator(_part_tag),
]

_MODELS: Mapping[UpdateKind, type[WireObject]] = {
    UpdateKind.TASK: TaskModel[AnyPart],
    UpdateKind.STATUS_UPDATE: StatusEventModel[AnyPart],
    UpdateKind.ARTIFACT_UPDATE: ArtifactEventModel[AnyPart],
    UpdateKind.MESSAGE: MessageModel[AnyPart],
}
_KINDS: tuple[JsonValue, ...] = (*(kind.value for kind in UpdateKind), "text", "file", "data")
_STATE_NAMES = {state: state.value for state in TaskState}
_ROLE_NAMES = {role: role.value for role in (Role.USER, Role.AGENT)}
_STATES: dict[JsonValue, TaskState] = {name: state for state, name in _STATE_NAMES.items()}
_ROLES: dict[JsonValue, Role] = {name: role for role, name in _ROLE_NAMES.items()}


class V0_3(Dialect[AnyPart]):  # noqa: N801  (the version's name)
    """The A2A 0.2 and 0.3 dialect."""

    version = WireVersion.V0_3
    state_names = _STATE_NAMES
    role_names = _ROLE_NAMES
    verbatim = frozenset({"text", "uri", "data", "final"})

    def read(self, document: Mapping[str, JsonValue]) -> TaskUpdate:
        """Read a task, an event or a message; a task may lack its `kind`."""
        kind = document.get("kind", UpdateKind.TASK.value)
        match kind:
            case UpdateKind.TASK.value:
                task = checked(TaskModel[AnyPart], document, UnrecognisedBodyError)
                return TaskSnapshot(task=self.read_task(task), origin=self.version)
            case UpdateKind.STATUS_UPDATE.value:
                status = checked(StatusEventModel[AnyPart], document, UnrecognisedBodyError)
                return self.read_status_event(status)
            case UpdateKind.ARTIFACT_UPDATE.value:
                artifact = checked(ArtifactEventModel[AnyPart], document, UnrecognisedBodyError)
                return self.read_artifact_event(artifact)
            case UpdateKind.MESSAGE.value:
                message = checked(MessageModel[AnyPart], document, UnrecognisedBodyError)
                return MessageUpdate(message=self.read_message(message), origin=self.version)
        raise UnrecognisedBodyError(f"kind: expected one of {', '.join(UpdateKind)}")

    def write(self, update: TaskUpdate) -> JsonObject:
        """Write an object with its `kind`."""
        said = update if update.origin is self.version else without_extra(update)
        document = self._write_update(said)
        checked(_MODELS[update.kind], document, InvalidUpdateError, writing=self.version)
        return document

    def _write_update(self, update: TaskUpdate) -> JsonObject:
        match update:
            case TaskSnapshot():
                return self.write_task(update.task)
            case StatusUpdate():
                return self.write_status_event(update)
            case ArtifactUpdate():
                return self.write_artifact_event(update)
            case MessageUpdate():
                return self.write_message(update.message)

    def kind(self, kind: UpdateKind) -> str:
        """Return the `kind` member."""
        return kind.value

    def final(self, update: StatusUpdate) -> bool:
        """Return `final`, derived from the state if the update does not say."""
        if update.final is not None:
            return update.final
        return update.state.terminal or update.state.interrupted

    def read_state(self, name: JsonValue) -> TaskState:
        """Read a state by name."""
        return _STATES.get(name, TaskState.UNKNOWN) if isinstance(name, str) else TaskState.UNKNOWN

    def read_role(self, name: JsonValue) -> Role:
        """Read a role by name."""
        return _ROLES.get(name, Role.UNSPECIFIED) if isinstance(name, str) else Role.UNSPECIFIED

    def rewritten(self, member: str, original: JsonValue) -> JsonValue:
        """See `Dialect.rewritten`."""
        match member:
            case "kind":
                return original if original in _KINDS else None
            case "bytes":
                raw = read_base64(original)
                return None if raw is None else format_base64(raw)
        return super().rewritten(member, original)

    # --- parts -----------------------------------------------------------------------------

    def read_part(self, part: AnyPart) -> Part:
        """Read one part."""
        metadata, extra = part.metadata or {}, self._unsaid(part)
        match part:
            case TextPartModel():
                return TextPart(text=part.text, metadata=metadata, extra=extra)
            case DataPartModel():
                return replace(_unwrapped(part.data, metadata), extra=extra)
            case FilePartModel():
                # What the file object has beside the known members is kept under its name.
                of_file = self._unsaid(part.file)
                extra |= {"file": of_file} if of_file else {}
                return replace(_read_file(part.file), metadata=metadata, extra=extra)
        return UnknownPart(metadata=metadata, extra=extra)

    def write_part(self, part: Part) -> JsonObject | None:
        """Write one part; an unknown one only from its own version's extra."""
        metadata: JsonValue = dict(part.metadata) or None
        match part:
            case TextPart():
                text: JsonObject = {"kind": "text", "text": part.text, "metadata": metadata}
                return self._written(TextPartModel, text, part.extra)
            case RawPart() | UrlPart():
                file: JsonObject = {"kind": "file", "file": self._file(part), "metadata": metadata}
                return self._written(FilePartModel, file, part.extra)
            case DataPart():
                return self._written(DataPartModel, _wrapped(part), part.extra)
            case UnknownPart():
                unknown = self._written(PartModel, {"metadata": metadata}, part.extra)
                return unknown if part.extra else None

    def _file(self, part: RawPart | UrlPart) -> JsonObject:
        members: JsonObject = {
            "bytes": format_base64(part.raw) if isinstance(part, RawPart) else None,
            "uri": part.url if isinstance(part, UrlPart) else None,
            "mimeType": part.media_type or None,
            "name": part.filename or None,
        }
        kept = part.extra.get("file")
        return self._written(FileModel, members, kept if isinstance(kept, dict) else {})


def _read_file(file: FileModel) -> RawPart | UrlPart:
    media_type, filename = file.mime_type or None, file.name or None
    if file.uri is not None:
        return UrlPart(url=file.uri, media_type=media_type, filename=filename)
    return RawPart(raw=read_base64(file.bytes) or b"", media_type=media_type, filename=filename)


def _unwrapped(data: JsonObject, metadata: JsonObject) -> DataPart:
    value = data.get("value")
    # Only what `_wrapped` makes, so that everything else comes back as it was.
    if metadata.get(_WRAPPED) is not True or data.keys() != {"value"} or isinstance(value, dict):
        return DataPart(data=data, metadata=metadata)
    rest = {name: item for name, item in metadata.items() if name != _WRAPPED}
    return DataPart(data=value, metadata=rest)


def _wrapped(part: DataPart) -> JsonObject:
    data, metadata = part.data, dict(part.metadata)
    if not isinstance(data, dict):
        data, metadata = {"value": data}, metadata | {_WRAPPED: True}
    return {"kind": "data", "data": data, "metadata": metadata or None}
