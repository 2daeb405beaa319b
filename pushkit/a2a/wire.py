"""The members that A2A 0.3 and 1.0 share, as pydantic checks them.

One set of models serves both directions. Reading (no context) is tolerant: only what an update is
about must be there. Writing (context: the version) adds what that version's specification requires,
because the published 1.0 schema has neither `required` nor one-of.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from pushkit.a2a.updates import WireVersion
from pushkit.errors import PushkitError

__all__ = [
    "ArtifactEventModel",
    "ArtifactModel",
    "Base64Text",
    "EnumValue",
    "Identifier",
    "MessageModel",
    "Metadata",
    "Required",
    "Several",
    "StatusEventModel",
    "StatusModel",
    "TaskModel",
    "WireObject",
    "checked",
    "format_base64",
    "format_timestamp",
    "member_names",
    "read_base64",
    "read_timestamp",
    "received",
]


class WireObject(BaseModel):
    """An object on the wire: camelCase, or the snake_case names that ProtoJSON readers accept."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="allow",
        strict=True,
        validate_default=True,
        hide_input_in_errors=True,
    )
    __pydantic_extra__: dict[str, JsonValue] = Field(init=False)

    @model_validator(mode="after")
    def _one_spelling(self) -> WireObject:
        # Two readers could each take another one of the two for the truth.
        twice = [name for name in self.__pydantic_extra__ if name in type(self).model_fields]
        if twice:
            raise PydanticCustomError(
                "spelled_twice", "{name} is given in both spellings", {"name": to_camel(twice[0])}
            )
        return self


Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")
PartT = TypeVar("PartT")


def _required_in(*versions: WireVersion) -> AfterValidator:
    def check(value: Value, info: ValidationInfo) -> Value:
        if info.context in versions and (value is None or value in ("", [])):
            raise PydanticCustomError("required", "expected a value that is not empty")
        return value

    return AfterValidator(check)


def _check_base64(text: str) -> str:
    if read_base64(text) is None:
        raise PydanticCustomError("base64", "expected base64 (RFC 4648 §4 or §5)")
    return text


def _check_enum(value: JsonValue) -> JsonValue:
    if isinstance(value, bool) or not isinstance(value, str | int | None):
        raise PydanticCustomError("enum_value", "expected a name, or a number")
    return value


Required = _required_in(*WireVersion)
Identifier = Annotated[str, Field(min_length=1)]
Base64Text = Annotated[str, AfterValidator(_check_base64)]
EnumValue = Annotated[JsonValue, AfterValidator(_check_enum)]
Metadata = dict[str, JsonValue]


class _FirstComplaint(FailFast):
    """Ends a list at its first wrong item: a megabyte of them must not become as many errors."""

    # Python 3.11 hashes what stands in `Annotated[...] | None`.
    __hash__ = object.__hash__


Several: TypeAlias = Annotated[list[Value], _FirstComplaint()]


class MessageModel(WireObject, Generic[PartT]):
    """A2A 1.0 §4.1.4, 0.3 §6.4: Message."""

    kind: JsonValue = None
    message_id: Annotated[str | None, Required] = None
    context_id: str | None = None
    task_id: str | None = None
    role: Annotated[EnumValue, Required] = None
    parts: Annotated[Several[PartT] | None, Required] = None
    metadata: Metadata | None = None
    extensions: Several[str] | None = None
    reference_task_ids: Several[str] | None = None


class ArtifactModel(WireObject, Generic[PartT]):
    """A2A 1.0 §4.1.7, 0.3 §6.7: Artifact."""

    artifact_id: Annotated[str | None, Required] = None
    name: str | None = None
    description: str | None = None
    parts: Annotated[Several[PartT] | None, Required] = None
    metadata: Metadata | None = None
    extensions: Several[str] | None = None


class StatusModel(WireObject, Generic[PartT]):
    """A2A 1.0 §4.1.2, 0.3 §6.2: TaskStatus."""

    state: Annotated[EnumValue, Required] = None
    message: MessageModel[PartT] | None = None
    timestamp: str | None = None


class TaskModel(WireObject, Generic[PartT]):
    """A2A 1.0 §4.1.1, 0.3 §6.1: Task. 1.0 lets `contextId` out, 0.3 does not."""

    kind: JsonValue = None
    id: Identifier
    context_id: Annotated[str | None, _required_in(WireVersion.V0_3)] = None
    status: StatusModel[PartT]
    artifacts: Several[ArtifactModel[PartT]] | None = None
    history: Several[MessageModel[PartT]] | None = None
    metadata: Metadata | None = None


