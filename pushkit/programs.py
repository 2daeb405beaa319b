"""Programs that an operator configures, run without a shell and killed with their children.

And variables of the environment that hold secrets: a program does not inherit those.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from pushkit.errors import ConfigError

_SECRET_PREFIXES: Final = ("PUSHKIT_", "RECEIVER_")  # of variables
# For this process alone: another program would leave its counters among those of the service, and
# tell the service manager that it is ready.
_OWN: Final = ("PROMETHEUS_MULTIPROC_DIR", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")


def find_program(command: Sequence[str], *, setting: str, folder: Path | None = None) -> list[str]:
    """Return a command with the full path of its program.

    Args:
        setting: The setting's name, for errors.
        folder: The folder that a relative path starts from.

    Raises:
        ConfigError: There is no such program.
    """
    if not command or not command[0]:
        raise ConfigError(f"{setting}: expected a program and its arguments")
    program = str(folder / command[0]) if folder and "/" in command[0] else command[0]
    found = shutil.which(program)
    if found is None:
        raise ConfigError(f"{setting}: {command[0]}: no such program")
    return [found, *command[1:]]


def inherited_variables() -> dict[str, str]:
    """Return this process's variables for a program, without secrets and what is its own."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _OWN and not name.startswith(_SECRET_PREFIXES)
    }


def secret_variable(name: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of a variable, None if it is not set.

    Raises:
        ConfigError: The variable is empty: a secret was meant to be there. To continue without it
            would store secrets in plain text, or let strangers in.
    """
    value = environment.get(name)
    if value == "":
        raise ConfigError(
            f"{name}: found an empty value, expected a secret; unset it if there is none"
        )
    return value


async def run_program(
    command: Sequence[str],
    standard_input: bytes,
    *,
    within: timedelta,  # after this, the program and its children are killed
    environment: Mapping[str, str] | None = None,  # its variables; this process's if None
    folder: Path | None = None,  # its working directory
) -> int:
    """Run a program with bytes on its standard input, and return its exit status.

    Raises:
        OSError: It did not start.
        TimeoutError: It did not end in time.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            env=environment,
            cwd=folder,
            start_new_session=True,  # one process group, to be killed as a whole
        )
    )
    try:
        await asyncio.wait([starting])
    except asyncio.CancelledError:
        # asyncio would kill the program alone, and leave its children running.
        await _end(await starting)
        raise
    process = starting.result()
    try:
        async with asyncio.timeout(within.total_seconds()):
            # uvloop's error for a program that did not read all of its standard input.
            with contextlib.suppress(RuntimeError):
                await process.communicate(standard_input)
            await process.wait()
    finally:
        await _end(process)
    status = process.returncode
    assert status is not None  # noqa: S101  # it has ended
    return status


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    # A child in a group of its own may hold the other end; asyncio's `wait()` waits for it, too.
    stdin = process.stdin
    if stdin is not None and (not stdin.is_closing() or stdin.transport.get_write_buffer_size()):
        stdin.transport.abort()
    await process.wait()
