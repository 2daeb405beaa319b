"""Programs that get bytes on their standard input."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pushkit.programs import inherited_variables, run_program
from pushkit.telemetry.together import DIRECTORY
from tests.eventually import DEADLINE, PATIENT, eventually

LEAVES_A_CHILD = """
import os, pathlib, sys, time
if os.fork() == 0:
    os.setsid()
    pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_program_that_ends_without_reading_is_judged_by_its_status(
    new_event_loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = asyncio.create_subprocess_exec

    async def start_and_end(*command: str, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_and_end)
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        status = runner.run(run_program(command, b"unread", within=PATIENT))

    assert status == 3


def test_a_program_leaves_no_counters_among_those_of_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    counting = "import prometheus_client; prometheus_client.Counter('jobs', 'Jobs').inc()"
    command = [sys.executable, "-c", counting]

    run = run_program(command, b"", within=PATIENT, environment=inherited_variables())
    assert asyncio.run(run) == 0
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("new_event_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_program_is_given_up_although_a_child_in_another_group_holds_its_standard_input(
    new_event_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    command = [sys.executable, "-c", LEAVES_A_CHILD, str(pid)]

    async def run() -> None:
        await run_program([sys.executable, "-c", ""], b"", within=PATIENT)  # the loop opens files
        files = open_files()
        async with asyncio.timeout(DEADLINE):
            with pytest.raises(TimeoutError):
                await run_program(command, bytes(1024 * 1024), within=timedelta(seconds=1))

        await eventually(lambda: open_files() == files)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(asyncio.sleep(0))
        try:
            runner.run(run())
        finally:
            os.kill(int(pid.read_text()), signal.SIGKILL)
