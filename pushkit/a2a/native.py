"""An update as the agent's SDK has it: written straight in its version, read only if need be."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from pushkit.a2a.updates import TaskState, TaskUpdate, UpdateKind, WireVersion

__all__ = ["NativeUpdate"]


class NativeUpdate:
    """An update in the form of another library.

    Args:
        kind: What it is.
        task_id: The task that it is about.
        state: The state of the task, where the update says it.
        version: The version that the library speaks.
        write: Writes it in that version, as `encode_update` would; raises as that does.
        read: Makes the neutral update. Called once, and only when somebody asks.
    """

    def __init__(
        self,
        *,
        kind: UpdateKind,
        task_id: str,
        state: TaskState | None,
        version: WireVersion,
        write: Callable[[], bytes],
        read: Callable[[], TaskUpdate],
    ) -> None:
        self.kind = kind
        self.task_id = task_id
        self.state = state
        self.version = version
        self._write = write
        self._read = read

    @cached_property
    def body(self) -> bytes:
        """Its bytes in its own version. Raises InvalidUpdateError."""
        return self._write()

    @cached_property
    def neutral(self) -> TaskUpdate:
        """The neutral update, for another version or a filter. Raises InvalidUpdateError."""
        return self._read()
