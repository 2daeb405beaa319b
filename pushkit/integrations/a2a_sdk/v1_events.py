"""The events of a2a-sdk 1.x as updates: protobuf messages, encoded by the tables of A2A 1.0.

A message has the same members as the neutral class, under the same names and in the order of the
tables. `_WRITERS` has the members with another type (states as numbers, times and JSON as
messages). A message that cannot be encoded so is converted to the neutral form, whose error says
what is wrong. An event of a later SDK, which no table describes, is written as protobuf writes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from a2a.types import a2a_pb2
from google.protobuf import struct_pb2, timestamp_pb2
from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from google.protobuf.message import Message

from pushkit.a2a import (
    NativeUpdate,
    TaskState,
    TaskUpdate,
    UpdateKind,
    WireVersion,
    encode_update,
    parse_update,
)
from pushkit.a2a.kinds import BASE64, DATA, METADATA, TEXTS, TIME, format_base64, format_timestamp
from pushkit.a2a.members import PART_LIST, PARTS, ROLE, ROLE_NAMES, STATE, STATE_NAMES
from pushkit.a2a.notifications import PLACES, TABLES
from pushkit.a2a.table import Kind, Member, MismatchError, Need, Table
from pushkit.bounded_json import JsonObject, JsonValue, write_json
from pushkit.errors import InvalidUpdateError, UnrecognisedBodyError
from pushkit.record import record

V1_0 = WireVersion.V1_0

PushEvent: TypeAlias = (
    a2a_pb2.Task | a2a_pb2.TaskStatusUpdateEvent | a2a_pb2.TaskArtifactUpdateEvent
)


def native_update(event: PushEvent) -> NativeUpdate:
    """Return an event as an update. It is copied: the agent may change its event afterwards.

    Raises:
        InvalidUpdateError: The object is not an event that is pushed.
    """
    known = _KINDS.get(type(event)) or _later_kind(event)
    if known is None:
        expected = " or ".join(kind.__name__ for kind in _KINDS)
        raise InvalidUpdateError(f"event: found a {type(event).__name__}, expected a {expected}")
    kind, member, write = known
    own = type(event)()
    own.CopyFrom(event)  # type: ignore[arg-type]  # of its own type
    state, is_partial, is_bare = None, False, False
    if isinstance(own, a2a_pb2.TaskArtifactUpdateEvent):
        is_partial = not own.last_chunk
    elif kind is not UpdateKind.UNKNOWN:
        status = own.status  # a new object at each access
        state = _STATES.get(status.state, TaskState.UNKNOWN)
        if state is TaskState.WORKING and kind is UpdateKind.STATUS_UPDATE:
            is_bare = not (status.HasField("message") or own.metadata.fields)
    return _Copied(
        kind=kind,
        task_id=own.id if isinstance(own, a2a_pb2.Task) else own.task_id,
        context_id=getattr(own, "context_id", None),
        state=state,
        is_partial=is_partial,
        is_bare=is_bare,
        version=V1_0,
        event=own,
        member=member,
        writer=write,
    )


@record(frozen=False, slots=True, kw_only=True, eq=False)
class _Copied(NativeUpdate):
    """A copy of an event, which the agent does not change."""

    event: PushEvent
    member: str  # the member of A2A 1.0's `StreamResponse` that it is
    writer: _Writer

    def read(self) -> TaskUpdate:
        """Return the neutral update."""
        try:
            return parse_update({self.member: MessageToDict(self.event)}, V1_0)
        except (SerializeToJsonError, UnrecognisedBodyError) as exc:
            raise InvalidUpdateError(str(exc)) from exc
        except RecursionError as exc:
            raise InvalidUpdateError("nested too deeply") from exc

    def write(self) -> bytes:
        """Return it as JSON."""
        try:
            return write_json({self.member: self.writer(self.event)}, foreign=False)
        except (MismatchError, ValueError, RecursionError):
            return encode_update(self.read(), V1_0)


# --- the tables of 1.0, over protobuf messages ---------------------------------------------------

_Writer: TypeAlias = Callable[[Any], JsonValue]


def _later_kind(event: Any) -> tuple[UpdateKind, str, _Writer] | None:
    """Return how a later SDK's event of a task is written; None if it is no event."""
    if not isinstance(event, Message) or isinstance(event, a2a_pb2.Message):
        return None
    for field in a2a_pb2.StreamResponse.DESCRIPTOR.fields:
        if field.message_type == event.DESCRIPTOR and hasattr(event, "task_id"):
            return UpdateKind.UNKNOWN, field.json_name, MessageToDict
    return None


