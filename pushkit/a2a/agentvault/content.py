"""What AgentVault's parts and artifacts hold: `content`, or a `url`, or both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pushkit.a2a.kinds import (
    BASE64,
    CONTENT,
    DATA,
    EXACT_TEXT,
    METADATA,
    TEXT,
    format_base64,
    read_base64,
)
from pushkit.a2a.table import Fixed, Lost, Member, Need, Table
from pushkit.a2a.updates import (
    Artifact,
    DataPart,
    Message,
    Part,
    RawPart,
    Role,
    TextPart,
    UnknownPart,
    UrlPart,
)
from pushkit.bounded_json import JsonObject

__all__ = ["ARTIFACT", "PARTS", "plain_message", "plain_text", "read_part"]


def plain_message(text: str) -> Message:
    """Return the plain text of a status as a message."""
    return Message(message_id="", role=Role.AGENT, parts=(TextPart(text=text),))


def plain_text(message: Message | None) -> str | None:
    """Return the text of a message, or None; whatever else it holds is lost."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)] if message else []
    return "\n".join(texts) or None


# --- parts: `type` says what `content` is; a file may have a `url` instead -----------------------

_ABOUT_A_PART = (
    Member("media_type", "mediaType", TEXT),
    Member("filename", "filename", TEXT),
    Member("metadata", "metadata", METADATA),
)
_URL_BESIDE = Member("", "url", TEXT, kept=True)
PARTS: dict[str, Table] = {
    "text": Table(
        TextPart,
        Fixed("type", "text"),
        Member("text", "content", EXACT_TEXT, Need.BOTH),
        *_ABOUT_A_PART,
        _URL_BESIDE,
    ),
    "data": Table(
        DataPart,
        Fixed("type", "data"),
        Member("data", "content", DATA, Need.BOTH),
        *_ABOUT_A_PART,
        _URL_BESIDE,
    ),
    "url": Table(
        UrlPart,
        Fixed("type", "file"),
        Member("url", "url", EXACT_TEXT, Need.BOTH),
        *_ABOUT_A_PART,
    ),
    "raw": Table(
        RawPart,
        Fixed("type", "file"),
        Member("raw", "content", BASE64, Need.BOTH),
        *_ABOUT_A_PART,
        _URL_BESIDE,
    ),
    "": Table(UnknownPart, *_ABOUT_A_PART, _URL_BESIDE),
}


def read_part(item: JsonObject) -> Part:
    """Read a part of a message."""
    part: Part = PARTS[_content_of(item)].read(item)
    return part


def _content_of(item: JsonObject) -> str:
    content = item.get("content")
    match item.get("type"):
        case "text" if isinstance(content, str):
            return "text"
        case "data" if content is not None:
            return "data"
        case "file" if item.get("url") is not None:
            return "url"
        case "file" if read_base64(content) is not None:
            return "raw"
    return ""


# --- artifacts: one content, one URL, or both ----------------------------------------------------


def _artifact(found: dict[str, Any], rest: JsonObject) -> Artifact:
    content, url, media_type = (found.pop(name, None) for name in ("content", "url", "media_type"))
    parts: list[Part] = []
    if isinstance(content, str):
        parts.append(TextPart(text=content))
    elif content is not None:
        parts.append(DataPart(data=content))
    if url is not None:
        parts.append(UrlPart(url=url))
    if media_type:  # of the content, where there is one
        first = parts[0] if parts else UnknownPart()
        parts[:1] = [replace(first, media_type=media_type)]
    return Artifact(parts=tuple(parts), extra=rest, **found)


def _members(artifact: Artifact) -> tuple[object, ...]:
    """Return what the profile can say: the first content and the first URL of the parts."""
    inline = next((part for part in artifact.parts if isinstance(part, TextPart | DataPart)), None)
    linked = next((part for part in artifact.parts if isinstance(part, UrlPart | RawPart)), None)
    first = inline or linked or next(iter(artifact.parts), None)
    known = next((part for part in artifact.parts if not isinstance(part, UnknownPart)), None)
    return (
        artifact.artifact_id,
        artifact.name or _TYPES.get(type(known)),
        inline.text if isinstance(inline, TextPart) else inline.data if inline else None,
        None if linked is None else linked.url if isinstance(linked, UrlPart) else _data(linked),
        first.media_type if first else None,
        artifact.metadata,
    )


_TYPES: dict[type, str] = {TextPart: "text", DataPart: "data", UrlPart: "file", RawPart: "file"}


def _data(part: RawPart) -> str:
    # RFC 2397: the profile has no bytes in an artifact.
    return f"data:{part.media_type or 'application/octet-stream'};base64,{format_base64(part.raw)}"


ARTIFACT = Table(
    Artifact,
    Member("artifact_id", "id", TEXT, Need.WRITER),
    Member("name", "type", TEXT, Need.WRITER),
    Member("content", "content", CONTENT),
    Member("url", "url", EXACT_TEXT),
    Member("media_type", "mediaType", TEXT),
    Member("metadata", "metadata", METADATA),
    Lost("description"),
    Lost("extensions"),
    build=_artifact,
    take=_members,
)
