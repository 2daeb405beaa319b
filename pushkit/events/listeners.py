"""Who hears of events: the log, by the level of each, and whoever was added."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from pushkit.errors import ConfigError
from pushkit.events.model import Event
from pushkit.logs import printable

Listener: TypeAlias = Callable[[Event], None]

# Shorter, as lines are read; and `seconds` says its unit.
_SHORT: Final = {"task_id": "task", "took": "seconds", "waited": "seconds"}


class Listeners:
    """Those who hear of what happens: a log, of events that have a level, and whoever is added."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._listeners: tuple[Listener, ...] = ()

    def add(self, listener: Listener) -> None:
        """Let a function hear of everything. Quick, on the event loop; what it raises is logged.

        Raises:
            ConfigError: It is a coroutine function, whose calls nobody would await.
        """
        if inspect.iscoroutinefunction(listener):
            raise ConfigError("on_event: found a coroutine function, expected a plain one")
        self._listeners += (listener,)

    def remove(self, listener: Listener) -> None:
        """Let a function hear of nothing any more."""
        self._listeners = tuple(each for each in self._listeners if each != listener)

    def wants(self, level: int) -> bool:
        """Say whether anybody would hear of an event of this level: else it need not be made."""
        return bool(self._listeners) or (level > 0 and self._log.isEnabledFor(level))

    def emit(self, event: Event) -> None:
        """Hand an event to who listens; what a listener raises is logged and outlived."""
        level = event.level
        if level and self._log.isEnabledFor(level):
            facts = facts_of(event)
            line = "".join(f" {name}={_shown(value)}" for name, value in facts.items())
            extra = {"code": event.kind.value, **facts}
            self._log.log(level, "%s%s", event.kind.value, line, extra=extra)
        for listener in self._listeners:
            try:
                listener(event)
            # A listener never breaks what it hears of. Nobody can be cancelled here, where nothing
            # waits: it is that of some task or future which the listener looked at.
            except (Exception, asyncio.CancelledError):  # noqa: BLE001
                self._log.exception("a listener failed at %s", event.kind.value)


def facts_of(event: Event) -> dict[str, object]:
    """Return what an event says, as names and plain values; without what is not known or empty."""
    found: dict[str, object] = {}
    for name in (each.name for each in fields(event)):
        value = getattr(event, name)
        if value is None or value == "":
            continue
        if isinstance(value, timedelta):
            value = round(value.total_seconds(), 6)
        elif isinstance(value, datetime):
            continue  # a line has its own time
        found[_SHORT.get(name, name)] = value
    return found


def _shown(value: object) -> str:
    return printable(value) if isinstance(value, str) else str(value)
