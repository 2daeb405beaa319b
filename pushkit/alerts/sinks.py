"""`AlertSink`, and the two sinks without a network or an outbox: the log and a command."""

from __future__ import annotations

import json
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar, Final

from pushkit.alerts.rule import Alert
from pushkit.errors import AlertFailedError
from pushkit.programs import find_program, run_program

_log = logging.getLogger("pushkit.alerts")

_COMMAND_WITHIN: Final = timedelta(seconds=30)
_SECRET_PREFIXES: Final = ("PUSHKIT_", "RECEIVER_")  # of variables that may hold secrets


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


def log_alert(alert: Alert) -> None:
    """Write an alert to the log, as an error of `pushkit.alerts`."""
    more = f" (and {alert.more} more like it)" if alert.more else ""
    extra = {**alert.facts, "code": alert.code.value, "more": alert.more}
    _log.error("alert %s: %s%s", alert.code.value, alert.says, more, extra=extra)


class AlertLog(AlertSink):
    """Writes alerts to the log, as errors of `pushkit.alerts`."""

    name = "log"

    async def send(self, alert: Alert) -> None:
        """Write a line."""
        log_alert(alert)


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
        variables = {k: v for k, v in os.environ.items() if not k.startswith(_SECRET_PREFIXES)}
        content = json.dumps(alert.document(), default=str).encode()
        try:
            status = await run_program(
                self._command, content, within=_COMMAND_WITHIN, environment=variables
            )
        except TimeoutError as exc:
            seconds = _COMMAND_WITHIN.total_seconds()
            raise AlertFailedError(f"command: did not end within {seconds:g} s") from exc
        except OSError as exc:
            raise AlertFailedError(f"command: {exc.strerror}") from exc
        if status != 0:
            raise AlertFailedError(f"command: ended with status {status}, expected 0")
