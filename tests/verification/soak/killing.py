"""What the kill scripts do alike: their processes and options, the database, and the report."""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pushkit.clock import utc_now
from pushkit.storage.database import Database
from pushkit.storage.migrations import Migration
from pushkit.storage.opening import open_location
from pushkit.storage.script import Script, count
from pushkit.terminal.databases import showing_progress
from tests.forked import forked

__all__ = ["Process", "Report", "count_unfinished", "options", "reading", "run", "write_report"]

_NOTHING = Migration(1, ())


class Report:
    """The counts of a run: a dataclass.

    Attributes:
        BROKEN: The counts that are 0 if every promise was kept.
    """

    BROKEN: ClassVar[tuple[str, ...]]

    @property
    def holds(self) -> bool:
        """Whether every promise was kept; the caller checks the time to resume."""
        return not any(getattr(self, name) for name in self.BROKEN)


class Killer(Protocol):
    """Runs processes, kills them, runs them again."""

    async def run(self, kills: int) -> Any:
        """Kill so many times in all, let the rest happen, and return a `Report`."""


def options(description: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser of options with these defaults: numbers, texts, and flags that are off."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name.replace('_', '-')}", action="store_true")
        else:
            kind = type(default) if default is not None else str
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    return parser


def run(description: str | None, make: Callable[..., Killer], **more: Any) -> int:
    """Run a kill script from the command line; return its exit status.

    Args:
        description: What it does.
        make: Makes what kills: of an empty folder, of `database`, `seed`, and `more`.
        more: The options beyond those that all have, with their defaults.
    """
    parser = options(description, kills=1000, seed=0, **more)
    parser.add_argument("--database", help="A SQLite file or a PostgreSQL DSN; must be empty.")
    given = vars(parser.parse_args())
    kills = given.pop("kills")
    with showing_progress(), tempfile.TemporaryDirectory(prefix="pushkit-crash-") as folder:
        report = asyncio.run(make(Path(folder), **given).run(kills))
    counts = asdict(report)
    for line in counts.pop("wrong", ()):
        print(line)
    return write_report(counts, holds=report.holds, seed=given["seed"])


def write_report(counts: Mapping[str, float], *, holds: bool, seed: int) -> int:
    """Print every number, and whether every promise was kept; return the exit status."""
    for name, value in counts.items():
        print(f"{name:24} {value:.2f}" if isinstance(value, float) else f"{name:24} {value}")
    print(f"{'every promise held' if holds else 'A PROMISE WAS BROKEN'} (seed {seed})")
    return 0 if holds else 1


class Process:
    """A process of a module that says lines, and is killed."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = (*forked(f"tests.verification.soak.{module}"), *arguments)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> str:
        """Start it; return its first line."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        async for line in self.lines():
            return line
        raise RuntimeError("a process ended before it was ready")

    async def lines(self) -> AsyncIterator[str]:
        """Yield what it says from now on, to its end; not what a kill cut off."""
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):
                yield line.decode().strip()

    async def kill(self) -> None:
        """Kill it."""
        assert self._process is not None
        if self._process.returncode is not None:
            raise RuntimeError(f"a process ended by itself, with {self._process.returncode}")
        self._process.send_signal(signal.SIGKILL)
        await self._process.wait()


@asynccontextmanager
async def reading(location: str) -> AsyncIterator[Database]:
    """Open the database of the processes, to read in it."""
    # Another component, without tables: it must not migrate what the processes migrate.
    database = open_location(location, component="soak", migrations=(_NOTHING,), clock=utc_now)
    await database.open()
    yield database
    await database.close()


def count_unfinished() -> Script[int]:
    """Return how many deliveries wait."""
    return (yield from count("pushkit_deliveries WHERE state = 'pending'"))
