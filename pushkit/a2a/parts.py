"""The parts of messages and artifacts in A2A 0.1, 0.3 and 1.0.

In 0.1 to 0.3 a member names the kind of a part (§6.5 of each): `type` in 0.1, `kind` later. In 1.0
a part has one of four members, which determines its kind (§4.1.6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pushkit.a2a.kinds import BASE64, DATA, DATA_OBJECT, EXACT_TEXT, METADATA, TEXT, one, parts
from pushkit.a2a.table import AmbiguousError, Fixed, Member, MismatchError, Need, Table, lost
from pushkit.a2a.updates import DataPart, RawPart, TextPart, UnknownPart, UrlPart, WireVersion
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.record import field, record

V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0

# The official SDK's mark on a value that it wrapped into an object.
_WRAPPED = "data_part_compat"


@record(frozen=True, slots=True, kw_only=True)
class _File:
    """The object `file` of 0.1 to 0.3; the neutral form has its members in the part itself."""

    raw: bytes | None = None
    url: str | None = None
    media_type: str | None = None
    filename: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)


def _file(found: dict[str, Any], rest: JsonObject) -> _File:
    if ("raw" in found) == ("url" in found):
        kind = AmbiguousError if found.keys() >= {"raw", "url"} else MismatchError
        raise kind("expected either bytes or uri")
    return _File(**found, extra=rest)


_FILE = Table(  # 0.3 §6.6
    _File,
    Member("raw", "bytes", BASE64, strict=True),
    Member("url", "uri", EXACT_TEXT, strict=True),
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
        raw=getattr(part, "raw", None),
        url=getattr(part, "url", None),
        media_type=part.media_type,
        filename=part.filename,
        extra=kept if isinstance(kept, dict) else {},
    )
    return file, part.metadata


def _unwrapped(found: dict[str, Any], rest: JsonObject) -> DataPart:
    data, metadata = found["data"], found.get("metadata", {})
    # Unwrap only values that `_wrapped` could have made, so that others stay unchanged.
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


def _typed(discriminator: str) -> dict[str, Table]:
    """Return the tables of parts by the value of the discriminating member; "" for any other."""
    metadata = Member("metadata", "metadata", METADATA)
    without = lost("media_type", "filename")
    return {
        "text": Table(  # 0.3 §6.5.1
            TextPart,
            Fixed(discriminator, "text"),
            Member("text", "text", EXACT_TEXT, Need.BOTH),
            metadata,
            *without,
        ),
        "file": Table(  # 0.3 §6.5.2
            RawPart | UrlPart,
            Fixed(discriminator, "file"),
            Member("file", "file", one(_FILE), Need.BOTH),
            metadata,
            build=_file_part,
            values=_file_members,
        ),
        "data": Table(  # 0.3 §6.5.3
            DataPart,
            Fixed(discriminator, "data"),
            Member("data", "data", DATA_OBJECT, Need.BOTH),
            metadata,
            *without,
            build=_unwrapped,
            values=_wrapped,
        ),
        "": Table(UnknownPart, metadata, *without),
    }


_ABOUT = (
    Member("metadata", "metadata", METADATA),
    Member("filename", "filename", TEXT),
    Member("media_type", "mediaType", TEXT),
)
PARTS: dict[WireVersion, dict[str, Table]] = {
    V0_1: _typed("type"),
    V0_3: _typed("kind"),
    V1_0: {
        "text": Table(TextPart, Member("text", "text", EXACT_TEXT, Need.BOTH), *_ABOUT),
        "raw": Table(RawPart, Member("raw", "raw", BASE64, Need.BOTH), *_ABOUT),
        "url": Table(UrlPart, Member("url", "url", EXACT_TEXT, Need.BOTH), *_ABOUT),
        "data": Table(DataPart, Member("data", "data", DATA), *_ABOUT),
        "": Table(UnknownPart, *_ABOUT),
    },
}


def _kind_in_0_1(item: JsonObject) -> object:
    if item.get("type") == "file" and isinstance(file := item.get("file"), dict):
        # §6.6 permits a file with neither bytes nor URI: a part without known content.
        return "file" if any(file.get(name) is not None for name in ("bytes", "uri")) else ""
    return item.get("type")


_CONTENT_IN_1_0 = frozenset({"text", "raw", "url", "data"})
# Frameworks mix the two: by `kind` of 0.3, the contents of 1.0 that may not stand beside it.
_NOT_SAID_BY_KIND = {
    "text": _CONTENT_IN_1_0 - {"text"},
    "file": _CONTENT_IN_1_0 - {"raw", "url"},
    "data": _CONTENT_IN_1_0 - {"data"},
}


def _has_file(item: JsonObject) -> bool:
    return item.get("kind") == "file" and isinstance(item.get("file"), dict)


def _content(item: JsonObject) -> str:
    """Return the content of a part in 1.0, also beside the same `kind`; empty if it has none."""
    found = [name for name in item if name in _CONTENT_IN_1_0 and item[name] is not None]
    if len(found) == 1 and "kind" not in item:
        return found[0]
    kind = item.get("kind")
    if found and isinstance(kind, str) and kind in _NOT_SAID_BY_KIND:
        if len(found) > 1 or found[0] in _NOT_SAID_BY_KIND[kind] or _has_file(item):
            members = " and ".join(found)
            raise AmbiguousError(f"{kind} by the kind of A2A 0.3, and {members} as in A2A 1.0")
    elif len(found) > 1:
        raise AmbiguousError("expected only one of text, raw, url and data")
    return found[0] if found else ""


def _kind_in_0_3(item: JsonObject) -> object:
    kind = item.get("kind")
    if isinstance(kind, str) and kind in _NOT_SAID_BY_KIND:
        if kind != "file" and _NOT_SAID_BY_KIND[kind].isdisjoint(item):
            return kind
    elif "kind" in item or "type" in item:  # of a later or an earlier version
        return kind
    content = _content(item)
    return f"{content} of 1.0" if content and kind in (None, "file") else kind


def _kind_in_1_0(item: JsonObject) -> str:
    if content := _content(item):
        return content
    # A part with none is of a later version: it is not refused. Only `data` may be null.
    return "file of 0.3" if _has_file(item) else "data" if "data" in item else ""


PART_LIST = {
    V0_1: parts(_kind_in_0_1, PARTS[V0_1]),
    V0_3: parts(
        _kind_in_0_3,
        {f"{name} of 1.0": PARTS[V1_0][name] for name in _CONTENT_IN_1_0} | PARTS[V0_3],
        may_be_none=True,
    ),
    V1_0: parts(_kind_in_1_0, {"file of 0.3": PARTS[V0_3]["file"]} | PARTS[V1_0]),
}
