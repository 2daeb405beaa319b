"""Replaces the process's sources of random numbers, time and sockets by seeded ones.

They are replaced before the code under test is imported, in a process that only simulates.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import socket
import ssl
import sys
import time
from collections.abc import Callable

__all__ = ["Surroundings", "take_over"]


class Surroundings:
    """The replaced sources, which each world resets."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self.now: Callable[[], float] = lambda: 0.0

    def begin(self, seed: int, now: Callable[[], float]) -> None:
        """Reset random numbers and time for a world."""
        self._random = random.Random(f"machine {seed}")
        random.seed(f"process {seed}")
        self.now = now

    def urandom(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def time(self) -> float:
        return self.now()

    def epoch(self) -> float:
        return 1_767_225_600.0 + self.now()  # 2026-01-01


def take_over() -> Surroundings:
    """Replace the sources. Call it before anything of pushkit or aiohttp is imported.

    Raises:
        RuntimeError: They are imported already, or `PYTHONHASHSEED` is not 0.
    """
    if "pushkit" in sys.modules or "aiohttp" in sys.modules:
        raise RuntimeError(
            "simulate in a process of its own: python -m tests.verification.simulation"
        )
    if os.environ.get("PYTHONHASHSEED") != "0":
        raise RuntimeError("expected PYTHONHASHSEED=0: sets of strings have one order then")
    surroundings = Surroundings()
    gc.disable()  # what it finds it ends, at a moment that depends on what was played before
    os.urandom = surroundings.urandom
    random._urandom = surroundings.urandom  # type: ignore[attr-defined]
    time.monotonic = surroundings.time
    time.perf_counter = surroundings.time
    time.clock_gettime = lambda _: surroundings.time()  # it counts sleep; no clock does here
    time.time = surroundings.epoch
    from tests.verification.simulation import network

    # Unused here, and slow: threads and sources of log records, asyncio's sets of all tasks.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    for name in ("_all_tasks", "_scheduled_tasks"):  # the name depends on the version of Python
        if (tasks := getattr(asyncio.tasks, name, None)) is not None:
            tasks.add = lambda _: None
    # Loading the system's root certificates takes longer than a whole scenario.
    context = ssl.create_default_context()
    ssl.create_default_context = lambda *_, **__: context
    socket.socket = network.SimulatedSocket  # type: ignore[assignment,misc]
    return surroundings
