"""What AgentVault's parts and artifacts hold: `content`, or a `url`, or both."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Annotated

from pydantic import JsonValue as AnyJson

from pushkit.a2a.updates import (
    DataPart,
    Message,
    Part,
    RawPart,
    Role,
    TextPart,
    UnknownPart,
    UrlPart,
)
from pushkit.a2a.wire import Metadata, Required, WireObject, format_base64, read_base64
from pushkit.bounded_json import JsonObject, JsonValue

__all__ = [
    "CONTENT_MEMBERS",
    "ArtifactModel",
    "PartModel",
    "artifact_content",
    "artifact_parts",
    "artifact_type",
    "part_content",
    "plain_message",
    "plain_text",
    "read_content",
]

CONTENT_MEMBERS = ("type", "content", "url")


class PartModel(WireObject):
    """A part: its `type` says what `content` is; a file may have a `url` instead."""

    type: AnyJson = None
    content: AnyJson = None
    url: str | None = None
    media_type: str | None = None
    filename: str | None = None
    metadata: Metadata | None = None


class ArtifactModel(WireObject):
    """An artifact."""

    id: Annotated[str | None, Required] = None
    type: Annotated[str | None, Required] = None
    content: AnyJson = None
    url: str | None = None
    media_type: str | None = None
    metadata: Metadata | None = None


def plain_message(text: str) -> Message:
    """Return the plain text of a status as a message."""
    return Message(message_id="", role=Role.AGENT, parts=(TextPart(text=text),))


def plain_text(message: Message | None) -> str | None:
    """Return the text of a message, or None; whatever else it holds is lost."""
    texts = [part.text for part in message.parts if isinstance(part, TextPart)] if message else []
    return "\n".join(texts) or None


def read_content(part: PartModel) -> Part:
    """Read what a part of a message holds."""
    if part.type == "text" and isinstance(part.content, str):
        return TextPart(text=part.content)
    if part.type == "data" and part.content is not None:
        return DataPart(data=part.content)
    if part.type == "file" and part.url is not None:
        return UrlPart(url=part.url)
    raw = read_base64(part.content) if part.type == "file" else None
    return UnknownPart() if raw is None else RawPart(raw=raw)


def part_content(part: Part) -> JsonObject:
    """Return the members of a message's part that say what it is and holds."""
    match part:
        case TextPart():
            return {"type": "text", "content": part.text}
        case DataPart():
            return {"type": "data", "content": part.data}
        case UrlPart():
            return {"type": "file", "url": part.url}
        case RawPart():
            return {"type": "file", "content": format_base64(part.raw)}
        case UnknownPart():
            return {}


def artifact_parts(model: ArtifactModel) -> tuple[Part, ...]:
    """Return what an artifact holds, as one or two parts."""
    parts: list[Part] = []
    if isinstance(model.content, str):
        parts.append(TextPart(text=model.content))
    elif model.content is not None:
        parts.append(DataPart(data=model.content))
    if model.url is not None:
        parts.append(UrlPart(url=model.url))
    if not parts and model.media_type:
        parts.append(UnknownPart())
    if model.media_type:  # of the content, where there is one
        parts[0] = replace(parts[0], media_type=model.media_type)
    return tuple(parts)


def artifact_content(parts: tuple[Part, ...]) -> JsonObject:
    """Return the content and the URL of an artifact: the first of each that its parts have."""
    inline = next((part for part in parts if isinstance(part, TextPart | DataPart)), None)
    linked = next((part for part in parts if isinstance(part, UrlPart | RawPart)), None)
    first = inline or linked or next(iter(parts), None)
    content: JsonValue = None
    if inline is not None:
        content = inline.text if isinstance(inline, TextPart) else inline.data
    return {
        "content": content,
        "url": _artifact_url(linked) if linked else None,
        "mediaType": (first.media_type or None) if first else None,
    }


def _artifact_url(part: UrlPart | RawPart) -> str:
    if isinstance(part, UrlPart):
        return part.url
    # RFC 2397: the profile has no bytes in an artifact.
    encoded = base64.b64encode(part.raw).decode("ascii")
    return f"data:{part.media_type or 'application/octet-stream'};base64,{encoded}"


def artifact_type(parts: tuple[Part, ...]) -> str | None:
    """Return the type of an artifact that has no name."""
    for part in parts:
        if isinstance(part, TextPart):
            return "text"
        if isinstance(part, DataPart):
            return "data"
        if isinstance(part, UrlPart | RawPart):
            return "file"
    return None
