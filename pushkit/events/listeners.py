"""The listeners of events: a log, and functions that were added."""

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
from pushkit.options import check_callable

Listener: TypeAlias = Callable[[Event], None]

# The names of these members in log lines: shorter, or with their unit.
_SHORT: Final = {"task_id": "task", "took": "seconds", "waited": "seconds"}


class Listeners:
    """Emits events: to a log, if they have a level, and to each listener."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._listeners: tuple[Listener, ...] = ()

    def add(self, listener: Listener) -> None:
        """Add a listener of all events.

        It runs on the event loop and must be quick; exceptions that it raises are logged.

        Raises:
            ConfigError: The listener is not callable, or is a coroutine function, whose calls would
                not be awaited.
        """
        check_callable("on_event", listener)
        if inspect.iscoroutinefunction(listener):
            raise ConfigError("on_event: found a coroutine function, expected a plain one")
        self._listeners += (listener,)

    def remove(self, listener: Listener) -> None:
        """Remove a listener."""
        self._listeners = tuple(each for each in self._listeners if each != listener)

    def wants(self, level: int) -> bool:
        """Return whether an event of this level has a listener, and is worth creating."""
        return bool(self._listeners) or (level > 0 and self._log.isEnabledFor(level))

    def emit(self, event: Event) -> None:
        """Log an event, and call the listeners; exceptions that they raise are logged."""
        level = event.level
        if level and self._log.isEnabledFor(level):
            facts = facts_of(event)
            line = "".join(f" {name}={_shown(value)}" for name, value in facts.items())
            extra = {"code": event.kind.value, **facts}
            self._log.log(level, "%s%s", event.kind.value, line, extra=extra)
        for listener in self._listeners:
            try:
                listener(event)
            # A listener must not break its caller. Nothing is awaited here, so a `CancelledError`
            # is not this task's: the listener read the result of a cancelled task or future.
            except (Exception, asyncio.CancelledError):  # noqa: BLE001
                self._log.exception("a listener failed at %s", event.kind.value)


def facts_of(event: Event) -> dict[str, object]:
    """Return the members of an event as plain values, without empty ones and its time."""
    found: dict[str, object] = {}
    for name in (each.name for each in fields(event)):
        value = getattr(event, name)
        if value is None or value == "":
            continue
        if isinstance(value, timedelta):
            value = round(value.total_seconds(), 6)
        elif isinstance(value, datetime):
            continue  # a log line has its own time
        found[_SHORT.get(name, name)] = value
    return found


def _shown(value: object) -> str:
    return printable(value) if isinstance(value, str) else str(value)
