"""Forwarding to a command's standard input."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from pushkit.programs import find_program, run_program
from receiver.forwards.forward import ForwardFailedError, encoded, facts_of
from receiver.inbox.model import Notification

_TIMEOUT = timedelta(seconds=30)


class CommandForward:
    """Runs a command for each notification, its body on standard input; exit status 0 has taken it.

    There is no shell. What was verified stands in the environment as `NOTIFICATION_TASK_ID` and so
    on; the receiver's own `RECEIVER_*` variables, which may hold tokens, do not.

    Args:
        command: The program and its arguments.
        timeout: Then it is killed, with what it started.
        folder: Where it runs.

    Raises:
        ConfigError: There is no such program.
    """

    def __init__(
        self, command: Sequence[str], *, timeout: timedelta = _TIMEOUT, folder: Path | None = None
    ) -> None:
        self._command = find_program(command, setting="forward: command", folder=folder)
        self._timeout = timeout
        self._folder = folder
        self.name: str = f"forward:{command[0]}"

    async def send(self, notification: Notification) -> None:
        """Run it once.

        Raises:
            ForwardFailedError: It did not start, did not end in time, or not with 0.
        """
        try:
            status = await run_program(
                self._command,
                notification.body,
                within=self._timeout,
                environment=_environment(notification),
                folder=self._folder,
            )
        except TimeoutError as exc:
            seconds = self._timeout.total_seconds()
            raise ForwardFailedError(f"{self.name}: did not end within {seconds:g} s") from exc
        except OSError as exc:
            raise ForwardFailedError(f"{self.name}: {exc.strerror}") from exc
        if status != 0:
            raise ForwardFailedError(f"{self.name}: ended with status {status}, expected 0")

    async def close(self) -> None:
        """Hold nothing open."""


def _environment(notification: Notification) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RECEIVER_")}
    facts = {"idempotency-key": encoded(notification.idempotency_key), **facts_of(notification)}
    return inherited | {
        f"NOTIFICATION_{name.replace('-', '_').upper()}": fact for name, fact in facts.items()
    }
