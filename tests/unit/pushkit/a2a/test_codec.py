"""Refusals of the codec in both directions, and the bodies of subscriptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pushkit.a2a import (
    ArtifactUpdate,
    DataPart,
    Message,
    MessageUpdate,
    RawPart,
    Role,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    UnknownPart,
    WireVersion,
    decode_update,
    encode_update,
    parse_update,
    push_body,
)
from pushkit.bounded_json import JsonValue
from pushkit.errors import (
    InboundError,
    InvalidUpdateError,
    MalformedBodyError,
    UnrecognisedBodyError,
)
from tests.unit.pushkit.a2a.strategies import ARTIFACT, MESSAGE, STATUS, body

V0_3, V1_0 = WireVersion.V0_3, WireVersion.V1_0
SECRET = "hunter2"

TASK = Task(id="t", context_id="c", status=STATUS)
STATUS_UPDATE = StatusUpdate(task_id="t", context_id="c", status=STATUS)
ARTIFACT_UPDATE = ArtifactUpdate(task_id="t", context_id="c", artifact=ARTIFACT)


def task_1_0(**status: Any) -> dict[str, Any]:
    return {"task": {"id": "t", "status": {"state": "TASK_STATE_WORKING"} | status}}


def task_0_3(*parts: Any, **members: Any) -> dict[str, Any]:
    task = {"kind": "task", "id": "t", "contextId": "c", "status": {"state": "working"}}
    return task | {"history": [message_0_3(*parts)]} | members


def message_0_3(*parts: Any) -> dict[str, Any]:
    return {"kind": "message", "messageId": "m", "role": "user", "parts": list(parts)}


def message_1_0(*parts: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": list(parts)}}


# --- reading -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="cut off"),
        pytest.param(b"\xff", id="not UTF-8"),
        pytest.param(b'{"task":NaN}', id="NaN"),
        pytest.param(b'{"task":1,"task":2}', id="duplicate member"),
        pytest.param(b"[" * 100_000, id="very deep"),
        pytest.param(b'{"task":' * 70 + b"1" + b"}" * 70, id="too deep"),
        pytest.param(b'{"kind":"\\ud800"}', id="lone surrogate"),
    ],
)
def test_refuses_what_is_not_json(data: bytes) -> None:
    with pytest.raises(MalformedBodyError) as refusal:
        decode_update(data)
    assert refusal.value.status == 400


@pytest.mark.parametrize(
    "document",
    [
        pytest.param([], id="array"),
        pytest.param(None, id="null"),
        pytest.param({}, id="empty"),
        pytest.param({"task": None}, id="null task"),
        pytest.param(task_1_0() | message_1_0(), id="two updates"),
        pytest.param({"status_update": {}, "statusUpdate": {}}, id="one update spelled twice"),
        pytest.param({"kind": "", "id": "t", "status": {}}, id="empty kind"),
        pytest.param({"kind": ["task"]}, id="kind of a wrong type"),
        pytest.param({"task_id": "t", "status": "done", "timestamp": 1}, id="ad hoc"),
        pytest.param({"id": "t", "message": {"role": "user"}}, id="id beside a message"),
        pytest.param({"taskId": "t", "state": 5}, id="state of a wrong type"),
        pytest.param({"taskId": "t", "x": {}}, id="task id alone"),
    ],
)
def test_refuses_an_unknown_shape_and_names_the_known_ones(document: object) -> None:
    with pytest.raises(
        UnrecognisedBodyError, match=r"A2A 1\.0 .*statusUpdate.*A2A 0\.3.*A2A 0\.1.*AgentVault"
    ) as refusal:
        decode_update(body(document))
    assert refusal.value.status == 422


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        pytest.param({"task": {"status": {}}}, "task.id: expected, but missing", id="no id"),
        pytest.param({"task": {"id": "", "status": {}}}, "task.id: ", id="empty id"),
        pytest.param({"task": {"id": "t"}}, "task.status: expected, but missing", id="no status"),
        pytest.param(task_1_0(state=True), "task.status.state: expected a name", id="bool state"),
        pytest.param(task_1_0(state=2.0), "task.status.state: expected a name", id="float state"),
        pytest.param(message_1_0({"raw": SECRET + "!"}), "parts.0.raw: expected base64", id="raw"),
        pytest.param(message_1_0({"raw": "a"}), "parts.0.raw: expected base64", id="short raw"),
        pytest.param(
            message_1_0({"text": "", "url": SECRET}), "parts.0: expected only one", id="one-of"
        ),
        pytest.param(
            {"statusUpdate": {"taskId": "t", "task_id": SECRET, "status": {}}},
            "statusUpdate: taskId is given in both spellings",
            id="both spellings",
        ),
        pytest.param(
            {"artifactUpdate": {"taskId": "t", "artifact": {}, "last_chunk": "yes"}},
            "artifactUpdate.lastChunk: ",
            id="snake_case member",
        ),
        pytest.param(message_0_3({"kind": "text"}), "parts.0.text: ", id="0.3 text"),
        pytest.param(message_0_3({"kind": "data", "data": [1]}), "parts.0.data: ", id="0.3 data"),
        pytest.param(
            message_0_3({"kind": "file", "file": {}}), "0.file: expected either", id="file"
        ),
        pytest.param(
            task_0_3({"kind": "file", "file": {"bytes": "", "uri": ""}}),
            "history.0.parts.0.file: expected either bytes or uri",
            id="two files in an optional member",
        ),
        pytest.param({"id": "t", "taskId": "u", "status": {}}, "same task", id="0.1 two tasks"),
        pytest.param({"taskId": "", "status": {}}, "id: expected, but missing", id="0.1 empty id"),
        pytest.param({"id": "t", "artifact": {"index": "0"}}, "artifact.index", id="0.1 index"),
        pytest.param({"id": "t", "artifact": {"append": 1}}, "artifact.append", id="0.1 append"),
        pytest.param(
            {"id": "t", "artifact": {"parts": [{"type": "text"}]}},
            "artifact.parts.0.text",
            id="0.1 text",
        ),
        pytest.param({"taskId": "", "state": "WORKING"}, "taskId: ", id="AgentVault no task"),
    ],
)
def test_refuses_a_wrong_member_by_its_path_without_its_value(
    document: object, complaint: str
) -> None:
    with pytest.raises(UnrecognisedBodyError) as refusal:
        decode_update(body(document))
    assert complaint in str(refusal.value)
    assert SECRET not in str(refusal.value)
    assert SECRET not in str(refusal.value.__cause__)


update_names = ["task", "message", "statusUpdate", "status_update", "artifactUpdate", "kind"]
task_names = ["id", "taskId", "task_id", "status", "state", "history", "artifact", "timestamp"]
message_names = ["role", "parts", "text", "data", "raw", "url", "file", "metadata"]
member_names = st.sampled_from([*update_names, *task_names, *message_names])
kinds = st.sampled_from(["task", "status-update", "message", "text", "file", "data"])
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | kinds,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(member_names, inner, max_size=5),
)


@settings(deadline=None)
@given(st.binary(max_size=50) | json_values.map(body))
def test_every_body_is_read_or_refused(data: bytes) -> None:
    try:
        update = decode_update(data)
    except InboundError:
        return
    assert update.origin is not None


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3), json_values), st.sampled_from(WireVersion))
def test_every_document_is_read_or_refused_as_either_version(
    document: dict[str, Any], version: WireVersion
) -> None:
    try:
        update = parse_update(document, version)
    except InboundError:
        return
    assert update.origin is version


def test_a_document_nested_too_deeply_is_refused() -> None:
    deep: JsonValue = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(UnrecognisedBodyError):
        parse_update({"task": {"id": "t", "status": {}, "metadata": {"deep": deep}}})


def test_a_version_can_be_given_instead_of_found_by_shape() -> None:
    document: dict[str, JsonValue] = {"id": "t", "status": {"state": "working"}}
    assert parse_update(document, V0_3).task_id == "t"
    with pytest.raises(UnrecognisedBodyError, match="exactly one of task"):
        parse_update(document, V1_0)


def test_reading_tolerates_what_only_writing_requires() -> None:
    update = decode_update(body({"statusUpdate": {"taskId": "t", "status": {"message": {}}}}))
    assert isinstance(update, StatusUpdate)
    assert update.context_id is None
    assert update.state is TaskState.UNKNOWN
    assert update.status.message == Message(message_id="", role=Role.UNSPECIFIED, parts=())


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        pytest.param("TASK_STATE_COMPLETED", TaskState.COMPLETED, id="name"),
        pytest.param(3, TaskState.COMPLETED, id="number"),
        pytest.param(0, TaskState.UNKNOWN, id="unspecified"),
        pytest.param("TASK_STATE_PAUSED", TaskState.UNKNOWN, id="later name"),
        pytest.param(2**40, TaskState.UNKNOWN, id="later number"),
    ],
)
def test_reads_states_of_1_0_by_name_and_number(state: JsonValue, expected: TaskState) -> None:
    assert decode_update(body(task_1_0(state=state))).state is expected


def status_in(version: WireVersion, **status: JsonValue) -> bytes:
    """Write a status update in a version's form; AgentVault's members are beside the task."""
    if version is WireVersion.AGENTVAULT_0_2:
        return body({"taskId": "t"} | status)
    event: dict[str, Any] = {"taskId": "t", "contextId": "c", "status": status}
    kind = {"kind": "status-update"} if version is V0_3 else {}
    return body({"statusUpdate": event} if version is V1_0 else event | kind)


@pytest.mark.parametrize("version", WireVersion)
@pytest.mark.parametrize(
    ("name", "state"),
    [
        pytest.param("TASK_STATE_CANCELLED", TaskState.CANCELED, id="0.3 proto"),
        pytest.param("TASK_STATE_CANCELED", TaskState.CANCELED, id="1.0"),
        pytest.param("canceled", TaskState.CANCELED, id="0.3"),
        pytest.param("cancelled", TaskState.CANCELED, id="British"),
        pytest.param("CANCELLED", TaskState.CANCELED, id="AgentVault, British"),
        pytest.param("INPUT_REQUIRED", TaskState.INPUT_REQUIRED, id="AgentVault"),
        pytest.param("input_required", TaskState.INPUT_REQUIRED, id="Python"),
        pytest.param("InputRequired", TaskState.INPUT_REQUIRED, id=".NET"),
        pytest.param("TASK_STATE_AUTH_REQUIRED", TaskState.AUTH_REQUIRED, id="two words"),
        pytest.param("rejected", TaskState.REJECTED, id="unknown to two versions"),
        pytest.param("TASK_STATE_PAUSED", TaskState.UNKNOWN, id="unknown"),
    ],
)
def test_reads_another_bindings_name_of_a_state_in_every_version(
    version: WireVersion, name: str, state: TaskState
) -> None:
    assert decode_update(status_in(version, state=name)).state is state


@pytest.mark.parametrize(
    "document_of",
    [
        pytest.param(lambda role: {"kind": "message", "role": role}, id="0.3"),
        pytest.param(lambda role: {"message": {"role": role}}, id="1.0"),
        pytest.param(lambda role: {"taskId": "t", "message": {"role": role}}, id="AgentVault"),
    ],
)
@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("ROLE_AGENT", Role.AGENT),
        ("agent", Role.AGENT),
        ("USER", Role.USER),
        ("ROLE_TOOL", Role.UNSPECIFIED),
    ],
)
def test_reads_another_bindings_name_of_a_role(
    document_of: Callable[[str], object], name: str, role: Role
) -> None:
    update = decode_update(body(document_of(name)))
    assert isinstance(update, MessageUpdate)
    assert update.message.role is role


def test_numbers_in_data_survive() -> None:
    data = [1, 1.0, 10**30, -0.5, True]
    update = decode_update(body(message_1_0({"data": data})))
    written = encode_update(update, V0_3)
    assert b"[1,1.0,1000000000000000000000000000000,-0.5,true]" in written


def test_parts_of_unknown_shape_are_kept() -> None:
    update = decode_update(body(task_0_3({"type": "text", "text": "old"}, {"kind": "new"})))
    assert isinstance(update, TaskSnapshot)
    assert update.task.history[0].parts == (
        UnknownPart(extra={"type": "text", "text": "old"}),
        UnknownPart(extra={"kind": "new"}),
    )


# --- extra -------------------------------------------------------------------------------------


def test_extra_is_written_back_only_in_its_own_version() -> None:
    document = task_1_0(x=1) | {"y": 2}
    document["task"]["contextId"] = "c"
    update = decode_update(body(document))

    assert json.loads(encode_update(update, V1_0)) == document
    assert '"x"' not in encode_update(update, V0_3).decode()
    assert '"x"' not in encode_update(replace(update, origin=None), V1_0).decode()


def test_a_known_member_is_written_as_the_neutral_form_has_it() -> None:
    update = decode_update(body(task_1_0(state=2, timestamp="2026-01-01 00:00:00.5")))
    assert json.loads(encode_update(update, V1_0)) == task_1_0(timestamp="2026-01-01T00:00:00.500Z")


def test_extra_does_not_overrule_a_known_member() -> None:
    status = replace(STATUS, extra={"state": "TASK_STATE_FAILED", "x": 1})
    update = replace(STATUS_UPDATE, status=status, origin=V1_0)
    written = json.loads(encode_update(update, V1_0))
    assert written["statusUpdate"]["status"] == {"state": "TASK_STATE_WORKING", "x": 1}


@pytest.mark.parametrize("found", [None, 7, [1], "ab", [["kind", "task"]]])
def test_a_parsed_document_that_is_not_an_object_is_refused(found: Any) -> None:
    with pytest.raises(UnrecognisedBodyError, match="expected an object"):
        parse_update(found)


# --- writing -----------------------------------------------------------------------------------


WRONG: Any = "working"
NUMBER: Any = 7


def in_status(message: Message) -> StatusUpdate:
    return replace(STATUS_UPDATE, status=replace(STATUS, message=message))


@pytest.mark.parametrize("version", [V0_3, V1_0])
@pytest.mark.parametrize(
    ("update", "path"),
    [
        pytest.param(TaskSnapshot(task=replace(TASK, id="")), "id: ", id="task id"),
        pytest.param(replace(STATUS_UPDATE, task_id=""), "taskId: ", id="status task id"),
        pytest.param(replace(STATUS_UPDATE, context_id=None), "contextId: ", id="status context"),
        pytest.param(replace(ARTIFACT_UPDATE, task_id=""), "taskId: ", id="artifact task id"),
        pytest.param(replace(ARTIFACT_UPDATE, context_id=""), "contextId: ", id="artifact context"),
        pytest.param(
            replace(ARTIFACT_UPDATE, artifact=replace(ARTIFACT, artifact_id="")),
            "artifact.artifactId: ",
            id="artifact id",
        ),
        pytest.param(
            in_status(replace(MESSAGE, message_id="")),
            "status.message.messageId: ",
            id="message id",
        ),
        pytest.param(
            in_status(replace(MESSAGE, role=Role.UNSPECIFIED)), "status.message.role: ", id="role"
        ),
        pytest.param(
            MessageUpdate(message=replace(MESSAGE, parts=(UnknownPart(extra={"x": 1}),))),
            "parts: ",
            id="only unknown parts",
        ),
        pytest.param(
            replace(STATUS_UPDATE, status=replace(STATUS, timestamp=datetime(2026, 1, 1))),  # noqa: DTZ001
            "status.timestamp: expected an aware",
            id="naive timestamp",
        ),
        pytest.param(
            replace(STATUS_UPDATE, metadata={"x": float("nan")}), "JSON cannot represent", id="NaN"
        ),
        pytest.param(
            in_status(replace(MESSAGE, parts=(TextPart(text="\ud800"),))), "", id="surrogate"
        ),
        pytest.param(
            in_status(replace(MESSAGE, parts=(DataPart(data=(1,)),))),  # type: ignore[arg-type]
            "status.message.parts.0.data",
            id="no JSON type",
        ),
        # Members of a wrong type.
        pytest.param(
            replace(ARTIFACT_UPDATE, artifact=WRONG),
            "artifact: found str, expected Artifact",
            id="artifact",
        ),
        pytest.param(in_status(WRONG), "status.message: found str, expected Message", id="message"),
        pytest.param(
            in_status(replace(MESSAGE, parts=(WRONG,))),
            "status.message.parts.0: found str, expected a part",
            id="part",
        ),
        pytest.param(
            in_status(replace(MESSAGE, parts=cast("Any", TextPart(text="x")))),
            "status.message.parts: found TextPart, expected a tuple or a list",
            id="one part",
        ),
        pytest.param(
            in_status(replace(MESSAGE, extensions=WRONG)),
            "status.message.extensions: found str, expected a tuple or a list",
            id="one extension",
        ),
        pytest.param(
            in_status(replace(MESSAGE, parts=(RawPart(raw=WRONG),))),
            "found str, expected bytes",
            id="bytes",
        ),
        pytest.param(
            replace(STATUS_UPDATE, status=replace(STATUS, timestamp=WRONG)),
            "status.timestamp: found str, expected an aware datetime",
            id="timestamp",
        ),
    ],
)
def test_refuses_to_write_what_the_specification_forbids_by_its_path(
    update: TaskUpdate, path: str, version: WireVersion
) -> None:
    with pytest.raises(InvalidUpdateError) as refusal:
        encode_update(update, version)
    assert path in str(refusal.value)


@pytest.mark.parametrize(
    "update",
    [
        pytest.param(in_status(WRONG), id="message"),
        pytest.param(in_status(replace(MESSAGE, parts=(TextPart(text=NUMBER),))), id="text"),
        pytest.param(
            replace(ARTIFACT_UPDATE, artifact=replace(ARTIFACT, parts=(RawPart(raw=WRONG),))),
            id="bytes",
        ),
    ],
)
def test_a_member_of_a_wrong_type_is_refused_for_agentvault_as_well(update: TaskUpdate) -> None:
    with pytest.raises(InvalidUpdateError, match="a member has a wrong type"):
        encode_update(update, WireVersion.AGENTVAULT_0_2)


def test_a_task_without_context_is_of_1_0_alone() -> None:
    snapshot = TaskSnapshot(task=replace(TASK, context_id=None))
    assert json.loads(encode_update(snapshot, V1_0))["task"]["id"] == "t"
    with pytest.raises(InvalidUpdateError, match=r"^contextId: "):
        encode_update(snapshot, V0_3)


def test_an_artifact_and_a_message_without_parts_are_of_0_3_alone() -> None:
    task = replace(TASK, artifacts=(replace(ARTIFACT, parts=()),))
    for snapshot in (task, replace(TASK, history=(replace(MESSAGE, parts=()),))):
        written = encode_update(TaskSnapshot(task=snapshot), V0_3)
        assert decode_update(written) == TaskSnapshot(task=snapshot, origin=V0_3)
        with pytest.raises(InvalidUpdateError, match=r"\.0\.parts: "):
            encode_update(TaskSnapshot(task=snapshot), V1_0)


def test_data_nested_too_deeply_is_not_written() -> None:
    deep: JsonValue = 1
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidUpdateError):
        encode_update(replace(STATUS_UPDATE, metadata={"deep": deep}), V1_0)


def test_writes_compact_utf_8() -> None:
    update = MessageUpdate(message=replace(MESSAGE, parts=(TextPart(text="héllo <b>&"),)))
    expected = '{"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":"héllo <b>&"}]}}'
    assert encode_update(update, V1_0) == expected.encode()


@pytest.mark.parametrize("state", TaskState)
def test_derives_final_of_0_3_from_the_state(state: TaskState) -> None:
    update = replace(STATUS_UPDATE, status=TaskStatus(state=state))
    written = json.loads(encode_update(update, V0_3))
    assert written["final"] is (state.terminal or state.interrupted)


def test_writes_files_of_0_3() -> None:
    part = RawPart(raw=b"\xff\xef", media_type="image/png", filename="a.png")
    written = json.loads(encode_update(in_status(replace(MESSAGE, parts=(part,))), V0_3))
    assert written["status"]["message"]["parts"] == [
        {"kind": "file", "file": {"bytes": "/+8=", "mimeType": "image/png", "name": "a.png"}}
    ]


# --- what a subscription gets ------------------------------------------------------------------


def test_a_0_3_subscription_gets_the_whole_task() -> None:
    whole = encode_update(TaskSnapshot(task=TASK), V0_3)
    assert push_body(TaskSnapshot(task=TASK), V0_3) == whole
    assert push_body(STATUS_UPDATE, V0_3, snapshot=TASK) == whole
    assert push_body(ARTIFACT_UPDATE, V0_3, snapshot=TASK) == whole


def test_without_a_snapshot_a_status_from_a_0_1_agent_gets_the_ids_that_0_3_needs() -> None:
    message = Message(message_id="", role=Role.AGENT, parts=(TextPart(text="hi"),))
    status = TaskStatus(state=TaskState.WORKING, message=message)
    update = StatusUpdate(task_id="task-1", status=status, origin=WireVersion.V0_1)
    document = json.loads(push_body(update, V0_3))
    assert (document["id"], document["contextId"]) == ("task-1", "task-1")
    assert document["status"]["message"]["messageId"]


@pytest.mark.parametrize("version", WireVersion)
def test_the_snapshot_must_be_of_the_same_task(version: WireVersion) -> None:
    with pytest.raises(InvalidUpdateError, match="snapshot"):
        push_body(STATUS_UPDATE, version, snapshot=replace(TASK, id="other"))


@given(st.datetimes(timezones=st.timezones() | st.just(UTC)))
def test_a_time_is_written_in_utc_with_no_three_or_six_digits(moment: datetime) -> None:
    assume(1 < moment.year < 9999)
    in_utc = moment.astimezone(UTC)
    micros = in_utc.microsecond
    precision = "microseconds" if micros % 1000 else "milliseconds" if micros else "seconds"
    update = StatusUpdate(
        task_id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING, timestamp=moment)
    )
    written = json.loads(encode_update(update, WireVersion.V1_0))["statusUpdate"]["status"]
    assert written["timestamp"] == f"{in_utc.isoformat(timespec=precision)[:-6]}Z"
