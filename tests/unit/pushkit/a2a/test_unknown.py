"""Kinds that no version has, the version that a sender states, and the generation of a task."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.a2a import (
    ArtifactUpdate,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskUpdate,
    UnknownUpdate,
    UpdateKind,
    WireVersion,
    decode_update,
    encode_update,
    parse_update,
    push_body,
)
from pushkit.errors import InvalidUpdateError, SnapshotRequiredError, UnrecognisedBodyError
from tests.unit.pushkit.a2a.strategies import ARTIFACT, STATUS, body

V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0
AGENTVAULT = WireVersion.AGENTVAULT_0_2
NEWER: dict[str, Any] = {
    "messageUpdate": {"taskId": "t", "contextId": "c", "message": {"role": "ROLE_AGENT"}}
}


# --- kinds that no version has -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "name", "task_id", "origin"),
    [
        pytest.param(NEWER, "messageUpdate", "t", V1_0, id="1.1's draft"),
        pytest.param({"x": {"task_id": "t"}}, "x", "t", V1_0, id="snake case"),
        pytest.param(NEWER | {"id": "e", "meta": {"a": 1}}, "messageUpdate", "t", V1_0, id="more"),
        pytest.param(NEWER | {"task": None}, "messageUpdate", "t", V1_0, id="null beside it"),
        pytest.param({"kind": "event", "id": "t", "status": {}}, "event", None, V0_3, id="kind"),
        pytest.param({"kind": "e", "taskId": "t", "x": {}}, "e", "t", V0_3, id="kind of a task"),
        pytest.param(
            {"kind": "message-update", "taskId": "t", "message": {"role": "agent"}},
            "message-update",
            "t",
            V0_3,
            id="kind with a message",
        ),
        pytest.param({"kind": "unknown"}, "unknown", None, V0_3, id="kind called unknown"),
    ],
)
def test_a_kind_that_no_version_has_is_kept_whole(
    document: dict[str, Any], name: str, task_id: str | None, origin: WireVersion
) -> None:
    update = decode_update(body(document))
    assert isinstance(update, UnknownUpdate)
    assert (update.kind, update.state) == (UpdateKind.UNKNOWN, None)
    assert (update.name, update.task_id, update.origin) == (name, task_id, origin)
    assert update.summary == f"unknown kind '{name}' of A2A {origin}"
    written = encode_update(update, origin)
    assert decode_update(written) == update
    assert json.loads(written) == {n: each for n, each in document.items() if each is not None}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"x": {"id": "t"}}, id="no task id"),
        pytest.param({"x": "t"}, id="no object"),
        pytest.param({"x": {"taskId": "t"}, "y": {"taskId": "t"}}, id="two objects"),
        pytest.param({"x": {"taskId": ""}}, id="empty task id"),
        pytest.param(NEWER | {"task": "t"}, id="known update of a wrong type"),
        pytest.param({"x": {"taskId": 5}}, id="task id of a wrong type"),
        pytest.param({"x": {"taskId": "t", "task_id": "t"}}, id="both spellings"),
        pytest.param({"kind": "x", "taskId": 5}, id="task id of a wrong type beside a kind"),
        pytest.param({"kind": ""}, id="empty kind"),
        pytest.param({"kind": "x", "statusUpdate": {"taskId": "t"}}, id="kind beside an update"),
        pytest.param({"kind": "message", "message": {"taskId": "t"}}, id="known kind beside one"),
        pytest.param({"kind": [], "message": {"taskId": "t"}}, id="kind of a wrong type"),
        pytest.param({"statusUpdate": {"taskId": "t"}, "message": {}}, id="two known updates"),
        pytest.param({"statusUpdate": {"taskId": "t"}, "id": "t"}, id="known update with an id"),
        pytest.param([NEWER], id="array"),
    ],
)
def test_other_shapes_are_refused(document: object) -> None:
    with pytest.raises(UnrecognisedBodyError):
        decode_update(body(document))


names = st.text(min_size=1, max_size=8).map("x{}".format)
inner = st.dictionaries(names, st.none() | st.booleans() | st.text(max_size=4), max_size=3)


@given(names, inner, st.dictionaries(names, st.none() | st.integers(), max_size=2))
def test_a_later_kind_round_trips(name: str, members: Any, beside: Any) -> None:
    document = beside | {name: members | {"taskId": "t"}}
    update = decode_update(body(document))
    assert isinstance(update, UnknownUpdate)
    assert json.loads(encode_update(update, V1_0)) == document


def test_it_is_written_in_no_other_version() -> None:
    update = parse_update(NEWER)
    assert parse_update(NEWER, V1_0) == update
    for version in (V0_1, V0_3, AGENTVAULT):
        with pytest.raises(InvalidUpdateError, match="no known version has this kind"):
            encode_update(update, version)
    assert json.loads(push_body(update, V1_0)) == NEWER


def test_clients_of_earlier_versions_get_the_task() -> None:
    update, task = parse_update(NEWER), Task(id="t", context_id="c", status=STATUS)
    for version in (V0_1, V0_3):
        assert decode_update(push_body(update, version, task)).kind is UpdateKind.TASK
        with pytest.raises(SnapshotRequiredError):
            push_body(update, version)


# --- the version that a sender states ------------------------------------------------------------

ALIKE = {"id": "t", "status": {"state": "working"}}  # a task of 0.1, and one of 0.3 without context
TASK_0_3 = ALIKE | {"kind": "task", "contextId": "c"}
STATUS_1_0 = {"statusUpdate": {"taskId": "t", "status": {"state": "TASK_STATE_WORKING"}}}


@pytest.mark.parametrize(
    ("document", "stated", "origin"),
    [
        pytest.param(ALIKE, "0.1", V0_1, id="as by shape"),
        pytest.param(ALIKE, "0.3", V0_3, id="preferred to the shape"),
        pytest.param(ALIKE, "0.2.6", V0_3, id="patch release"),
        pytest.param(STATUS_1_0, "1.0", V1_0, id="1.0"),
        pytest.param(NEWER, "1.0", V1_0, id="unknown kind"),
        pytest.param(TASK_0_3, "0.3", V0_3, id="0.3"),
    ],
)
def test_the_stated_version_is_preferred(
    document: object, stated: str, origin: WireVersion
) -> None:
    update = decode_update(body(document), stated)
    assert (update.origin, update.misstated) == (origin, None)


@pytest.mark.parametrize(
    ("document", "stated", "origin"),
    [
        pytest.param(ALIKE, "1.0", V0_1, id="not a StreamResponse"),
        pytest.param(ALIKE, "agentvault-0.2", V0_1, id="not AgentVault's"),
        pytest.param(STATUS_1_0, "0.3", V1_0, id="StreamResponse"),
        pytest.param(NEWER, "0.1", V1_0, id="unknown kind"),
        pytest.param(TASK_0_3, "0.1", V0_3, id="with a kind"),
        pytest.param(STATUS_1_0, "1.1", V1_0, id="later version"),
        pytest.param(STATUS_1_0, "x" * 500, V1_0, id="no version"),
        pytest.param(STATUS_1_0, "", V1_0, id="empty"),
    ],
)
def test_the_shape_decides_if_the_body_is_of_another_version(
    document: object, stated: str, origin: WireVersion
) -> None:
    update = decode_update(body(document), stated)
    assert (update.origin, update.misstated) == (origin, stated)
    assert update == decode_update(body(document))
    shown = repr(stated) if len(stated) < 20 else "500 characters"
    assert f"; its sender states {shown}" in update.summary


@pytest.mark.parametrize("stated", ["0.1", "0.3", "1.0", "agentvault-0.2", "2.0"])
def test_what_fits_no_version_is_refused_whatever_is_stated(stated: str) -> None:
    for document in ({"x": 1}, {"kind": "task", "statusUpdate": {}}, {"kind": "task"}):
        with pytest.raises(UnrecognisedBodyError):
            decode_update(body(document), stated)


# --- the generation of a task --------------------------------------------------------------------


def of_each_kind(generation: object) -> list[Any]:
    status = {"state": "TASK_STATE_WORKING"}
    return [
        {"task": {"id": "t", "status": status, "generation": generation}},
        {"statusUpdate": {"taskId": "t", "status": status, "generation": generation}},
        {"artifactUpdate": {"taskId": "t", "artifact": {}, "generation": generation}},
        {"messageUpdate": {"taskId": "t", "generation": generation}},
    ]


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        pytest.param(7, 7, id="number"),
        pytest.param("7", 7, id="64 bits in ProtoJSON"),
        pytest.param(2**63 - 1, 2**63 - 1, id="largest"),
        pytest.param(0, None, id="zero"),
        pytest.param(None, None, id="null"),
        pytest.param(-1, None, id="negative"),
        pytest.param(2**63, None, id="too large"),
        pytest.param("9" * 5000, None, id="long text"),
        pytest.param(1.5, None, id="fraction"),
        pytest.param(True, None, id="boolean"),
        pytest.param("seven", None, id="word"),
    ],
)
def test_the_generation_is_read_of_each_kind(generation: object, expected: int | None) -> None:
    for document in of_each_kind(generation):
        assert decode_update(body(document)).generation == expected


def test_a_generation_that_cannot_be_read_is_left_out() -> None:
    update = decode_update(body(of_each_kind("seven")[1]))
    assert update.left_out == (
        "StatusUpdate.generation: expected a whole number of at most 63 bits",
    )


@pytest.mark.parametrize(
    "update",
    [
        TaskSnapshot(task=Task(id="t", context_id="c", status=STATUS, generation=7)),
        StatusUpdate(task_id="t", context_id="c", status=STATUS, generation=7),
        ArtifactUpdate(task_id="t", context_id="c", artifact=ARTIFACT, generation=7),
    ],
    ids=lambda update: update.kind,
)
def test_the_generation_is_written_in_1_0(update: TaskUpdate) -> None:
    assert decode_update(push_body(update, V1_0)).generation == 7


def test_a_negative_generation_is_not_written() -> None:
    update = StatusUpdate(task_id="t", context_id="c", status=STATUS, generation=-1)
    with pytest.raises(InvalidUpdateError, match="generation: expected a whole number"):
        encode_update(update, V1_0)
