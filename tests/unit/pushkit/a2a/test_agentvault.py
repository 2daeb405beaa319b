"""AgentVault's profile 0.2: the payloads of its server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.a2a import (
    Artifact,
    ArtifactUpdate,
    DataPart,
    Message,
    MessageUpdate,
    Part,
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
    UrlPart,
    WireVersion,
    decode_update,
    encode_update,
    push_body,
)
from pushkit.errors import InvalidUpdateError
from tests.unit.pushkit.a2a.strategies import (
    ARTIFACT,
    STATUS,
    VECTORS,
    base64s,
    body,
    check_a_round_trip,
    messages,
    moments,
    names,
    objects,
    optional_object,
    optional_text,
    slow_to_draw,
    texts,
    timestamps,
    values,
    wire,
    without_nulls,
)

AGENTVAULT, V1_0 = WireVersion.AGENTVAULT_0_2, WireVersion.V1_0
CASES: list[dict[str, Any]] = json.loads((VECTORS / "agentvault-v0.2.json").read_text("utf-8"))[
    "cases"
]
by_id = pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

MESSAGE = Message(message_id="m", role=Role.AGENT, parts=(TextPart(text="hi"),), task_id="t")


def written(update: TaskUpdate) -> Any:
    return json.loads(encode_update(update, AGENTVAULT))


def test_reads_what_an_example_holds() -> None:
    status, message, artifact = (decode_update(body(case["body"])) for case in CASES[1:])

    assert isinstance(status, StatusUpdate)
    assert status.status.message is not None
    assert status.status.message.parts == (TextPart(text="Task finished successfully."),)
    assert isinstance(message, MessageUpdate)
    assert message.message.role is Role.AGENT
    assert message.message.parts == (TextPart(text="Thinking..."),)
    assert isinstance(artifact, ArtifactUpdate)
    assert (artifact.artifact.artifact_id, artifact.artifact.name) == ("log-1", "debug_log")
    assert artifact.artifact.parts == (TextPart(text="Processing step 1", media_type="text/plain"),)


# --- writing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (TaskState.REJECTED, "FAILED"),
        (TaskState.AUTH_REQUIRED, "INPUT_REQUIRED"),
        (TaskState.CANCELED, "CANCELED"),
    ],
)
def test_writes_states_in_upper_case(state: TaskState, name: str) -> None:
    update = StatusUpdate(task_id="t", status=TaskStatus(state=state))
    assert written(update) == {"taskId": "t", "state": name}


def test_the_text_of_a_status_is_that_of_its_message() -> None:
    parts: tuple[Part, ...] = (TextPart(text="a"), DataPart(data={}), TextPart(text="b"))
    status = replace(STATUS, message=replace(MESSAGE, parts=parts))
    assert written(StatusUpdate(task_id="t", status=status))["message"] == "a\nb"


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param((TextPart(text="x"),), {"type": "text", "content": "x"}, id="text"),
        pytest.param((DataPart(data=[1]),), {"type": "data", "content": [1]}, id="data"),
        pytest.param(
            (UrlPart(url="https://x.example/a", media_type="a/b"),),
            {"type": "file", "url": "https://x.example/a", "mediaType": "a/b"},
            id="url",
        ),
        pytest.param(
            (RawPart(raw=b"\xff", media_type="a/b"),),
            {"type": "file", "url": "data:a/b;base64,/w==", "mediaType": "a/b"},
            id="bytes",
        ),
        pytest.param(
            (TextPart(text="x"), TextPart(text="lost"), UrlPart(url="u")),
            {"type": "text", "content": "x", "url": "u"},
            id="content and url",
        ),
    ],
)
def test_an_artifact_has_one_content_and_one_url(
    parts: tuple[Part, ...], expected: dict[str, Any]
) -> None:
    update = ArtifactUpdate(task_id="t", artifact=replace(ARTIFACT, parts=parts))
    assert written(update) == {"taskId": "t", "artifact": {"id": "a"} | expected}


@pytest.mark.parametrize(
    ("update", "path"),
    [
        pytest.param(
            StatusUpdate(task_id="t", status=TaskStatus(state=TaskState.UNKNOWN)),
            "state: ",
            id="unknown state",
        ),
        pytest.param(StatusUpdate(task_id="", status=STATUS), "taskId: ", id="task id"),
        pytest.param(
            MessageUpdate(message=replace(MESSAGE, task_id=None)), "taskId: ", id="free message"
        ),
        pytest.param(
            MessageUpdate(message=replace(MESSAGE, role=Role.UNSPECIFIED)),
            "message.role: ",
            id="role",
        ),
        pytest.param(
            MessageUpdate(message=replace(MESSAGE, parts=(UnknownPart(extra={"x": 1}),))),
            "message.parts: ",
            id="only unknown parts",
        ),
        pytest.param(
            ArtifactUpdate(task_id="t", artifact=replace(ARTIFACT, artifact_id="")),
            "artifact.id: ",
            id="artifact id",
        ),
    ],
)
def test_refuses_to_write_what_the_profile_forbids(update: TaskUpdate, path: str) -> None:
    with pytest.raises(InvalidUpdateError, match=path):
        encode_update(update, AGENTVAULT)


# --- what a subscription gets --------------------------------------------------------------------


@pytest.mark.parametrize(
    "update",
    [
        pytest.param(StatusUpdate(task_id="t", status=STATUS), id="status"),
        pytest.param(TaskSnapshot(task=Task(id="t", status=STATUS)), id="task"),
        pytest.param(MessageUpdate(message=MESSAGE), id="message"),
        pytest.param(ArtifactUpdate(task_id="t", artifact=ARTIFACT), id="artifact"),
    ],
)
def test_every_event_has_a_time(update: TaskUpdate) -> None:
    document = json.loads(push_body(update, AGENTVAULT, now=NOW))
    assert document["timestamp"] == "2026-01-02T03:04:05Z"
    assert document["taskId"] == "t"


@by_id
def test_an_event_that_has_a_time_keeps_it(case: Mapping[str, Any]) -> None:
    update = decode_update(body(case["body"]))
    assert json.loads(push_body(update, AGENTVAULT, now=NOW)) == without_nulls(case["body"])


def test_a_time_takes_nothing_along_from_another_version() -> None:
    document = {"message": {"messageId": "m", "taskId": "t", "role": "ROLE_AGENT", "x": 1}}
    document["message"]["parts"] = [{"text": "hi"}]
    update = decode_update(body(document))
    assert json.loads(push_body(update, AGENTVAULT, now=NOW)) == {
        "taskId": "t",
        "message": {"role": "assistant", "parts": [{"type": "text", "content": "hi"}]},
        "timestamp": "2026-01-02T03:04:05Z",
    }


# --- round trips ---------------------------------------------------------------------------------

sayable_states = [
    TaskState.SUBMITTED,
    TaskState.WORKING,
    TaskState.INPUT_REQUIRED,
    TaskState.COMPLETED,
    TaskState.CANCELED,
    TaskState.FAILED,
]
plain_messages = st.builds(
    lambda text: Message(message_id="", role=Role.AGENT, parts=(TextPart(text=text),)),
    texts.filter(bool),
)
contents = st.one_of(
    st.builds(TextPart, text=texts, media_type=st.none() | names),
    st.builds(
        DataPart,
        data=values.filter(lambda value: value is not None and not isinstance(value, str)),
        media_type=st.none() | names,
    ),
)
artifact_parts = st.one_of(
    st.just(()),
    st.tuples(contents),
    st.tuples(st.builds(UrlPart, url=texts, media_type=st.none() | names)),
    st.tuples(contents, st.builds(UrlPart, url=texts)),
)
updates: st.SearchStrategy[TaskUpdate] = st.one_of(
    st.builds(
        StatusUpdate,
        task_id=names,
        status=st.builds(
            TaskStatus,
            state=st.sampled_from(sayable_states),
            message=st.none() | plain_messages,
            timestamp=timestamps,
        ),
    ),
    st.builds(MessageUpdate, message=messages(AGENTVAULT)),
    st.builds(
        ArtifactUpdate,
        task_id=names,
        artifact=st.builds(
            Artifact, artifact_id=names, name=names, parts=artifact_parts, metadata=objects
        ),
    ),
)


@slow_to_draw
@given(updates)
def test_an_update_survives_a_round_trip_in_agentvault(update: TaskUpdate) -> None:
    assert decode_update(encode_update(update, AGENTVAULT)) == replace(update, origin=AGENTVAULT)


about: dict[str, Any] = {
    "metadata": optional_object,
    "mediaType": optional_text,
    "filename": optional_text,
}
wire_parts = st.one_of(
    wire({"type": st.just("text"), "content": texts}, about),
    wire({"type": st.just("data"), "content": values}, about | {"url": optional_text}),
    wire({"type": st.just("file"), "url": texts}, about | {"content": values}),
    wire({"type": st.just("file"), "content": base64s}, about),
    wire({"type": st.sampled_from(["text", "new"]), "content": values}, about),
    wire({"kind": st.just("text"), "text": texts}, about),
)
roles = st.sampled_from(["user", "assistant", "agent", "system", "tool"])
timed = {"timestamp": moments}
wire_messages = wire(
    {"role": roles, "parts": st.lists(wire_parts, min_size=1, max_size=2)},
    {"metadata": optional_object},
)
wire_artifacts = wire(
    {"id": names, "type": names},
    {
        "content": values,
        "url": optional_text,
        "mediaType": optional_text,
        "metadata": optional_object,
    },
)
states = st.sampled_from([*(state.name for state in TaskState), "PAUSED"])
wire_updates = st.one_of(
    wire({"taskId": names, "state": states}, timed | {"message": optional_text}),
    wire({"taskId": names, "message": wire_messages}, timed),
    wire({"taskId": names, "artifact": wire_artifacts}, timed),
)


@slow_to_draw
@given(wire_updates)
def test_a_round_trip_through_agentvault_loses_nothing(document: dict[str, Any]) -> None:
    check_a_round_trip(document, AGENTVAULT)
