"""Plays seeds in processes of their own: a simulated world replaces time, chance and sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_a_hundred_seeds_keep_every_promise() -> None:
    played = simulate("--count", "100")

    assert played.returncode == 0, played.stdout + played.stderr
    assert "100 seeds from 0: 0 failed" in played.stdout


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    first, second = (simulate("--count", "12", "--digest").stdout for _ in range(2))

    digests = [line for line in first.splitlines() if len(line.split()) == 2]
    assert len(digests) == 12
    assert digests == [line for line in second.splitlines() if len(line.split()) == 2]


def test_what_seeds_found_once_does_not_come_back() -> None:
    played = simulate("--kept")

    assert played.returncode == 0, played.stdout + played.stderr
