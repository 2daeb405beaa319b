"""An update of a task, for tests that do not look at what it says."""

from __future__ import annotations

from pushkit import StatusUpdate, TaskState, TaskStatus

__all__ = ["working"]


def working(task_id: str = "task-1") -> StatusUpdate:
    """Return the update that a task is in progress."""
    return StatusUpdate(task_id=task_id, context_id="c", status=TaskStatus(state=TaskState.WORKING))
