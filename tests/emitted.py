"""The events of one type that were emitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pushkit.events.model import Event

__all__ = ["emitted"]

E = TypeVar("E", bound=Event)


def emitted(events: Sequence[Event], wanted: type[E]) -> list[E]:
    """Return the events of one type, in order."""
    return [event for event in events if isinstance(event, wanted)]
