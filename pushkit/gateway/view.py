"""A task as its webhooks know it, in digests: whether they know what the agent says now.

Texts of an artifact count as one, however they were cut into chunks, and neither ids of messages
nor times count: agents write them anew.
"""

from __future__ import annotations

import hashlib
from typing import Any

from pushkit.a2a import (
    AnyUpdate,
    Artifact,
    ArtifactUpdate,
    StatusUpdate,
    Task,
    TaskSnapshot,
    TaskState,
    TaskStatus,
    TextPart,
)
from pushkit.outbox.model import update_digest


class TaskView:
    """What updates have said of a task."""

    def __init__(self) -> None:
        self.state: TaskState | None = None
        self._status = ""
        self._artifacts: dict[str, Any] = {}  # by id, the running hash

    @classmethod
    def of(cls, task: Task) -> TaskView:
        """Return the view of a whole task."""
        view = cls()
        view.apply(TaskSnapshot(task=task))
        return view

    def apply(self, update: AnyUpdate) -> None:
        """Take in an update, in its order."""
        match update:
            case TaskSnapshot(task=task):
                self._set_status(task.status)
                self._artifacts = {}
                for artifact in task.artifacts:
                    self._add(artifact, append=False)
            case StatusUpdate(status=status):
                self._set_status(status)
            case ArtifactUpdate(artifact=artifact, append=append):
                self._add(artifact, append=append)
            case _:  # a message changes no task
                pass

    def digest(self) -> str:
        """Return a digest of it all."""
        whole = hashlib.sha256(self._status.encode())
        for artifact_id in sorted(self._artifacts):
            digest = self._artifacts[artifact_id].digest()
            whole.update(artifact_id.encode("utf-8", "surrogatepass") + b"\0" + digest)
        return whole.hexdigest()

    def _set_status(self, status: TaskStatus) -> None:
        self.state = status.state
        parts = status.message.parts if status.message else ()
        self._status = f"{status.state.value} {_digest_of(parts)}"

    def _add(self, artifact: Artifact, *, append: bool) -> None:
        running = self._artifacts.get(artifact.artifact_id) if append else None
        if running is None:
            running = self._artifacts[artifact.artifact_id] = hashlib.sha256()
        for part in artifact.parts:
            if isinstance(part, TextPart):
                running.update(part.text.encode("utf-8", "surrogatepass"))
            else:
                running.update(f"\0{_digest_of((part,))}\0".encode())


def _digest_of(parts: tuple[Any, ...]) -> str:
    return update_digest(parts) if parts else ""  # type: ignore[arg-type]


def chain(told: str, view: str, message_id: str = "") -> str:
    """Return the digest of all that was told, from the one before and what is new."""
    return hashlib.sha256(f"{told} {view} {message_id}".encode()).hexdigest()
