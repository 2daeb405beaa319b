"""Events of a2a-sdk 1.x: written straight, they say what they say by way of the neutral form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from a2a.types import a2a_pb2
from google.protobuf import struct_pb2, timestamp_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pushkit.a2a import (
    StatusUpdate,
    WireVersion,
    encode_update,
)
from pushkit.a2a.members import STATUS_UPDATE
from pushkit.a2a.table import Table
from pushkit.errors import InvalidUpdateError
from pushkit.integrations.a2a_sdk import v1_events
from pushkit.integrations.a2a_sdk.v1_events import PushEvent, native_update

V1_0 = WireVersion.V1_0

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
ids = st.sampled_from(["", "a", "b"])
numbers = st.floats() | st.integers(-(10**18), 10**18).map(float) | st.sampled_from([-0.0, 1e300])
json_values = st.recursive(
    st.builds(struct_pb2.Value, number_value=numbers)
    | st.builds(struct_pb2.Value, string_value=texts)
    | st.builds(struct_pb2.Value, bool_value=st.booleans())
    | st.builds(struct_pb2.Value, null_value=st.just(0))
    | st.builds(struct_pb2.Value),
    lambda inner: (
        st.builds(
            struct_pb2.Value,
            list_value=st.builds(struct_pb2.ListValue, values=st.lists(inner, max_size=2)),
        )
        | st.builds(
            struct_pb2.Value,
            struct_value=st.builds(
                struct_pb2.Struct, fields=st.dictionaries(texts, inner, max_size=2)
            ),
        )
    ),
    max_leaves=3,
)
structs = st.builds(struct_pb2.Struct, fields=st.dictionaries(texts, json_values, max_size=2))
moments = st.builds(
    timestamp_pb2.Timestamp,
    seconds=st.sampled_from([0, 1, -1, 1_700_000_000, 253402300799, 253402300800, -62135596801])
    | st.integers(-(2**63), 2**63 - 1),
    nanos=st.sampled_from([0, 500_000_000, 123_456_789, 999, 1_000_000_000, -1]),
)


def optional(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=members)


def built(message: type, /, **members: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return optional(**members).map(lambda given: message(**given))


about = {"media_type": texts, "filename": texts, "metadata": structs}
parts = st.one_of(
    built(a2a_pb2.Part, text=texts, **about),
    built(a2a_pb2.Part, raw=st.binary(max_size=3), **about),
    built(a2a_pb2.Part, url=texts, **about),
    built(a2a_pb2.Part, data=json_values, **about),
)
messages = built(
    a2a_pb2.Message,
    message_id=ids,
    context_id=ids,
    task_id=ids,
    role=st.integers(0, 4),
    parts=st.lists(parts, max_size=2),
    metadata=structs,
    extensions=st.lists(texts, max_size=2),
    reference_task_ids=st.lists(texts, max_size=2),
)
artifacts = built(
    a2a_pb2.Artifact,
    artifact_id=ids,
    name=texts,
    description=texts,
    parts=st.lists(parts, max_size=2),
    metadata=structs,
    extensions=st.lists(texts, max_size=2),
)
statuses = built(a2a_pb2.TaskStatus, state=st.integers(0, 10), message=messages, timestamp=moments)
events: st.SearchStrategy[PushEvent] = st.one_of(
    built(
        a2a_pb2.Task,
        id=ids,
        context_id=ids,
        status=statuses,
        artifacts=st.lists(artifacts, max_size=2),
        history=st.lists(messages, max_size=2),
        metadata=structs,
    ),
    built(
        a2a_pb2.TaskStatusUpdateEvent,
        task_id=ids,
        context_id=ids,
        status=statuses,
        metadata=structs,
    ),
    built(
        a2a_pb2.TaskArtifactUpdateEvent,
        task_id=ids,
        context_id=ids,
        artifact=artifacts,
        append=st.booleans(),
        last_chunk=st.booleans(),
        metadata=structs,
    ),
)


def outcome(write: Any) -> bytes | str:
    try:
        written = write()
    except InvalidUpdateError as exc:
        return f"{exc.code}: {exc}"
    assert isinstance(written, bytes)
    return written


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(events)
def test_direct_encoding_equals_that_of_the_neutral_form(event: PushEvent) -> None:
    native = native_update(event)
    straight = outcome(lambda: native.body)
    assert straight == outcome(lambda: encode_update(native.neutral, V1_0))
    if isinstance(straight, bytes):
        neutral = native.neutral
        for fact in ("kind", "task_id", "state", "is_partial", "is_bare"):
            assert getattr(native, fact) == getattr(neutral, fact), fact


def test_numbers_of_metadata_are_written_as_the_sdk_writes_them() -> None:
    event = status_event()
    event.metadata.update({"whole": 1, "zero": -0.0, "large": 1e300, "half": 0.5})
    native = native_update(event)
    assert native.body == encode_update(native.neutral, V1_0)
    assert b'"whole":1.0' in native.body


def status_event() -> a2a_pb2.TaskStatusUpdateEvent:
    part = a2a_pb2.Part(text="hi")
    message = a2a_pb2.Message(message_id="m", role=a2a_pb2.ROLE_AGENT, parts=[part])
    status = a2a_pb2.TaskStatus(state=a2a_pb2.TASK_STATE_WORKING, message=message)
    return a2a_pb2.TaskStatusUpdateEvent(task_id="t", context_id="c", status=status)


@pytest.mark.parametrize("kind", ["task", "status", "artifact"])
def test_an_event_that_is_in_order_is_written_without_being_read(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = status_event()
    status.status.timestamp.FromSeconds(1_700_000_000)
    status.metadata.update({"text": "x", "list": [1, None, {"a": True}]})
    data = struct_pb2.Value(struct_value=status.metadata)
    about = {"metadata": status.metadata, "filename": "f", "media_type": "text/plain"}
    contents = ({"text": ""}, {"raw": b"x"}, {"url": "u"}, {"data": data})
    given = [a2a_pb2.Part(**content, **about) for content in contents]  # type: ignore[arg-type]
    artifact = a2a_pb2.Artifact(artifact_id="a", parts=given, extensions=["x"])
    events: dict[str, PushEvent] = {
        "status": status,
        "artifact": a2a_pb2.TaskArtifactUpdateEvent(
            task_id="t", context_id="c", artifact=artifact, append=True
        ),
        "task": a2a_pb2.Task(
            id="t", status=status.status, artifacts=[artifact], history=[status.status.message]
        ),
    }
    neutral = native_update(events[kind]).neutral
    monkeypatch.delattr(v1_events, "MessageToDict")
    assert native_update(events[kind]).body == encode_update(neutral, V1_0)


def test_the_agent_may_go_on_changing_its_event() -> None:
    event = status_event()
    native = native_update(event)
    event.task_id = "other"
    assert b'"taskId":"t"' in native.body
    assert native.neutral.task_id == "t"


def test_a_member_of_a_later_sdk_goes_out_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    event = a2a_pb2.TaskStatusUpdateEvent(task_id="task-1", context_id="context-1")
    event.status.state = a2a_pb2.TASK_STATE_WORKING
    event.metadata.update({"name": "value"})
    kind, place, _ = v1_events._KINDS[type(event)]
    known = [row for row in STATUS_UPDATE[V1_0].rows if getattr(row, "wire", "") != "metadata"]
    older = v1_events._over_messages(Table(StatusUpdate, *known))
    monkeypatch.setitem(v1_events._KINDS, type(event), (kind, place, older))

    sent = json.loads(native_update(event).body)

    assert sent["statusUpdate"]["metadata"] == {"name": "value"}


def test_a_part_of_a_later_sdk_goes_out_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    event = status_event()
    event.status.message.parts.append(a2a_pb2.Part(url="https://files.example.com/1"))
    monkeypatch.delitem(v1_events._PARTS, "url")

    [*_, part] = json.loads(native_update(event).body)["statusUpdate"]["status"]["message"]["parts"]

    assert part == {"url": "https://files.example.com/1"}


def test_a_time_outside_the_calendar_is_refused() -> None:
    event = status_event()
    event.status.timestamp.seconds = 1_700_000_000_000_000_000  # nanoseconds
    with pytest.raises(InvalidUpdateError, match="Timestamp is not valid"):
        _ = native_update(event).body


def test_a_refusal_says_where() -> None:
    event = status_event()
    event.status.message.parts[0].text = ""
    event.status.message.parts[0].ClearField("text")
    with pytest.raises(InvalidUpdateError, match=r"^statusUpdate\.status\.message\.parts: "):
        _ = native_update(event).body