def _over_messages(table: Table) -> _Writer:
    rows = [row for row in table.rows if isinstance(row, Member) and not row.read_only]
    members = {row.neutral: (row.wire, _writer(row.kind), row.kind.writes_empty) for row in rows}
    needed = {row.wire for row in rows if row.need is not Need.NOBODY}

    def write(message: Any) -> JsonObject:
        said: JsonObject = {}
        for field, value in message.ListFields():  # the fields that are set
            member = members.get(field.name)  # a new string at each access
            if member is None:
                raise MismatchError("expected a known member")  # of a later SDK
            wire, write_value, writes_empty = member
            written = write_value(value) if write_value else value
            if written or writes_empty:
                said[wire] = written
        if not needed <= said.keys():
            raise MismatchError("expected a value that is not empty")
        return said

    return write


def _writer(kind: Kind) -> _Writer | None:
    """Return the function that encodes a value; None if the value is JSON already."""
    if kind.table is None:
        return _WRITERS.get(kind)
    write = _over_messages(kind.table)
    return (lambda values: [write(value) for value in values]) if kind.several else write


def _write_role(number: int) -> str:
    if number not in _ROLES:
        raise MismatchError("expected a value that is not empty")
    return _ROLES[number]


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _write_time(moment: timestamp_pb2.Timestamp) -> str:
    if not 0 <= moment.nanos < 10**9:
        raise MismatchError("outside of a second")
    try:
        micros = timedelta(seconds=moment.seconds, microseconds=moment.nanos // 1000)
        return format_timestamp(_EPOCH + micros)
    except OverflowError as exc:
        raise MismatchError("outside the years 1 to 9999 in UTC") from exc


def _write_struct(struct: struct_pb2.Struct) -> JsonObject:
    fields = struct.fields  # its `items()` is slow
    return {name: _write_value(fields[name]) for name in fields}


def _write_value(value: struct_pb2.Value) -> JsonValue:
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "number_value":
            if not math.isfinite(value.number_value):
                raise MismatchError("a value that JSON cannot represent")
            return value.number_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return _write_struct(value.struct_value)
        case "list_value":
            return [_write_value(each) for each in value.list_value.values]
    return None


def _write_parts(parts: Sequence[a2a_pb2.Part]) -> list[JsonValue]:
    contents = [(part.WhichOneof("content"), part) for part in parts]
    if any(content not in _PARTS for content, _ in contents if content):
        raise MismatchError("expected a known part")  # of a later SDK
    return [_PARTS[content](part) for content, part in contents if content]  # empty ones left out


_STATES = dict(enumerate(STATE_NAMES))
_STATE_NAMES = dict(enumerate(STATE_NAMES.values()))
_ROLES = dict(enumerate(ROLE_NAMES.values(), start=1))
_WRITERS: dict[Kind, _Writer] = {
    STATE[V1_0]: lambda number: _STATE_NAMES.get(number, _STATE_NAMES[0]),
    ROLE[V1_0]: _write_role,
    PART_LIST[V1_0]: _write_parts,
    TEXTS: list,
    TIME: _write_time,
    BASE64: format_base64,
    METADATA: _write_struct,
    DATA: _write_value,
}
_PARTS = {name: _over_messages(table) for name, table in PARTS[V1_0].items()}
_KINDS: dict[type, tuple[UpdateKind, str, _Writer]] = {
    message: (kind, PLACES[kind], _over_messages(TABLES[kind][V1_0]))
    for message, kind in (
        (a2a_pb2.Task, UpdateKind.TASK),
        (a2a_pb2.TaskStatusUpdateEvent, UpdateKind.STATUS_UPDATE),
        (a2a_pb2.TaskArtifactUpdateEvent, UpdateKind.ARTIFACT_UPDATE),
    )
}
