"""An update as the agent's SDK has it: written straight in its version, read only if need be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from pushkit.a2a.updates import TaskState, TaskUpdate, UpdateKind, WireVersion


@dataclass(slots=True, kw_only=True, eq=False)
class NativeUpdate:
    """An update in the form of another library.

    Attributes:
        kind: What it is.
        task_id: The task that it is about.
        state: The state of the task, where the update says it.
        is_partial: As of the neutral update.
        is_bare: As of the neutral update.
        version: The version that the library speaks.
        write: Writes it in that version, as `encode_update` would; raises as that does.
        read: Makes the neutral update. Called once, and only when somebody asks.
    """

    kind: UpdateKind
    task_id: str
    state: TaskState | None
    is_partial: bool = False
    is_bare: bool = False
    version: WireVersion
    write: Callable[[], bytes]
    read: Callable[[], TaskUpdate]
    _body: bytes | None = field(default=None, init=False, repr=False)
    _neutral: TaskUpdate | None = field(default=None, init=False, repr=False)

    @property
    def body(self) -> bytes:
        """Its bytes in its own version. Raises InvalidUpdateError."""
        if self._body is None:
            self._body = self.write()
        return self._body

    @property
    def neutral(self) -> TaskUpdate:
        """The neutral update, for another version. Raises InvalidUpdateError."""
        if self._neutral is None:
            self._neutral = self.read()
        return self._neutral


AnyUpdate: TypeAlias = TaskUpdate | NativeUpdate
