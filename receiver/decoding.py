"""Large bodies are decoded one at a time: all else that is ready in the loop runs between."""

from __future__ import annotations

import asyncio
from typing import Final

from pushkit.scheduling.event_loop import LoopLock

LARGE_BODY: Final = 16 * 1024
"""Bytes. Decoding a larger body takes milliseconds, and up to thirty times its memory."""


async def turn_to_decode(decoding: LoopLock) -> None:
    """Wait for the turn of a large body: all else that is ready in the loop runs between."""
    async with decoding.here:
        await asyncio.sleep(0)
