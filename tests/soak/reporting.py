"""Shared by the soaks: waiting for other processes, and printing a report."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Protocol

__all__ = ["Report", "until", "utc_now", "write_report"]


class Report(Protocol):
    """A dataclass of numbers."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def holds(self) -> bool:
        """Whether every promise was kept."""
        ...


def write_report(report: Report, *, seed: int) -> int:
    """Print every number and the verdict; return the exit status."""
    for entry in fields(report):
        value = getattr(report, entry.name)
        text = f"{value:.2f}" if isinstance(value, float) else str(value)
        sys.stdout.write(f"{entry.name:24} {text}\n")
    held = "every promise held" if report.holds else "A PROMISE WAS BROKEN"
    sys.stdout.write(f"{held} (seed {seed})\n")
    return 0 if report.holds else 1


async def until(condition: Callable[[], bool], *, seconds: float) -> None:
    """Wait for what another process brings about."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # another process's doing
            await asyncio.sleep(0.01)


def utc_now() -> datetime:
    """Return now."""
    return datetime.now(UTC)
