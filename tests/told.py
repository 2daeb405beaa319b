"""Which events were told, of one type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pushkit.events.model import Event

__all__ = ["told"]

E = TypeVar("E", bound=Event)


def told(events: Sequence[Event], wanted: type[E]) -> list[E]:
    """Return the events of a type, in their order."""
    return [event for event in events if isinstance(event, wanted)]
