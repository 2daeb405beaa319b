"""`Event`, the base of all events; their codes; the one event of both sides; and the listeners."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

from pushkit.errors import ConfigError
from pushkit.logs import printable
from pushkit.options import check_callable
from pushkit.record import record

# The names of these members in log lines: shorter, or with their unit.
_SHORT: Final = {"task_id": "task", "took": "seconds", "waited": "seconds"}


class EventKind(StrEnum):
    """The stable code of each event."""

    ENQUEUED = "enqueued"
    ATTEMPT = "attempt"
    DELIVERED = "delivered"
    DELIVERY_DEAD = "delivery_dead"
    RECIPIENT_REFUSED = "recipient_refused"
    PUSH_CONFIG_REFUSED = "push_config_refused"
    PUSH_CONFIG_UNSENT = "push_config_unsent"
    LOCAL_FAULT = "local_fault"
    BREAKER_OPENED = "breaker_opened"
    BREAKER_CLOSED = "breaker_closed"
    SUBSCRIPTION_CHANGED = "subscription_changed"
    SUBSCRIPTION_DISABLED = "subscription_disabled"
    OUTBOX_CHANGED = "outbox_changed"
    KEY_RING_CHANGED = "key_ring_changed"
    SIGNING_KEY_CHANGED = "signing_key_changed"
    SIGNING_KEY_NEAR_END = "signing_key_near_end"
    HEALTH_FAULT = "health_fault"
    NOTIFICATION_ACCEPTED = "notification_accepted"
    NOTIFICATION_REPEATED = "notification_repeated"
    NOTIFICATION_REFUSED = "notification_refused"
    GENERATION_GAP = "generation_gap"
    CALLED_BACK = "called_back"
    NOTIFICATION_DEAD = "notification_dead"


@record(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    kind: ClassVar[EventKind]
    usual_level: ClassVar[int] = logging.NOTSET

    at: datetime  # when it happened

    def __init_subclass__(cls, *, kind: EventKind | None = None, level: int | None = None) -> None:
        # A class with slots is created twice, the second time without these arguments.
        if kind is not None:
            cls.kind = kind
        if level is not None:
            cls.usual_level = level

    @property
    def level(self) -> int:
        """The level at which it is logged; `NOTSET` for not at all, or by a line of its own."""
        return self.usual_level


@record(frozen=True, slots=True, kw_only=True)
class HealthFault(Event, kind=EventKind.HEALTH_FAULT):
    """A part of a sender or a receiver does not work. Emitted only if alerts are configured."""

    part: str  # `storage`, `worker`, `keys` or `callbacks`, as in `/readyz`
    reason: str  # the cause, in a sentence
    about: str = ""  # the sender whose keys, or the callback; empty for the whole part


Listener: TypeAlias = Callable[[Event], None]


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
