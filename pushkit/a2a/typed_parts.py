"""The parts of A2A 0.1 to 0.3: a member of its own says which kind a part is (0.3 §6.5, 0.1 §6.5).

That member is `kind` since 0.2, and `type` before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pushkit.a2a.kinds import BASE64, DATA_OBJECT, EXACT_TEXT, METADATA, TEXT, one
from pushkit.a2a.table import Fixed, Lost, Member, MismatchError, Need, Table
from pushkit.a2a.updates import DataPart, RawPart, TextPart, UnknownPart, UrlPart
from pushkit.bounded_json import JsonObject, JsonValue

__all__ = ["part_tables"]

# The official SDK's mark of a value that had to be wrapped into an object.
_WRAPPED = "data_part_compat"


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """What 0.1 to 0.3 have in an object of its own, and the neutral form in the part itself."""

    raw: bytes | None = None
    url: str | None = None
    media_type: str | None = None
    filename: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


def _file(found: dict[str, Any], rest: JsonObject) -> _File:
    if ("raw" in found) == ("url" in found):
        raise MismatchError("expected either bytes or uri")
    return _File(**found, extra=rest)


_FILE = Table(  # 0.3 §6.6
    _File,
    Member("raw", "bytes", BASE64),
    Member("url", "uri", EXACT_TEXT),
    Member("media_type", "mimeType", TEXT),
    Member("filename", "name", TEXT),
    build=_file,
)


def _file_part(found: dict[str, Any], rest: JsonObject) -> RawPart | UrlPart:
    file: _File = found.pop("file")
    about = found | {"media_type": file.media_type, "filename": file.filename}
    if file.extra:  # kept under the name of its object
        rest["file"] = dict(file.extra)
    if file.raw is not None:
        return RawPart(raw=file.raw, extra=rest, **about)
    return UrlPart(url=file.url or "", extra=rest, **about)


def _file_members(part: RawPart | UrlPart) -> tuple[object, ...]:
    kept = part.extra.get("file")
    file = _File(
        raw=part.raw if isinstance(part, RawPart) else None,
        url=part.url if isinstance(part, UrlPart) else None,
        media_type=part.media_type,
        filename=part.filename,
        extra=kept if isinstance(kept, dict) else {},
    )
    return file, part.metadata


def _unwrapped(found: dict[str, Any], rest: JsonObject) -> DataPart:
    data, metadata = found["data"], found.get("metadata", {})
    # Only what `_wrapped` makes, so that everything else comes back as it was.
    if metadata.get(_WRAPPED) is True and data.keys() == {"value"}:
        value = data["value"]
        if not isinstance(value, dict):
            data = value
            metadata = {name: item for name, item in metadata.items() if name != _WRAPPED}
    return DataPart(data=data, metadata=metadata, extra=rest)


def _wrapped(part: DataPart) -> tuple[object, ...]:
    if isinstance(part.data, dict):
        return part.data, part.metadata
    return {"value": part.data}, {**part.metadata, _WRAPPED: True}


def part_tables(discriminator: str) -> dict[str, Table]:
    """Return the tables of parts by what the discriminating member says; "" is anything else."""
    metadata = Member("metadata", "metadata", METADATA)
    lost = (Lost("media_type"), Lost("filename"))
    return {
        "text": Table(  # 0.3 §6.5.1
            TextPart,
            Fixed(discriminator, "text"),
            Member("text", "text", EXACT_TEXT, Need.BOTH),
            metadata,
            *lost,
        ),
        "file": Table(  # 0.3 §6.5.2
            _File,
            Fixed(discriminator, "file"),
            Member("file", "file", one(_FILE), Need.BOTH),
            metadata,
            build=_file_part,
            take=_file_members,
        ),
        "data": Table(  # 0.3 §6.5.3
            DataPart,
            Fixed(discriminator, "data"),
            Member("data", "data", DATA_OBJECT, Need.BOTH),
            metadata,
            *lost,
            build=_unwrapped,
            take=_wrapped,
        ),
        "": Table(UnknownPart, metadata, *lost),
    }


def by_class(tables: Mapping[str, Table]) -> dict[type, Table]:
    """Return the same tables by the class of part that each writes."""
    return {
        TextPart: tables["text"],
        RawPart: tables["file"],
        UrlPart: tables["file"],
        DataPart: tables["data"],
        UnknownPart: tables[""],
    }
