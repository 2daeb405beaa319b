"""A2A 0.1, and the task objects of the first samples."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pushkit.a2a import (
    ArtifactUpdate,
    DataPart,
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
    push_body,
)
from pushkit.errors import InvalidUpdateError, SnapshotRequiredError
from tests.unit.pushkit.a2a.strategies import ARTIFACT, MESSAGE, STATUS, VECTORS, body

V0_1, V0_3, V1_0 = WireVersion.V0_1, WireVersion.V0_3, WireVersion.V1_0
CASES: list[dict[str, Any]] = json.loads((VECTORS / "a2a-v0.1.json").read_text("utf-8"))["cases"]

STATUS_UPDATE = StatusUpdate(task_id="t", status=STATUS)


def written(update: TaskUpdate, version: WireVersion = V0_1) -> Any:
    return json.loads(encode_update(update, version))


def test_a_task_of_the_first_samples_is_read_in_full() -> None:
    update = decode_update(body(CASES[-1]["body"]))

    assert isinstance(update, TaskSnapshot)
    task = update.task
    assert task.context_id == "c3d4"
    assert task.status.message is not None
    assert task.status.message.parts == (DataPart(data={"amount": "20"}),)
    text, file = task.artifacts[0].parts
    assert isinstance(text, TextPart)
    assert isinstance(file, RawPart)
    assert (text.text, file.filename, file.media_type) == ("héllo <b>&", "a.png", "image/png")
    # 0.1 §6.6 permits a file without content.
    assert task.artifacts[1].parts == (UnknownPart(extra={"type": "file", "file": {}}),)
    assert [message.role for message in task.history] == [Role.USER]


# --- formats that are distinguished --------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "version"),
    [
        pytest.param({"id": "t", "status": {}}, V0_1, id="task without a session"),
        pytest.param({"id": "t", "sessionId": "s", "status": {}}, V0_1, id="session"),
        pytest.param({"id": "t", "sessionId": "s", "contextId": "c", "status": {}}, V0_1, id="two"),
        pytest.param({"id": "t", "contextId": "c", "status": {}}, V0_3, id="context"),
        pytest.param(
            {"id": "t", "sessionId": None, "contextId": "c", "status": {}}, V0_3, id="no session"
        ),
        pytest.param(
            {"id": "t", "sessionId": "", "contextId": "c", "status": {}}, V0_3, id="empty session"
        ),
        pytest.param(
            {"id": "t", "taskId": "t", "contextId": "c", "status": {}}, V0_1, id="both ids"
        ),
        pytest.param({"kind": "task", "id": "t", "sessionId": "s", "status": {}}, V0_3, id="kind"),
        pytest.param({"taskId": "t", "status": {}}, V0_1, id="status by task id"),
        pytest.param({"taskId": "t", "artifact": {"parts": []}}, V0_1, id="artifact by task id"),
        pytest.param(
            {"taskId": "t", "artifact": {"id": "a", "type": "log"}},
            WireVersion.AGENTVAULT_0_2,
            id="artifact of AgentVault",
        ),
    ],
)
def test_the_shape_tells_the_version(document: object, version: WireVersion) -> None:
    assert decode_update(body(document)).origin is version


# --- writing -------------------------------------------------------------------------------------


def test_a_status_is_addressed_by_both_names() -> None:
    assert written(STATUS_UPDATE) == {
        "id": "t",
        "taskId": "t",
        "status": {"state": "working"},
        "final": False,
    }


@pytest.mark.parametrize(
    ("state", "name"), [(TaskState.REJECTED, "failed"), (TaskState.AUTH_REQUIRED, "input-required")]
)
def test_a_younger_state_is_written_as_its_nearest(state: TaskState, name: str) -> None:
    document = written(replace(STATUS_UPDATE, status=TaskStatus(state=state)))
    assert document["status"]["state"] == name
    assert document["final"] is True


def test_an_artifact_has_the_index_that_its_id_is_or_its_position() -> None:
    def indices(*ids: str) -> list[int]:
        artifacts = tuple(replace(ARTIFACT, artifact_id=each) for each in ids)
        task = Task(id="t", status=STATUS, artifacts=artifacts)
        return [each["index"] for each in written(TaskSnapshot(task=task))["artifacts"]]

    assert indices("7", "0", "0") == [7, 0, 0]
    assert indices("a", "7") == [0, 1]
    assert indices("07", "1") == [0, 1]


@pytest.mark.parametrize(
    ("update", "path"),
    [
        pytest.param(TaskSnapshot(task=Task(id="", status=STATUS)), "id: ", id="task id"),
        pytest.param(replace(STATUS_UPDATE, task_id=""), "id: ", id="status task id"),
        pytest.param(
            replace(STATUS_UPDATE, status=replace(STATUS, message=replace(MESSAGE, parts=()))),
            "status.message.parts: ",
            id="no part",
        ),
        pytest.param(
            replace(
                STATUS_UPDATE,
                status=replace(STATUS, message=replace(MESSAGE, role=Role.UNSPECIFIED)),
            ),
            "status.message.role: ",
            id="role",
        ),
        pytest.param(MessageUpdate(message=MESSAGE), "no notification of a message", id="message"),
    ],
)
def test_refuses_to_write_what_0_1_forbids(update: TaskUpdate, path: str) -> None:
    with pytest.raises(InvalidUpdateError, match=path):
        encode_update(update, V0_1)


def test_a_subscription_gets_a_status_or_a_task() -> None:
    task = Task(id="t", status=STATUS)
    whole = encode_update(TaskSnapshot(task=task), V0_1)
    artifact = ArtifactUpdate(task_id="t", artifact=ARTIFACT)

    assert push_body(STATUS_UPDATE, V0_1) == encode_update(STATUS_UPDATE, V0_1)
    assert push_body(TaskSnapshot(task=task), V0_1) == whole
    assert push_body(artifact, V0_1, task) == whole
    assert push_body(MessageUpdate(message=replace(MESSAGE, task_id="t")), V0_1, task) == whole
    with pytest.raises(SnapshotRequiredError, match="pass snapshot="):
        push_body(artifact, V0_1)


# --- ids that 0.1 does not have ------------------------------------------------------------------


def status_with(text: str) -> bytes:
    message = {"role": "agent", "parts": [{"type": "text", "text": text}]}
    return body({"id": "t", "status": {"state": "working", "message": message}, "final": False})


def test_a_message_gets_an_id_of_its_content_elsewhere() -> None:
    one, again, other = (
        written(decode_update(status_with(text)), V1_0)["statusUpdate"]["status"]["message"]
        for text in ("a", "a", "b")
    )
    assert one["messageId"] == again["messageId"] != other["messageId"]
    assert one["messageId"].startswith("msg-")


def test_a_task_without_a_session_is_its_own_context_elsewhere() -> None:
    update = decode_update(status_with("a"))
    assert update.context_id is None
    assert written(update, V0_3)["contextId"] == "t"
