"""The events of a2a-sdk 1.x as updates: protobuf messages, written by the tables of A2A 1.0.

The messages have the members that the neutral classes have, under the same names; what they hold
another way (states by number, times and JSON as messages) is told below, kind by kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any, TypeAlias

from a2a.types import a2a_pb2
from google.protobuf import struct_pb2
from google.protobuf.json_format import MessageToDict, SerializeToJsonError

from pushkit.a2a import (
    NativeUpdate,
    TaskState,
    TaskUpdate,
    UpdateKind,
    WireVersion,
    encode_update,
    parse_update,
    v1_0,
)
from pushkit.a2a.kinds import DATA, METADATA, TIME, format_timestamp, many, one
from pushkit.a2a.table import Kind, Member, MismatchError, Table, Writing
from pushkit.bounded_json import JsonObject, JsonValue, write_json
from pushkit.errors import InvalidUpdateError, UnrecognisedBodyError

__all__ = ["PushEvent", "native_update"]

PushEvent: TypeAlias = (
    a2a_pb2.Task | a2a_pb2.TaskStatusUpdateEvent | a2a_pb2.TaskArtifactUpdateEvent
)


def native_update(event: PushEvent) -> NativeUpdate:
    """Return an event as an update. It is copied: the agent may go on changing its own.

    Raises:
        InvalidUpdateError: No event that is pushed.
    """
    place = _PLACES.get(type(event))
    if place is None:
        raise InvalidUpdateError(f"a {type(event).__name__} is no event that is pushed")
    kind, member, table = place
    own = type(event)()
    own.CopyFrom(event)  # type: ignore[arg-type]  # of its own type
    state, is_partial, is_bare = None, False, False
    if isinstance(own, a2a_pb2.TaskArtifactUpdateEvent):
        is_partial = not own.last_chunk
    else:
        state = _STATES.get(own.status.state, TaskState.UNKNOWN)
    if isinstance(own, a2a_pb2.TaskStatusUpdateEvent):
        more = own.status.HasField("message") or own.metadata.fields
        is_bare = state is TaskState.WORKING and not more
    return NativeUpdate(
        kind=kind,
        task_id=own.id if isinstance(own, a2a_pb2.Task) else own.task_id,
        state=state,
        is_partial=is_partial,
        is_bare=is_bare,
        version=WireVersion.V1_0,
        write=lambda: _write(own, member, table),
        read=lambda: _read(own, member),
    )


def _read(event: PushEvent, member: str) -> TaskUpdate:
    try:
        return parse_update({member: MessageToDict(event)}, WireVersion.V1_0)
    except (SerializeToJsonError, UnrecognisedBodyError) as exc:
        raise InvalidUpdateError(str(exc)) from exc


def _write(event: PushEvent, member: str, table: Table) -> bytes:
    writing = Writing(keep=False)
    try:
        document = {member: table.write(event, writing)}
        return write_json(document, foreign=writing.foreign)
    except (MismatchError, ValueError):  # the neutral form says what is wrong, in its own words
        return encode_update(_read(event, member), WireVersion.V1_0)


# --- the tables of 1.0, over protobuf messages ---------------------------------------------------


def _over_messages(table: Table) -> Table:
    rows = [
        replace(row, kind=_over_message(row.kind))
        for row in table.rows
        if isinstance(row, Member) and not row.kept
    ]
    names = [row.neutral for row in rows]

    def take(message: Any) -> list[Any]:
        given = {field.name: value for field, value in message.ListFields()}
        return [given.get(name) for name in names]

    return Table(object, *rows, take=take, extra="")


def _over_message(kind: Kind) -> Kind:
    if kind in _KINDS:
        return _KINDS[kind]
    if kind.table is None:
        return kind
    return (many if kind.several else one)(_over_messages(kind.table))


def _numbered(names: Mapping[int, str], unset: str) -> Kind:
    def write(number: int | None, _: Writing) -> str:
        name = names.get(number or 0, unset)
        if not name:
            raise MismatchError("expected a value that is not empty")
        return name

    return Kind(read=str, write=write, empty_says=True, null_says=True)


def _write_time(moment: Any, _: Writing) -> str:
    try:
        return format_timestamp(moment.ToDatetime(tzinfo=UTC))
    except (ValueError, OverflowError) as exc:
        raise MismatchError("outside the years 1 to 9999 in UTC") from exc


def _write_struct(struct: struct_pb2.Struct, writing: Writing) -> JsonObject:
    writing.foreign = True
    return {name: _json(value) for name, value in struct.fields.items()}


def _write_value(value: struct_pb2.Value, writing: Writing) -> JsonValue:
    writing.foreign = True
    return _json(value)


def _json(value: struct_pb2.Value) -> JsonValue:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            return value.number_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return {name: _json(each) for name, each in value.struct_value.fields.items()}
        case "list_value":
            return [_json(each) for each in value.list_value.values]
    return None


def _write_parts(parts: Sequence[a2a_pb2.Part], writing: Writing) -> list[JsonObject]:
    told = [(part.WhichOneof("content"), part) for part in parts]
    # A part of none of the four is of a later version: dropped.
    written = [_PARTS[content].write(part, writing) for content, part in told if content]
    if not written:
        raise MismatchError("expected a value that is not empty")
    return written


_STATES = dict(enumerate(v1_0.STATE_NAMES))
_STRUCT = Kind(read=dict, write=_write_struct)
_KINDS = {
    v1_0.STATE: _numbered(dict(enumerate(v1_0.STATE_NAMES.values())), "TASK_STATE_UNSPECIFIED"),
    v1_0.ROLE: _numbered(dict(enumerate(v1_0.ROLE_NAMES.values(), start=1)), ""),
    TIME: Kind(read=str, write=_write_time),
    METADATA: _STRUCT,
    DATA: Kind(read=dict, write=_write_value),
    v1_0.PART_LIST: Kind(read=list, write=_write_parts),
}
_PARTS = {name: _over_messages(table) for name, table in v1_0.PARTS.items()}
_PLACES: dict[type, tuple[UpdateKind, str, Table]] = {
    a2a_pb2.Task: (UpdateKind.TASK, "task", _over_messages(v1_0.TASK)),
    a2a_pb2.TaskStatusUpdateEvent: (
        UpdateKind.STATUS_UPDATE,
        "statusUpdate",
        _over_messages(v1_0.STATUS_UPDATE),
    ),
    a2a_pb2.TaskArtifactUpdateEvent: (
        UpdateKind.ARTIFACT_UPDATE,
        "artifactUpdate",
        _over_messages(v1_0.ARTIFACT_UPDATE),
    ),
}
