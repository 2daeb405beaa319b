"""Round trips in both directions, and what the official schema and SDK make of the result."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
import referencing
from a2a.compat.v0_3 import conversions, types
from a2a.types import a2a_pb2
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from pushkit.a2a import (
    StatusUpdate,
    TaskSnapshot,
    TaskState,
    TaskUpdate,
    WireVersion,
    decode_update,
    encode_update,
)
from pushkit.a2a.codec import SHAPES
from pushkit.errors import InvalidUpdateError
from tests.unit.pushkit.a2a.strategies import (
    VECTORS,
    base64s,
    body,
    check_a_round_trip,
    moments,
    names,
    objects,
    optional_list,
    optional_object,
    optional_text,
    slow_to_draw,
    snapshots,
    texts,
    updates,
    values,
    wire,
)

V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0


@pytest.mark.parametrize("version", [V0_1, V0_3, V1_0])
@slow_to_draw
@given(st.data())
def test_an_update_survives_a_round_trip(version: WireVersion, data: st.DataObject) -> None:
    update = data.draw(updates(version))
    assert decode_update(encode_update(update, version)) == replace(update, origin=version)


@slow_to_draw
@given(updates(V0_3))
def test_an_update_of_0_3_goes_through_1_0_unchanged(update: TaskUpdate) -> None:
    through = decode_update(encode_update(decode_update(encode_update(update, V0_3)), V1_0))
    plain = replace(update, final=None) if isinstance(update, StatusUpdate) else update
    assert through == replace(plain, origin=V1_0)


# --- wire documents ----------------------------------------------------------------------------


def wire_parts(version: WireVersion) -> st.SearchStrategy[dict[str, Any]]:
    about: dict[str, st.SearchStrategy[Any]] = {"metadata": optional_object}
    if version is V1_0:
        about |= {"mediaType": optional_text, "filename": optional_text}
        contents = {"text": texts, "raw": base64s, "url": texts, "data": values, "x-new": values}
        return st.one_of([wire({name: value}, about) for name, value in contents.items()])
    of_file = {"mimeType": optional_text, "name": optional_text}
    file = wire({"bytes": base64s}, of_file) | wire({"uri": texts}, of_file)
    own, other = "kind", "type"
    wrapped = {"kind": st.just("data"), "data": st.fixed_dictionaries({"value": values})}
    further = wire(wrapped | {"metadata": st.just({"data_part_compat": True})}, {})
    if version is V0_1:
        own, other, further = "type", "kind", st.nothing()
        file |= wire({}, of_file)
    return st.one_of(
        wire({own: st.just("text"), "text": texts}, about),
        wire({own: st.just("file"), "file": file}, about),
        wire({own: st.just("data"), "data": objects}, about),
        wire({own: st.sampled_from(["new", "video"]), "text": values}, about),
        wire({other: st.just("text"), "text": texts}, about),
        further,
    )


def kinded(version: WireVersion, kind: str) -> dict[str, st.SearchStrategy[str]]:
    return {"kind": st.just(kind)} if version is V0_3 else {}


def wire_messages(version: WireVersion) -> st.SearchStrategy[dict[str, Any]]:
    roles = ["user", "agent", "system"]
    if version is V1_0:
        roles = ["ROLE_USER", "ROLE_AGENT", "ROLE_UNSPECIFIED", "ROLE_SYSTEM"]
    numbers = st.integers(0, 3) if version is V1_0 else st.nothing()
    members = {
        "role": st.sampled_from(roles) | numbers,
        "parts": st.lists(wire_parts(version), min_size=1, max_size=2),
    }
    if version is V0_1:
        return wire(members, {"metadata": optional_object, "messageId": values})
    return wire(
        kinded(version, "message") | {"messageId": names} | members,
        {
            "contextId": optional_text,
            "taskId": optional_text,
            "metadata": optional_object,
            "extensions": optional_list,
            "referenceTaskIds": optional_list,
        },
    )


def wire_statuses(version: WireVersion) -> st.SearchStrategy[dict[str, Any]]:
    states = [*(state.value for state in TaskState), "paused"]
    if version is V1_0:
        states = ["TASK_STATE_WORKING", "TASK_STATE_UNSPECIFIED", "TASK_STATE_PAUSED"]
    numbers = st.integers(-1, 99) if version is V1_0 else st.nothing()
    return wire(
        {"state": st.sampled_from(states) | numbers},
        {"timestamp": moments, "message": st.none() | wire_messages(version)},
    )


flags = st.sampled_from([None, True, False])


def wire_artifacts(version: WireVersion) -> st.SearchStrategy[dict[str, Any]]:
    named = {"index": st.integers(-2, 2**60)} if version is V0_1 else {"artifactId": names}
    more = {"append": flags, "lastChunk": flags}
    return wire(
        named | {"parts": st.lists(wire_parts(version), min_size=1, max_size=2)},
        {"name": optional_text, "description": optional_text, "metadata": optional_object}
        | (more if version is V0_1 else {"extensions": optional_list}),
    )


def wire_tasks(version: WireVersion) -> st.SearchStrategy[dict[str, Any]]:
    is_old = version is V0_1
    return wire(
        kinded(version, "task")
        | {"id": names, "status": wire_statuses(version)}
        | ({} if is_old else {"contextId": names}),
        {
            "artifacts": st.none() | st.lists(wire_artifacts(version), max_size=3),
            "history": st.none() | st.lists(wire_messages(version), max_size=2),
            "metadata": optional_object,
        }
        | ({"sessionId": optional_text} if is_old else {}),
    )


def wire_events(
    version: WireVersion,
    kind: str,
    members: dict[str, st.SearchStrategy[Any]],
    optional: dict[str, st.SearchStrategy[Any]],
) -> st.SearchStrategy[dict[str, Any]]:
    optional = optional | {"metadata": optional_object}
    if version is V0_1:
        addressed = names.map(lambda name: {"id": name, "taskId": name})
        return st.builds(lambda ids, event: ids | event, addressed, wire(members, optional))
    named = {"taskId": names, "contextId": names}
    return wire(kinded(version, kind) | named | members, optional)


def wire_status_events(version: WireVersion) -> st.SearchStrategy[dict[str, Any]]:
    status, final = {"status": wire_statuses(version)}, {"final": st.booleans()}
    if version is V1_0:
        return wire_events(version, "status-update", status, final)
    # 0.1 does not have the context.
    more = {"contextId": names} if version is V0_1 else {}
    return wire_events(version, "status-update", status | final, more)


def wire_artifact_events(version: WireVersion) -> st.SearchStrategy[dict[str, Any]]:
    of_event = {} if version is V0_1 else {"append": flags, "lastChunk": flags}
    artifact = {"artifact": wire_artifacts(version)}
    return wire_events(version, "artifact-update", artifact, of_event)


wire_0_1 = st.one_of(wire_tasks(V0_1), wire_status_events(V0_1), wire_artifact_events(V0_1))
wire_0_3 = st.one_of(
    wire_tasks(V0_3), wire_status_events(V0_3), wire_artifact_events(V0_3), wire_messages(V0_3)
)
wire_1_0 = st.one_of(
    wire({"task": wire_tasks(V1_0)}, {"message": st.none()}),
    wire({"statusUpdate": wire_status_events(V1_0)}, {}),
    wire({"artifactUpdate": wire_artifact_events(V1_0)}, {}),
    wire({"message": wire_messages(V1_0)}, {"task": st.none()}),
)


@pytest.mark.parametrize(
    ("version", "documents"), [(V0_1, wire_0_1), (V0_3, wire_0_3), (V1_0, wire_1_0)]
)
@slow_to_draw
@given(data=st.data())
def test_a_round_trip_through_a_version_loses_nothing(
    version: WireVersion, documents: st.SearchStrategy[dict[str, Any]], data: st.DataObject
) -> None:
    check_a_round_trip(data.draw(documents), version)


# --- official readers --------------------------------------------------------------------------


def schema_name(title: str) -> str:
    package = "google.protobuf" if title in {"Struct", "Timestamp", "Value"} else "lf.a2a.v1"
    return f"{package}.{title.replace(' ', '')}.jsonschema.json"


def stream_response_validator() -> Any:
    bundle = json.loads((VECTORS / "a2a-v1.0-schema.json").read_text(encoding="utf-8"))
    schemas = [
        (schema_name(title), referencing.Resource.from_contents(schema))
        for title, schema in bundle["definitions"].items()
    ]
    registry = referencing.Registry().with_resources(schemas)
    schema = {"$ref": "lf.a2a.v1.StreamResponse.jsonschema.json"}
    return jsonschema.Draft202012Validator(schema, registry=registry)


validator = stream_response_validator()


def test_the_schema_is_really_resolved() -> None:
    assert not validator.is_valid({"task": {"id": 5}})
    assert not validator.is_valid({"task": {"history": [{"parts": [{"file": {}}]}]}})


@slow_to_draw
@given(updates(V1_0))
def test_the_official_schema_accepts_what_is_written_as_1_0(update: TaskUpdate) -> None:
    validator.validate(json.loads(encode_update(update, V1_0)))


@slow_to_draw
@given(wire_0_3)
def test_the_official_schema_accepts_what_came_as_0_3(document: dict[str, Any]) -> None:
    update = decode_update(body(document))
    try:
        written = encode_update(update, V1_0)
    except InvalidUpdateError:
        return  # it has a role without a name, or no part with known content
    validator.validate(json.loads(written))


@slow_to_draw
@given(updates(V1_0))
def test_the_official_sdk_reads_what_is_written_as_1_0(update: TaskUpdate) -> None:

    message = json_format.Parse(encode_update(update, V1_0), a2a_pb2.StreamResponse())

    member = {
        "task": "task",
        "status-update": "status_update",
        "artifact-update": "artifact_update",
        "message": "message",
    }[update.kind]
    assert message.WhichOneof("payload") == member
    if update.state is not None:
        number = getattr(message, member).status.state
        written = update.state.upper().replace("-", "_").replace("UNKNOWN", "UNSPECIFIED")
        assert a2a_pb2.TaskState.Name(number) == f"TASK_STATE_{written}"


@slow_to_draw
@given(snapshots(V0_3))
def test_the_official_sdk_reads_what_is_written_as_0_3(snapshot: TaskSnapshot) -> None:

    task = types.Task.model_validate_json(encode_update(snapshot, V0_3))

    assert task.id == snapshot.task_id
    assert task.status.state.value == snapshot.state
    assert len(task.history or ()) == len(snapshot.task.history)


def test_data_that_is_no_object_is_wrapped_as_the_official_sdk_does() -> None:
    document = {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"data": ["a", True, None]}]}
    message = json_format.ParseDict(document, a2a_pb2.Message())

    theirs = conversions.to_compat_message(message).model_dump(mode="json", exclude_none=True)
    ours = json.loads(encode_update(decode_update(body({"message": document})), V0_3))

    # Their dump leaves out the null inside of the value as well.
    assert ours["parts"][0]["metadata"] == theirs["parts"][0]["metadata"]
    assert ours["parts"][0]["data"]["value"][:2] == theirs["parts"][0]["data"]["value"][:2]


# --- one body, one version ---------------------------------------------------------------------


@slow_to_draw
@given(updates(V0_3) | updates(V1_0), st.sampled_from(WireVersion))
def test_a_written_body_has_the_shape_of_one_version(
    update: TaskUpdate, version: WireVersion
) -> None:
    try:
        body = encode_update(update, version)
    except InvalidUpdateError:
        return  # 0.1 and AgentVault cannot carry every update
    document = json.loads(body)
    assert [each for each, has_shape in SHAPES if has_shape(document)] == [version]
