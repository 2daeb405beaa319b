"""One task, as every sender here sends it."""

from __future__ import annotations

from pushkit import Artifact, ArtifactUpdate, StatusUpdate, TaskState, TaskStatus, TextPart

__all__ = ["UPDATES"]


def _status(state: TaskState) -> StatusUpdate:
    return StatusUpdate(task_id="task-1", context_id="context-1", status=TaskStatus(state=state))


UPDATES = (
    _status(TaskState.SUBMITTED),
    _status(TaskState.WORKING),
    ArtifactUpdate(
        task_id="task-1",
        context_id="context-1",
        artifact=Artifact(artifact_id="result", parts=(TextPart(text="héllo <b>&"),)),
        last_chunk=True,
    ),
    _status(TaskState.COMPLETED),
)
