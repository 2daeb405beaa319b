"""Programs that get bytes on their standard input."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from pushkit.programs import run_program
from tests.eventually import PATIENT


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
