"""Notifications of real senders and of specifications are read, and written back equal in value."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, TypedDict

import pytest

from pushkit.a2a import (
    ArtifactUpdate,
    TaskSnapshot,
    TaskState,
    TextPart,
    UpdateKind,
    WireVersion,
    decode_update,
    encode_update,
)
from tests.unit.pushkit.a2a.strategies import VECTORS, body, without_nulls


class Capture(TypedDict):
    sender: str
    body: str


def captures() -> list[Capture]:
    lines = (VECTORS / "wire_captures.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


# In the order of the file: version, kind, state.
EXPECTED = [
    ("0.3", "task", "completed"),
    *2
    * [
        ("1.0", "task", "submitted"),
        ("1.0", "status-update", "working"),
        ("1.0", "artifact-update", None),
        ("1.0", "status-update", "completed"),
    ],
    *2
    * [
        ("0.3", "task", "submitted"),
        ("0.3", "task", "working"),
        ("0.3", "task", "working"),
        ("0.3", "task", "completed"),
    ],
    ("1.0", "task", "submitted"),
    ("0.3", "task", "submitted"),
    ("1.0", "status-update", "working"),
    ("1.0", "artifact-update", None),
    ("1.0", "status-update", "completed"),
    ("0.3", "status-update", "working"),
    ("0.3", "artifact-update", None),
    ("0.3", "status-update", "completed"),
]
CASES = [
    pytest.param(capture["body"].encode(), *expected, id=f"{number}-{capture['sender']}")
    for number, (capture, expected) in enumerate(zip(captures(), EXPECTED, strict=True))
]


def task_id_on_the_wire(body: bytes) -> str:
    document = json.loads(body)
    if "kind" not in document:
        (document,) = document.values()
    found = document.get("taskId") or document["id"]
    assert isinstance(found, str)
    return found


def shape_of(document: Any) -> Any:
    if isinstance(document, list):
        return [shape_of(item) for item in document]
    if not isinstance(document, dict):
        return None
    return {name: shape_of(item) for name, item in document.items() if item not in (None, False)}


@pytest.mark.parametrize(("sent", "version", "kind", "state"), CASES)
def test_reads_what_sdks_send(sent: bytes, version: str, kind: str, state: str | None) -> None:
    update = decode_update(sent)

    assert update.origin is WireVersion(version)
    assert update.kind is UpdateKind(kind)
    assert update.state is (None if state is None else TaskState(state))
    assert update.task_id == task_id_on_the_wire(sent)
    assert update.context_id


@pytest.mark.parametrize("capture", captures(), ids=lambda capture: capture["sender"])
def test_writes_back_what_sdks_send(capture: Capture) -> None:
    update = decode_update(capture["body"].encode())
    assert update.origin is not None
    written = encode_update(update, update.origin)
    assert decode_update(written) == update
    # The same members, some in another spelling, without those that are empty.
    assert shape_of(json.loads(written)) == shape_of(json.loads(capture["body"]))


def test_reads_the_content_of_a_captured_artifact() -> None:
    bodies = [capture["body"].encode() for capture in captures()]
    artifacts = [u for u in map(decode_update, bodies) if isinstance(u, ArtifactUpdate)]

    assert len(artifacts) == 4
    for update in artifacts:
        (part,) = update.artifact.parts
        assert isinstance(part, TextPart)
        assert part.text == "héllo <b>&"


# --- the examples of A2A 0.1, of the first samples, and of AgentVault ----------------------------


def examples(file: str, version: WireVersion) -> list[Any]:
    cases = json.loads((VECTORS / file).read_text("utf-8"))["cases"]
    return [pytest.param(case, version, id=f"{version}-{case['id']}") for case in cases]


EXAMPLES = pytest.mark.parametrize(
    ("case", "version"),
    examples("a2a-v0.1.json", WireVersion.V0_1)
    + examples("agentvault-v0.2.json", WireVersion.AGENTVAULT_0_2),
)


@EXAMPLES
def test_reads_an_example(case: dict[str, Any], version: WireVersion) -> None:
    update = decode_update(body(case["body"]))
    assert (update.origin, update.kind, update.state) == (version, case["kind"], case["state"])
    assert update.task_id == case.get("task_id", "task-abc-123")


@EXAMPLES
def test_writes_an_example_back(case: dict[str, Any], version: WireVersion) -> None:
    # In 0.1 with both names of the task.
    expected = without_nulls(case["body"] | case.get("adds", {}))
    if case["id"] == "legacy-task":  # its time has no offset
        expected["status"]["timestamp"] += "Z"
    if case["id"] == "9.2-artifact-event":  # `false` is not written
        del expected["artifact"]["lastChunk"]
    assert json.loads(encode_update(decode_update(body(case["body"])), version)) == expected


@EXAMPLES
def test_an_example_becomes_a_notification_of_other_versions(
    case: dict[str, Any], version: WireVersion
) -> None:
    update = decode_update(body(case["body"]))
    if case["id"] == "legacy-task":  # no other version can carry its empty file
        assert isinstance(update, TaskSnapshot)
        update = replace(update, task=replace(update.task, artifacts=update.task.artifacts[:1]))
    others = [WireVersion.V1_0]
    if version is WireVersion.V0_1:
        others.append(WireVersion.V0_3)
    for other in others:
        again = decode_update(encode_update(update, other))
        assert (again.task_id, again.state) == (update.task_id, update.state)
        assert (again.origin, again.kind) == (other, update.kind)
