"""Waiting for what another task, thread or process brings about: by looking, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar, overload

__all__ = ["DEADLINE", "PATIENT", "eventually", "eventually_sync"]

# Seconds after which what is awaited will not come: none that a busy machine, or one that stood
# still for a while, needs.
DEADLINE = 120.0
PATIENT = timedelta(seconds=DEADLINE)
_PAUSE = 0.02

Found = TypeVar("Found")


@overload
async def eventually(look: Callable[[], Awaitable[Found]], *, within: float = ...) -> Found: ...
@overload
async def eventually(look: Callable[[], Found], *, within: float = ...) -> Found: ...
async def eventually(look: Callable[[], object], *, within: float = DEADLINE) -> object:
    """Return the first thing that is found and is not false; looks for so many seconds."""
    async with asyncio.timeout(within):
        while True:
            found = look()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return found
            await asyncio.sleep(_PAUSE)


def eventually_sync(look: Callable[[], Found]) -> Found:
    """Return the first thing that is found and is not false, in a test without an event loop."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(_PAUSE)
    raise TimeoutError