class StatusEventModel(WireObject, Generic[PartT]):
    """A2A 1.0 §4.2.1, 0.3 §7.2.2: TaskStatusUpdateEvent. `final` is of 0.3; some 1.0 send it."""

    kind: JsonValue = None
    task_id: Identifier
    context_id: Annotated[str | None, Required] = None
    status: StatusModel[PartT]
    final: bool | None = None
    metadata: Metadata | None = None


class ArtifactEventModel(WireObject, Generic[PartT]):
    """A2A 1.0 §4.2.2, 0.3 §7.2.3: TaskArtifactUpdateEvent."""

    kind: JsonValue = None
    task_id: Identifier
    context_id: Annotated[str | None, Required] = None
    artifact: ArtifactModel[PartT]
    append: bool | None = None
    last_chunk: bool | None = None
    metadata: Metadata | None = None


# --- checking ----------------------------------------------------------------------------------


def checked(
    model: type[Model],
    document: Mapping[str, JsonValue],
    error: type[PushkitError],
    *,
    writing: WireVersion | None = None,
) -> Model:
    """Check a document against a model, as what is read or as what is about to be written.

    Raises:
        error: It does not fit; the message names the member, what was expected, never a value.
    """
    try:
        return model.model_validate(dict(document), context=writing)
    except ValidationError as exc:
        raise error(_first_complaint(exc)) from exc
    except RecursionError as exc:
        raise error("nested too deeply") from exc


def _first_complaint(exc: ValidationError) -> str:
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    # Steps that start with "@" are tags of a union, not members.
    steps = [_member(step) for step in first["loc"] if not str(step).startswith("@")]
    expected = _EXPECTED.get(first["type"]) or first["msg"].replace("Input should be", "expected")
    return f"{'.'.join(steps) or 'the document'}: {expected}"


# For errors whose own message names a class of ours, or not what was expected.
_EXPECTED = {"missing": "expected, but missing", "model_type": "expected an object"}


def _member(step: str | int) -> str:
    # An absent member is reported under the model's name for it.
    return to_camel(step) if isinstance(step, str) and "_" in step else str(step)


@cache
def member_names(model: type[WireObject]) -> frozenset[str]:
    """Return the members that a model knows, as they are written."""
    return frozenset(member.alias or name for name, member in model.model_fields.items())


def received(model: WireObject) -> dict[str, Any]:
    """Return the members that were received, known ones (as models) and unknown ones."""
    known = {
        member.alias or name: getattr(model, name)
        for name, member in type(model).model_fields.items()
        if name in model.model_fields_set
    }
    return known | model.__pydantic_extra__


# --- scalars -----------------------------------------------------------------------------------

# RFC 3339, and what is met: a space for the T, and no offset (the first Python SDKs wrote none).
_TIMESTAMP = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[Tt ](?P<time>\d\d:\d\d:\d\d)(?:\.(?P<fraction>\d+))?"
    r"(?P<offset>[Zz]|[+-]\d\d:\d\d)?",
    re.ASCII,
)


def read_timestamp(text: object) -> datetime | None:
    """Read a timestamp, cut to microseconds; without offset it is UTC; None if it is none."""
    match = _TIMESTAMP.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    micros = (match["fraction"] or "")[:6].ljust(6, "0")
    offset = match["offset"] or "Z"
    zone = "+00:00" if offset in "Zz" else offset
    try:
        return datetime.fromisoformat(f"{match['date']}T{match['time']}.{micros}{zone}").astimezone(
            UTC
        )
    except (ValueError, OverflowError):  # 30 February, a leap second, the year 0
        return None


def format_timestamp(moment: datetime) -> str:
    """Write a timestamp as ProtoJSON does: UTC, `Z`, no, three or six digits of fraction."""
    precision = "milliseconds" if moment.microsecond % 1000 == 0 else "microseconds"
    text = (
        moment.astimezone(UTC)
        .replace(tzinfo=None)
        .isoformat(timespec=precision if moment.microsecond else "seconds")
    )
    return f"{text}Z"


def read_base64(text: object) -> bytes | None:
    """Read base64 of either alphabet, padded or not, as ProtoJSON does; None if it is none."""
    if not isinstance(text, str):
        return None
    standard = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def format_base64(raw: bytes) -> str:
    """Write base64 with the standard alphabet and padding (RFC 4648 §4)."""
    return base64.b64encode(raw).decode("ascii")
