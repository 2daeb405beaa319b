"""What was found when somebody looked whether all is well: told at every look while it lasts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pushkit.events.model import Event, EventKind


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFault(Event):
    """Something of a sender or a receiver does not work; looked for where alerts are configured.

    Attributes:
        part: What: `storage`, `worker`, `keys` or `callbacks`, as `/readyz` has it.
        reason: Why, in a sentence.
        about: Whose, or which: a sender's keys, a callback; empty if it is the whole part.
    """

    kind: ClassVar[EventKind] = EventKind.HEALTH_FAULT

    part: str
    reason: str
    about: str = ""
