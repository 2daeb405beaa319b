from __future__ import annotations

from typing import Any

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
from pushkit.errors import ConfigError
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


def test_states_and_kinds_may_be_given_by_their_names() -> None:
    given: Any = {"states": ["completed"], "kinds": ["status-update"]}
    named = Filter(**given)
    assert named == Filter(
        states=frozenset({TaskState.COMPLETED}), kinds=frozenset({UpdateKind.STATUS_UPDATE})
    )
    assert hash(named)


@pytest.mark.parametrize("given", [{"states": ["done"]}, {"states": "completed"}, {"kinds": ["x"]}])
def test_an_unknown_state_or_kind_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=f"^filter: {next(iter(given))}: found "):
        Filter(**given)


def test_a_flag_that_is_a_text_is_refused() -> None:
    given: Any = {"last_chunk_only": "false"}
    with pytest.raises(ConfigError, match=r"^filter: last_chunk_only: found str, expected bool$"):
        Filter(**given)
