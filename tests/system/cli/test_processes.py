"""Several processes of one service: how they end, and when one that died is started again."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from pushkit.terminal.processes import Supervisor, next_pause, run_service_loop, until_stopped

SECOND = timedelta(seconds=1)


def be_interrupted_at_once(ended: Path) -> None:
    """Run as a process of a service that Ctrl-C ends while it starts."""
    os.kill(os.getpid(), signal.SIGINT)

    async def serve() -> None:
        with until_stopped() as stop:
            await stop.wait()

    run_service_loop(serve())
    ended.touch()


@pytest.mark.slow
def test_ctrl_c_ends_a_process_that_starts_as_it_ends_one_that_runs(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    supervisor = Supervisor(
        target=be_interrupted_at_once, arguments=[ended], count=1, name="test", deadline=SECOND
    )

    supervisor.run()

    assert ended.exists()


def test_one_that_keeps_dying_is_started_again_at_growing_intervals() -> None:
    pauses = [SECOND]
    while len(pauses) < 7:
        pauses.append(next_pause(pauses[-1], SECOND / 2, first=SECOND))

    assert [pause / SECOND for pause in pauses] == [1, 2, 4, 8, 16, 30, 30]


def test_one_that_lived_for_long_is_started_again_soon() -> None:
    assert next_pause(30 * SECOND, 30 * SECOND, first=SECOND) == SECOND
