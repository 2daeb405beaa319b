from __future__ import annotations

import pytest

from pushkit.a2a import (
    Artifact,
    ArtifactUpdate,
    Message,
    MessageUpdate,
    Role,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TaskUpdate,
    UpdateKind,
)
from pushkit.subscriptions.model import Filter

WORKING = StatusUpdate(task_id="task-1", status=TaskStatus(state=TaskState.WORKING))
COMPLETED = StatusUpdate(task_id="task-1", status=TaskStatus(state=TaskState.COMPLETED))
SNAPSHOT = TaskSnapshot(task=Task(id="task-1", status=TaskStatus(state=TaskState.WORKING)))
CHUNK = ArtifactUpdate(task_id="task-1", artifact=Artifact(artifact_id="a", parts=()))
LAST_CHUNK = ArtifactUpdate(
    task_id="task-1", artifact=Artifact(artifact_id="a", parts=()), last_chunk=True
)
MESSAGE = MessageUpdate(message=Message(message_id="m", role=Role.AGENT, parts=()))
ALL: list[TaskUpdate] = [WORKING, COMPLETED, SNAPSHOT, CHUNK, LAST_CHUNK, MESSAGE]

ENDED = frozenset({TaskState.COMPLETED})
STATUS = frozenset({UpdateKind.STATUS_UPDATE})


@pytest.mark.parametrize(
    ("wanted", "accepted"),
    [
        pytest.param(Filter(), ALL, id="everything"),
        pytest.param(
            Filter(states=ENDED), [COMPLETED, CHUNK, LAST_CHUNK, MESSAGE], id="states of those"
        ),
        pytest.param(Filter(kinds=STATUS), [WORKING, COMPLETED], id="kinds"),
        pytest.param(Filter(states=ENDED, kinds=STATUS), [COMPLETED], id="states and kinds"),
        pytest.param(
            Filter(last_chunk_only=True),
            [WORKING, COMPLETED, SNAPSHOT, LAST_CHUNK, MESSAGE],
            id="the last chunk of artifacts",
        ),
        pytest.param(Filter(kinds=frozenset()), [], id="nothing"),
    ],
)
def test_a_filter_accepts(wanted: Filter, accepted: list[TaskUpdate]) -> None:
    assert [update for update in ALL if wanted.accepts(update)] == accepted
