"""Plays many seeds in forked processes, several at once.

A process plays one part and ends. Its garbage collector is off, and nothing is cleaned up: both
would run the `finally` blocks of killed programs.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import NoReturn

__all__ = ["Part", "Played", "parts_of", "play_parts", "run_in_fork"]

_PART = 50  # seeds: a process grows by some megabytes with each
_PATIENCE = 180.0  # seconds of CPU that a seed may take, with its shrinking


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of one seed."""

    seed: int
    violations: Sequence[str]  # the broken promises
    simulated: float = 0.0  # seconds of virtual time
    # How often each change of state happened (see `coverage`).
    moves: dict[str, int] = field(default_factory=dict)
    report: str = ""  # a text to print, if it failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The results of consecutive seeds."""

    seeds: range
    played: tuple[Played, ...]  # the result of each
    cpu: float  # seconds of CPU


@dataclass(slots=True)
class _Child:
    pid: int
    seeds: range
    said: bytes = b""


def parts_of(seeds: Iterable[int]) -> list[range]:
    """Split seeds into consecutive parts, each for one process."""
    parts = []
    for _, group in itertools.groupby(enumerate(sorted(seeds)), lambda each: each[1] - each[0]):
        row = [seed for _, seed in group]
        parts += [
            range(at, min(at + _PART, row[-1] + 1)) for at in range(row[0], row[-1] + 1, _PART)
        ]
    return parts


def play_parts(
    parts: Iterable[range], play: Callable[[int], Played], *, jobs: int
) -> Iterator[Part]:
    """Play parts in up to `jobs` processes at once; yield each result when it is done."""
    waiting = deque(parts)
    running: dict[int, _Child] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                reader, child = _start(waiting.popleft(), play)
                running[reader] = child
            for reader in select.select(list(running), [], [])[0]:
                said = os.read(reader, 65_536)
                running[reader].said += said
                if not said:
                    child = running.pop(reader)
                    os.close(reader)
                    part = _end(child)
                    if part.seeds != child.seeds:
                        waiting.appendleft(range(part.seeds.stop, child.seeds.stop))
                    yield part
    finally:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


def run_in_fork(question: Callable[[], bool]) -> bool:
    """Return the answer to a question that a forked process computes, which frees its memory."""
    pid = os.fork()
    if not pid:
        os._exit(int(question()))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def _start(seeds: range, play: Callable[[int], Played]) -> tuple[int, _Child]:
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        _play_in_child(seeds, play, writer)
    os.close(writer)
    return reader, _Child(pid, seeds)


def _play_in_child(seeds: range, play: Callable[[int], Played], writer: int) -> NoReturn:
    try:
        with os.fdopen(writer, "w") as pipe:
            for seed in seeds:
                signal.setitimer(
                    signal.ITIMER_PROF, _PATIENCE
                )  # its signal ends a process that hangs
                print(json.dumps(asdict(play(seed))), file=pipe, flush=True)
    except BaseException:  # noqa: BLE001  # the parent sees that a seed is missing
        traceback.print_exc()
    os._exit(0)


def _end(child: _Child) -> Part:
    """Return the results of an ended process; if it died, the last is the seed it died in."""
    _, status, usage = os.wait4(child.pid, 0)
    played = [Played(**json.loads(line)) for line in child.said.splitlines()]
    if len(played) < len(child.seeds):
        seed = child.seeds[len(played)]
        died = f"the process that played it ended: {os.waitstatus_to_exitcode(status)}"
        played.append(Played(seed=seed, violations=[died], report=f"seed {seed}: {died}"))
    return Part(
        seeds=child.seeds[: len(played)],
        played=tuple(played),
        cpu=usage.ru_utime + usage.ru_stime,
    )
