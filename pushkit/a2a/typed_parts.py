"""The parts of A2A 0.1 to 0.3: a member of its own says which kind a part is (0.3 §6.5, 0.1 §6.5).

That member is `kind` since 0.2, and `type` before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, TypeAlias

from pydantic import Discriminator, Tag, model_validator
from pydantic import JsonValue as AnyJson
from pydantic_core import PydanticCustomError

from pushkit.a2a.dialect import Dialect
from pushkit.a2a.updates import DataPart, Part, RawPart, TextPart, UnknownPart, UrlPart
from pushkit.a2a.wire import (
    Base64Text,
    Metadata,
    WireObject,
    format_base64,
    read_base64,
)
from pushkit.bounded_json import JsonObject, JsonValue

__all__ = ["AnyPart", "KindPart", "TypePart", "TypedParts"]

# The official SDK's mark of a value that had to be wrapped into an object.
_WRAPPED = "data_part_compat"


class PartModel(WireObject):
    """A2A 0.3 §6.5: a part of any kind, also of one that is not known."""

    kind: AnyJson = None  # 0.2 and later
    type: AnyJson = None  # 0.1
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


_PART_KINDS = ("text", "file", "data")


def _by_kind(part: object) -> str:
    kind = part.get("kind") if isinstance(part, dict) else None
    return f"@{kind}" if kind in _PART_KINDS else "@other"


def _by_type(part: object) -> str:
    if not isinstance(part, dict) or part.get("type") not in _PART_KINDS:
        return "@other"
    # 0.1 §6.6 permits a file of neither bytes nor URI: a part without known content.
    file = part.get("file") if part["type"] == "file" else None
    if isinstance(file, dict) and file.get("bytes") is None and file.get("uri") is None:
        return "@other"
    return f"@{part['type']}"


AnyPart: TypeAlias = (
    Annotated[TextPartModel, Tag("@text")]
    | Annotated[FilePartModel, Tag("@file")]
    | Annotated[DataPartModel, Tag("@data")]
    | Annotated[PartModel, Tag("@other")]
)
KindPart: TypeAlias = Annotated[AnyPart, Discriminator(_by_kind)]
TypePart: TypeAlias = Annotated[AnyPart, Discriminator(_by_type)]


class TypedParts(Dialect):
    """A dialect whose parts name their kind."""

    discriminator: ClassVar[str]
    # What the discriminating member may say in this version, of parts and of whatever else has one.
    kinds: ClassVar[tuple[JsonValue, ...]] = _PART_KINDS

    def rewritten(self, member: str, original: JsonValue) -> JsonValue:
        """See `Dialect.rewritten`."""
        match member:
            case "kind" | "type":
                said = member == self.discriminator and original in self.kinds
                return original if said else None
            case "bytes":
                raw = read_base64(original)
                return None if raw is None else format_base64(raw)
        return super().rewritten(member, original)

    def read_part(self, part: AnyPart) -> Part:
        """Read one part."""
        metadata, extra = part.metadata or {}, self.unsaid(part)
        match part:
            case TextPartModel():
                return TextPart(text=part.text, metadata=metadata, extra=extra)
            case DataPartModel():
                return replace(_unwrapped(part.data, metadata), extra=extra)
            case FilePartModel():
                # What the file object has beside the known members is kept under its name.
                of_file = self.unsaid(part.file)
                extra |= {"file": of_file} if of_file else {}
                return replace(_read_file(part.file), metadata=metadata, extra=extra)
        kind = part.type if self.discriminator == "type" else part.kind
        extra |= {} if kind is None else {self.discriminator: kind}
        return UnknownPart(metadata=metadata, extra=extra)

    def write_part(self, part: Part) -> JsonObject | None:
        """Write one part; an unknown one only from its own version's extra."""
        metadata: JsonValue = dict(part.metadata) or None
        match part:
            case TextPart():
                text: JsonObject = {"text": part.text, "metadata": metadata}
                return self.written(TextPartModel, self._kind("text") | text, part.extra)
            case RawPart() | UrlPart():
                file: JsonObject = {"file": self._file(part), "metadata": metadata}
                return self.written(FilePartModel, self._kind("file") | file, part.extra)
            case DataPart():
                data = self._kind("data") | _wrapped(part)
                return self.written(DataPartModel, data, part.extra)
            case UnknownPart():
                members = self._kind(part.extra.get(self.discriminator)) | {"metadata": metadata}
                unknown = self.written(PartModel, members, part.extra)
                return unknown if part.extra else None

    def _kind(self, kind: JsonValue) -> JsonObject:
        return {self.discriminator: kind}

    def _file(self, part: RawPart | UrlPart) -> JsonObject:
        members: JsonObject = {
            "bytes": format_base64(part.raw) if isinstance(part, RawPart) else None,
            "uri": part.url if isinstance(part, UrlPart) else None,
            "mimeType": part.media_type or None,
            "name": part.filename or None,
        }
        kept = part.extra.get("file")
        return self.written(FileModel, members, kept if isinstance(kept, dict) else {})


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
    return {"data": data, "metadata": metadata or None}
