"""The neutral model of updates, without a wire format, and what can be read of their parts."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from pushkit.a2a import (
    Artifact,
    ArtifactUpdate,
    DataPart,
    Message,
    MessageUpdate,
    Role,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
    UpdateKind,
    UrlPart,
    WireVersion,
)
from pushkit.errors import UnsupportedVersionError


@pytest.mark.parametrize(
    ("version", "texts"),
    [
        (WireVersion.V0_1, ["0.1", "0.1.0"]),
        (WireVersion.V0_3, ["0.2", "0.2.5", "0.3", "0.3.0", " 0.3.26 "]),
        (WireVersion.V1_0, ["1", "1.0", "1.0.1"]),
        (WireVersion.AGENTVAULT_0_2, ["agentvault-0.2", "AgentVault-0.2", "agentvault-0.2.0"]),
    ],
)
def test_a_format_is_one_version_under_each_of_its_names(
    version: WireVersion, texts: list[str]
) -> None:
    assert {WireVersion.parse(text) for text in [*texts, version]} == {version}
    sent = "application/a2a+json" if version is WireVersion.V1_0 else "application/json"
    assert version.content_type == sent


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "0.4", "1.1", "2.0", "1.0-beta", "1.0.0.0", "-1.0", "v1", "\u0661"),
        *("agentvault", "agentvault-0.3", "x-0.3"),
    ],
)
def test_another_version_is_refused_with_the_supported_ones(text: str) -> None:
    with pytest.raises(
        UnsupportedVersionError, match=r"0\.1, 0\.2, 0\.3 and 1\.0, and agentvault-0\.2"
    ):
        WireVersion.parse(text)


def test_states_know_whether_they_end_or_interrupt() -> None:
    assert {state.value for state in TaskState if state.terminal} == {
        "completed",
        "canceled",
        "failed",
        "rejected",
    }
    assert {state.value for state in TaskState if state.interrupted} == {
        "input-required",
        "auth-required",
    }


def test_updates_answer_the_same_questions() -> None:
    status = TaskStatus(state=TaskState.FAILED)
    snapshot = TaskSnapshot(task=Task(id="t", context_id="c", status=status))
    update = StatusUpdate(task_id="t", context_id="c", status=status)
    message = MessageUpdate(
        message=Message(message_id="m", role=Role.AGENT, parts=(), task_id="t", context_id="c")
    )

    for each in (snapshot, update, message):
        assert (each.task_id, each.context_id, each.origin) == ("t", "c", None)
    assert [each.state for each in (snapshot, update, message)] == ["failed", "failed", None]
    assert [each.kind for each in (snapshot, update, message)] == [
        UpdateKind.TASK,
        UpdateKind.STATUS_UPDATE,
        UpdateKind.MESSAGE,
    ]


def test_updates_can_be_copied_pickled_and_taken_apart() -> None:
    snapshot = TaskSnapshot(task=Task(id="t", status=TaskStatus(state=TaskState.WORKING)))
    assert copy.deepcopy(snapshot) == snapshot
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot  # noqa: S301
    assert dataclasses.asdict(snapshot)["task"]["metadata"] == {}


# --- text and data -------------------------------------------------------------------------------


ARTIFACT = Artifact(
    artifact_id="a",
    parts=(
        TextPart(text="a report"),
        UrlPart(url="https://client.example.com/report.pdf"),
        DataPart(data={"pages": 3}),
        TextPart(text="of three pages"),
    ),
)
MESSAGE = Message(message_id="m", role=Role.AGENT, parts=(TextPart(text="done"), DataPart(data=7)))
STATUS = TaskStatus(state=TaskState.COMPLETED, message=MESSAGE)
BARE = TaskStatus(state=TaskState.WORKING)


def test_a_message_and_an_artifact_have_text_and_data() -> None:
    assert (MESSAGE.text(), MESSAGE.data_values()) == ("done", [7])
    assert ARTIFACT.text() == "a report\nof three pages"
    assert ARTIFACT.data_values() == [{"pages": 3}]


@pytest.mark.parametrize(
    ("update", "text", "data"),
    [
        pytest.param(StatusUpdate(task_id="t", status=STATUS), "done", [7], id="status"),
        pytest.param(StatusUpdate(task_id="t", status=BARE), "", [], id="status-without-message"),
        pytest.param(
            ArtifactUpdate(task_id="t", artifact=ARTIFACT),
            "a report\nof three pages",
            [{"pages": 3}],
            id="artifact",
        ),
        pytest.param(MessageUpdate(message=MESSAGE), "done", [7], id="message"),
        pytest.param(
            TaskSnapshot(task=Task(id="t", status=STATUS, artifacts=(ARTIFACT,))),
            "done\na report\nof three pages",
            [7, {"pages": 3}],
            id="task",
        ),
        pytest.param(TaskSnapshot(task=Task(id="t", status=BARE)), "", [], id="task-that-works"),
    ],
)
def test_an_update_has_the_text_and_data_that_it_brings(
    update: TaskUpdate, text: str, data: list[object]
) -> None:
    assert update.text() == text
    assert update.data_values() == data
