"""Forwarding to a command's standard input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from pushkit.errors import ConfigError
from receiver.forwards.forward import ForwardFailedError, encoded, facts_of
from receiver.inbox import Notification

__all__ = ["CommandForward"]

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
        if not command or not command[0]:
            raise ConfigError("forward: command: expected a program and its arguments")
        program = str(folder / command[0]) if folder and "/" in command[0] else command[0]
        found = shutil.which(program)
        if found is None:
            raise ConfigError(f"forward: command: {command[0]}: no such program")
        self._command = [found, *command[1:]]
        self._timeout = timeout
        self._folder = folder
        self.name: str = f"forward:{command[0]}"

    async def send(self, notification: Notification) -> None:
        """Run it once.

        Raises:
            ForwardFailedError: It did not start, did not end in time, or not with 0.
        """
        try:
            process = await self._start(notification)
        except OSError as exc:
            raise ForwardFailedError(f"{self.name}: {exc.strerror}") from exc
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                await process.communicate(notification.body)
        except TimeoutError as exc:
            seconds = self._timeout.total_seconds()
            raise ForwardFailedError(f"{self.name}: did not end within {seconds:g} s") from exc
        finally:
            await _end(process)
        if process.returncode != 0:
            raise ForwardFailedError(
                f"{self.name}: ended with status {process.returncode}, expected 0"
            )

    async def close(self) -> None:
        """Hold nothing open."""

    async def _start(self, notification: Notification) -> asyncio.subprocess.Process:
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                env=_environment(notification),
                cwd=self._folder,
                start_new_session=True,  # one group, to be killed as a whole
            )
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # asyncio would kill the command alone, and leave what that has started.
            await _end(await starting)
            raise


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _environment(notification: Notification) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RECEIVER_")}
    facts = {"idempotency-key": encoded(notification.idempotency_key), **facts_of(notification)}
    return inherited | {
        f"NOTIFICATION_{name.replace('-', '_').upper()}": fact for name, fact in facts.items()
    }
