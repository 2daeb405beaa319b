"""The text and the data of messages, artifacts, tasks and updates."""

from __future__ import annotations

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
    UrlPart,
)

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
