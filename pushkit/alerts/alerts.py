"""`Alerts`: hears of everything, looks after the rest, and sends what is an alert."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from pushkit.alerts.rule import Alert, AlertBound, alert_of
from pushkit.alerts.sinks import AlertCommand, AlertLog, AlertSink, log_alert
from pushkit.arguments import check_list
from pushkit.errors import ConfigError, PushkitError
from pushkit.events.listeners import Listeners
from pushkit.events.model import Event
from pushkit.logs import RepeatedLog
from pushkit.scheduling.pump import cancelled

_log = logging.getLogger("pushkit.alerts")

_WAITING: Final = 1000
_LAST_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertOptions:
    """Where alerts go: dead letters, disabled subscriptions, faults of this side, keys, callbacks.

    Attributes:
        log: Into the log, as errors of the logger `pushkit.alerts`.
        command: A program and its arguments, which gets each as JSON on its standard input.
        webhook: A URL that gets each as a signed message: of a sender through its own outbox, of a
            receiver by itself, with `webhook_secret`. Faults of the database or of the outbox do
            not go there, but into the log, if there is no command.
        webhook_token: The A2A token that a sender's webhook expects, if it expects one.
        webhook_secret: What a receiver, which has neither outbox nor key, signs with: a secret of
            Standard Webhooks, `whsec_…`.
        every: The same alert is sent once in this time; then it says how many more there were.
        look_every: How often to look whether all is well, and whether a key is near its end.

    Raises:
        ConfigError: They go nowhere, there is no such program, or a time is not more than 0.
    """

    log: bool = False
    command: Sequence[str] = ()
    webhook: str | None = field(default=None, repr=False)
    webhook_token: str | None = field(default=None, repr=False)
    webhook_secret: str | None = field(default=None, repr=False)
    every: timedelta = timedelta(hours=1)
    look_every: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        if not (self.log or self.command or self.webhook):
            raise ConfigError("alerts: expected log, command or webhook: nobody would get them")
        check_list("alerts: command", self.command, shown=False)
        for name in ("every", "look_every"):
            if getattr(self, name) <= timedelta(0):
                found = getattr(self, name)
                raise ConfigError(f"alerts: {name}: found {found}, expected more than 0 s")

    def sinks(self) -> list[AlertSink]:
        """Return where they go, the webhook aside."""
        found: list[AlertSink] = [AlertLog()] if self.log else []
        return [*found, AlertCommand(self.command)] if self.command else found


class Alerts:
    """Sends what is an alert to every sink; each has a queue, so that none waits for another."""

    def __init__(
        self,
        options: AlertOptions,  # how often
        sinks: Sequence[AlertSink],  # where to
        *,
        # Returns what is wrong just now, as events.
        look: Callable[[], Awaitable[Sequence[Event]]],
        events: Listeners,  # whom to hear, and whom to tell of what was looked for
    ) -> None:
        self._bound = AlertBound(options.every)
        self._pause = options.look_every.total_seconds()
        self._look = look
        self._events = events
        self._faults = RepeatedLog(_log)
        self._queues: list[tuple[AlertSink, asyncio.Queue[Alert]]] = [
            (sink, asyncio.Queue(_WAITING)) for sink in sinks
        ]
        self._running: list[asyncio.Task[None]] = []
        events.add(self.hear)

    def hear(self, event: Event) -> None:
        """Queue an event for every sink, if it is an alert and not one too many."""
        found = alert_of(event)
        alert = None if found is None else self._bound.admit(found)
        if alert is None:
            return
        takers = [each for each in self._queues if each[0].takes(alert)]
        if self._queues and not takers:
            log_alert(alert)
        for sink, queue in takers:
            try:
                queue.put_nowait(alert)
            except asyncio.QueueFull:
                _log.error("alert not sent by %s, %d wait: %s", sink.name, _WAITING, alert.says)

    def start(self) -> None:
        """Send, and look, until `stop`. Does nothing if it does already."""
        if not self._running:
            self._running = [
                asyncio.create_task(self._send_all(sink, queue), name=f"alerts-{sink.name}")
                for sink, queue in self._queues
            ]
            self._running.append(asyncio.create_task(self._watch(), name="alerts-watch"))

    async def stop(self) -> None:
        """Send what waits, for a few seconds, and end."""
        running, self._running = self._running, []
        if running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SECONDS):
                    for _, queue in self._queues:
                        await queue.join()
        for task in running:
            await cancelled(task)
        ended = self._queues
        # The next start may be in another event loop.
        self._queues = [(sink, asyncio.Queue(_WAITING)) for sink, _ in ended]
        for sink, queue in ended:
            await sink.close()
            while not queue.empty():
                _say_stopped(sink, queue.get_nowait())

    async def run_once(self) -> None:
        """Look once, and tell what was found."""
        for event in await self._look():
            self._events.emit(event)

    async def _watch(self) -> None:
        while True:
            try:
                await self.run_once()
            except Exception as exc:  # noqa: BLE001  # the top of a loop
                said = "alerts: could not look whether all is well"
                self._faults.say(type(exc).__name__, logging.ERROR, said, exc_info=exc)
            await asyncio.sleep(self._pause)

    async def _send_all(self, sink: AlertSink, queue: asyncio.Queue[Alert]) -> None:
        while True:
            alert = await queue.get()
            try:
                await sink.send(alert)
            except PushkitError as exc:
                _log.error("alert not sent by %s: %s; it says: %s", sink.name, exc, alert.says)
            except asyncio.CancelledError:
                _say_stopped(sink, alert)
                raise
            except Exception:  # noqa: BLE001  # one that fails stops none of the others
                _log.exception("alert not sent by %s; it says: %s", sink.name, alert.says)
            finally:
                queue.task_done()


def _say_stopped(sink: AlertSink, alert: Alert) -> None:
    _log.error("alert not sent by %s before the end; it says: %s", sink.name, alert.says)
