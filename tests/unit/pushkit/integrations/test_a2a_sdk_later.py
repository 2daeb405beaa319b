"""The events of an a2a-sdk that follows A2A 1.1: with a generation, and of a kind of its own.

There is no such release: its module is made from the installed one's descriptors.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from types import SimpleNamespace
from typing import Any

import a2a.types
import pytest
from a2a.types import a2a_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pushkit.a2a import UnknownUpdate, UpdateKind, WireVersion, decode_update
from pushkit.errors import InvalidUpdateError
from pushkit.integrations.a2a_sdk import v1_events

STRING, INT64, MESSAGE = 9, 3, 11  # FieldDescriptorProto.Type


def later_sdk() -> Any:
    """Return the SDK's messages, as A2A 1.1 would have them."""
    pool, file = descriptor_pool.DescriptorPool(), descriptor_pb2.FileDescriptorProto()
    a2a_pb2.DESCRIPTOR.CopyToProto(file)
    package = file.package
    for needed in _dependencies(a2a_pb2.DESCRIPTOR):
        pool.AddSerializedFile(needed.serialized_pb)
    messages = {message.name: message for message in file.message_type}
    for name in ("Task", "TaskStatusUpdateEvent", "TaskArtifactUpdateEvent"):
        messages[name].field.add(name="generation", number=90, type=INT64, label=1)
    event = file.message_type.add(name="TaskMessageUpdateEvent")
    event.field.add(name="task_id", number=1, type=STRING, label=1)
    event.field.add(name="generation", number=2, type=INT64, label=1)
    event.field.add(
        name="message", number=3, type=MESSAGE, label=1, type_name=f".{package}.Message"
    )
    messages["StreamResponse"].field.add(
        name="message_update",
        number=90,
        type=MESSAGE,
        label=1,
        type_name=f".{package}.TaskMessageUpdateEvent",
    )
    pool.AddSerializedFile(file.SerializeToString())
    names = [message.name for message in file.message_type]
    return SimpleNamespace(
        **{
            name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
            for name in names
        }
    )


def _dependencies(file: Any) -> list[Any]:
    found: dict[str, Any] = {}

    def add(dependency: Any) -> None:
        for each in dependency.dependencies:
            add(each)
            found[each.name] = each

    add(file)
    return list(found.values())


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The SDK's messages, and the adapter over them."""
    sdk = later_sdk()
    monkeypatch.setattr(a2a.types, "a2a_pb2", sdk)
    spec = importlib.util.spec_from_file_location("later_v1_events", v1_events.__file__)
    assert spec is not None
    assert spec.loader is not None
    sdk.adapter = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, sdk.adapter)
    spec.loader.exec_module(sdk.adapter)
    return sdk


def test_an_event_of_a_later_kind_is_sent_as_it_is(later: Any) -> None:
    message = later.Message(message_id="m", role=2)
    event = later.TaskMessageUpdateEvent(task_id="t", generation=7, message=message)
    native = later.adapter.native_update(event)

    assert (native.kind, native.task_id, native.state) == (UpdateKind.UNKNOWN, "t", None)
    assert json.loads(native.body) == {
        "messageUpdate": {
            "taskId": "t",
            "generation": "7",
            "message": {"messageId": "m", "role": "ROLE_AGENT"},
        }
    }
    update = decode_update(native.body)
    assert update == native.neutral
    assert isinstance(update, UnknownUpdate)
    assert update.generation == 7


def test_the_generation_of_an_event_is_sent(later: Any) -> None:
    status = later.TaskStatus(state=2)
    event = later.TaskStatusUpdateEvent(task_id="t", context_id="c", status=status, generation=7)
    native = later.adapter.native_update(event)

    assert json.loads(native.body)["statusUpdate"]["generation"] == 7
    assert decode_update(native.body, WireVersion.V1_0) == native.neutral
    assert native.neutral.generation == 7


def test_what_is_no_event_is_refused_as_before(later: Any) -> None:
    for wrong in (later.Message(message_id="m"), later.TaskStatus(), "event"):
        said = f"^event: found a {type(wrong).__name__}, expected a Task or "
        with pytest.raises(InvalidUpdateError, match=said):
            later.adapter.native_update(wrong)
