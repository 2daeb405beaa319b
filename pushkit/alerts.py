"""Alerts about faults, sent to operators at a limited rate.

`alert_of` decides which events are alerts, and `AlertBound` how often the same one is sent, both
without I/O. `Alerts` listens to events, checks health periodically, and sends alerts to sinks.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Final

from pushkit.errors import AlertFailedError, ConfigError, PushkitError
from pushkit.events import (
    ALERTS_OWNER,
    DeliveryDead,
    Event,
    HealthFault,
    Listeners,
    LocalFault,
    NotificationDead,
    SigningKeyNearEnd,
    SubscriptionDisabled,
    facts_of,
)
from pushkit.logs import RepeatedLog, printable
from pushkit.options import Duration, check_options
from pushkit.programs import find_program, inherited_variables, run_program
from pushkit.record import record
from pushkit.scheduling.event_loop import cancelled

_log = logging.getLogger("pushkit.alerts")

_QUEUE_SIZE: Final = 1000
_STOP_SECONDS: Final = 5.0
_COMMAND_WITHIN: Final = timedelta(seconds=30)
_MAX_SUBJECTS: Final = 100
_OTHER: Final = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertOptions:
    """Where alerts go: dead letters, disabled subscriptions, faults of this side, keys, callbacks.

    Attributes:
        log: Write alerts to the log, as errors of the logger `pushkit.alerts`.
        command: A program and its arguments; it gets each alert as JSON on its standard input.
        webhook: A URL that gets each alert as a signed message: a sender uses its own outbox, a
            receiver signs with `webhook_secret`. Faults of the database or of the outbox do not go
            there, but to the command, or without one to the log.
        webhook_token: The A2A token that a sender's alert webhook expects, if it expects one.
        webhook_secret: A secret of Standard Webhooks, `whsec_…`, with which a receiver signs, since
            it has neither outbox nor key.
        every: The same alert is sent once in this time; the next one says how many were not sent.
        look_every: How often to check health, and whether a key is near its end.

    Raises:
        ConfigError: There is nowhere to send alerts, there is no such program, or a time is not
            more than 0.
    """

    log: bool = False
    command: Sequence[str] = field(default=(), repr=False)
    webhook: str | None = field(default=None, repr=False)
    webhook_token: str | None = field(default=None, repr=False)
    webhook_secret: str | None = field(default=None, repr=False)
    every: Duration = timedelta(hours=1)
    look_every: Duration = timedelta(seconds=30)

    def __post_init__(self) -> None:
        check_options(self, of="alerts: ")
        if not (self.log or self.command or self.webhook):
            raise ConfigError("alerts: nowhere to send them, expected log, command or webhook")


class AlertCode(StrEnum):
    """The kind of an alert."""

    DEAD_LETTER = "dead_letter"
    SUBSCRIPTION_DISABLED = "subscription_disabled"
    LOCAL_FAULT = "local_fault"
    KEY_NEAR_END = "key_near_end"
    HEALTH_FAULT = "health_fault"


@record(frozen=True, slots=True, kw_only=True)
class Alert:
    """A fault that an operator should know about."""

    code: AlertCode
    at: datetime  # when it was found
    about: str  # an origin, a sender, a key, a part: alerts with the same code and subject repeat
    says: str  # a sentence
    # The members of the event.
    facts: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    more: int = 0  # how many repetitions were not sent since the previous one

    def document(self) -> dict[str, object]:
        """Return the JSON document that a command or a webhook gets."""
        members = {"code": self.code.value, "at": self.at.isoformat(), "about": self.about}
        return {**members, "says": self.says, "more": self.more, "facts": dict(self.facts)}


def alert_of(event: Event) -> Alert | None:
    """Return the alert for an event; None if the event is not an alert."""
    match event:
        case DeliveryDead(error="gone"):
            return None  # its subscription is disabled, which is an alert of its own
        case DeliveryDead(origin=about, error=error) if event.owner != ALERTS_OWNER:
            code = AlertCode.DEAD_LETTER
            says = f"a delivery of task {printable(event.task_id)} to {about} was given up: {error}"
        case SubscriptionDisabled(origin=about, error=error) if event.owner != ALERTS_OWNER:
            code = AlertCode.SUBSCRIPTION_DISABLED
            says = f"a subscription to task {printable(event.task_id)} at {about} was disabled:"
            says += f" {error}"
        case LocalFault(error=error):
            code, about = AlertCode.LOCAL_FAULT, str(error)
            says = f"deliveries wait because of a fault on this side: {error}"
        case NotificationDead(error=error):
            code, about = AlertCode.DEAD_LETTER, str(event.sender)
            says = f"notification {event.notification_id} of task {printable(event.task_id)} was"
            says += f" given up: {printable(error)}"
        case SigningKeyNearEnd(kid=about, reason=reason):
            code, says = AlertCode.KEY_NEAR_END, f"{event.algorithm} key {about} {reason}"
        case HealthFault(reason=says):
            code, about = AlertCode.HEALTH_FAULT, f"{event.part} {event.about}".rstrip()
        case _:
            return None
    return Alert(code=code, at=event.at, about=about, says=says, facts=facts_of(event))


@dataclass(slots=True)
class _Sent:
    at: datetime
    unsent: int = 0


class AlertBound:
    """Lets the same alert through once in an interval, and counts its repetitions.

    After a hundred different subjects of a code in an interval, all others count as one: `other`.
    """

    def __init__(self, every: timedelta) -> None:
        self._every = every
        # By subject, for each code: so alerts that outsiders cause do not crowd out other codes.
        self._sent: dict[AlertCode, dict[str, _Sent]] = {code: {} for code in AlertCode}

    def limit(self, alert: Alert) -> Alert | None:
        """Return the alert to send; None if it is a repetition, which is only counted."""
        about, of_code = alert.about, self._sent[alert.code]
        if about not in of_code and len(of_code) >= _MAX_SUBJECTS:
            of_code = {each: sent for each, sent in of_code.items() if self._is_recent(sent, alert)}
            self._sent[alert.code] = of_code
            if len(of_code) >= _MAX_SUBJECTS:
                about = _OTHER
        before = of_code.get(about)
        if before is not None and self._is_recent(before, alert):
            before.unsent += 1
            return None
        of_code[about] = _Sent(alert.at)
        return replace(alert, more=before.unsent) if before else alert

    def _is_recent(self, sent: _Sent, alert: Alert) -> bool:
        # The absolute difference, so that a clock that was set back does not suppress alerts.
        return abs(alert.at - sent.at) < self._every


class AlertSink(ABC):
    """A destination for alerts."""

    name: ClassVar[str]  # for the log

    def accepts(self, alert: Alert) -> bool:  # noqa: ARG002  # most accept all
        """Return whether this sink can send an alert; not if it depends on the faulty part."""
        return True

    @abstractmethod
    async def send(self, alert: Alert) -> None:
        """Send an alert; any exception is logged with the alert."""

    async def close(self) -> None:  # noqa: B027  # most have nothing open
        """Close connections."""


class AlertCommand(AlertSink):
    """Runs a program for each alert, which it gets as JSON on its standard input.

    There is no shell, and the program does not get variables that may hold pushkit's secrets.
    Raises ConfigError: no such program.
    """

    name = "command"

    def __init__(self, command: Sequence[str]) -> None:
        self._command = find_program(command, setting="alerts: command")

    async def send(self, alert: Alert) -> None:
        """Run the program. Raises AlertFailedError: it did not start, or not end with 0 in time."""
        content = json.dumps(alert.document(), default=str).encode()
        try:
            status = await run_program(
                self._command,
                content,
                within=_COMMAND_WITHIN,
                environment=inherited_variables(),
            )
        except TimeoutError as exc:
            seconds = _COMMAND_WITHIN.total_seconds()
            raise AlertFailedError(f"command: did not end within {seconds:g} s") from exc
        except OSError as exc:
            raise AlertFailedError(f"command: {exc.strerror}") from exc
        if status != 0:
            raise AlertFailedError(f"command: ended with status {status}, expected 0")


class Alerts:
    """Sends alerts to every sink; each sink has a queue, so that none waits for another."""

    def __init__(
        self,
        options: AlertOptions,
        webhook: AlertSink | None,  # sends to the webhook that the options name, if they do
        *,
        look: Callable[[], Awaitable[Sequence[Event]]],  # returns the current faults, as events
        events: Listeners,  # to listen to, and to emit the faults that `look` returns
    ) -> None:
        self._logs = options.log
        self._bound = AlertBound(options.every)
        self._pause = options.look_every.total_seconds()
        self._look = look
        self._events = events
        self._faults = RepeatedLog(_log)
        command = AlertCommand(options.command) if options.command else None
        self._queues: list[tuple[AlertSink, asyncio.Queue[Alert]]] = [
            (sink, asyncio.Queue(_QUEUE_SIZE)) for sink in (command, webhook) if sink is not None
        ]
        self._running: list[asyncio.Task[None]] = []
        events.add(self.on_event)

    def on_event(self, event: Event) -> None:
        """Log an event, or queue it for the sinks, if it is an alert and within its rate."""
        found = alert_of(event)
        alert = None if found is None else self._bound.limit(found)
        if alert is None:
            return
        accepting = [each for each in self._queues if each[0].accepts(alert)]
        if self._logs or not accepting:
            more = f" (and {alert.more} more like it)" if alert.more else ""
            extra = {**alert.facts, "code": alert.code.value, "more": alert.more}
            _log.error("alert %s: %s%s", alert.code.value, alert.says, more, extra=extra)
        for sink, queue in accepting:
            try:
                queue.put_nowait(alert)
            except asyncio.QueueFull:
                _log.error("alert not sent by %s, %d wait: %s", sink.name, _QUEUE_SIZE, alert.says)

    def start(self) -> None:
        """Send alerts and check health until `stop`; does nothing if already started."""
        if not self._running:
            self._running = [
                asyncio.create_task(self._send_all(sink, queue), name=f"alerts-{sink.name}")
                for sink, queue in self._queues
            ]
            self._running.append(asyncio.create_task(self._watch(), name="alerts-watch"))

    async def stop(self) -> None:
        """Send the queued alerts for up to 5 seconds, log the others, and stop."""
        running, self._running = self._running, []
        if running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_SECONDS):
                    for _, queue in self._queues:
                        await queue.join()
        for task in running:
            await cancelled(task)
        stopped = self._queues
        # The next start may be in another event loop.
        self._queues = [(sink, asyncio.Queue(_QUEUE_SIZE)) for sink, _ in stopped]
        for sink, queue in stopped:
            await sink.close()
            while not queue.empty():
                _log_unsent(sink, queue.get_nowait())

    async def run_once(self) -> None:
        """Check health once, and emit the faults that were found."""
        for event in await self._look():
            self._events.emit(event)

    async def _watch(self) -> None:
        while True:
            try:
                await self.run_once()
            except Exception as exc:  # noqa: BLE001  # the top of a loop
                message = "alerts: could not check health"
                self._faults.log(type(exc).__name__, logging.ERROR, message, exc_info=exc)
            await asyncio.sleep(self._pause)

    async def _send_all(self, sink: AlertSink, queue: asyncio.Queue[Alert]) -> None:
        while True:
            alert = await queue.get()
            try:
                await sink.send(alert)
            except PushkitError as exc:
                _log.error("alert not sent by %s: %s; it says: %s", sink.name, exc, alert.says)
            except asyncio.CancelledError:
                _log_unsent(sink, alert)
                raise
            except Exception:  # noqa: BLE001  # one failure must not stop the other alerts
                _log.exception("alert not sent by %s; it says: %s", sink.name, alert.says)
            finally:
                queue.task_done()


def _log_unsent(sink: AlertSink, alert: Alert) -> None:
    _log.error("alert not sent by %s before the end; it says: %s", sink.name, alert.says)
