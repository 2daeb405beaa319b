"""The clock that the deadlines of some tests go by."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from tests.stalls import stalls_not_counted


async def test_what_comes_after_a_stall_is_in_time() -> None:
    came = asyncio.Event()

    async def come() -> None:
        await asyncio.sleep(0.05)
        time.sleep(1)  # noqa: ASYNC251  # this process stands still
        await asyncio.sleep(0.05)
        came.set()

    with stalls_not_counted(asyncio.get_running_loop()):
        coming = asyncio.create_task(come())
        async with asyncio.timeout(0.5):
            await came.wait()
    await coming


async def test_what_never_comes_ends_at_the_deadline() -> None:
    begun = time.monotonic()
    with stalls_not_counted(asyncio.get_running_loop()):
        try:
            async with asyncio.timeout(0.5):
                await asyncio.Event().wait()
        except TimeoutError:
            waited = timedelta(seconds=time.monotonic() - begun)
    assert waited >= timedelta(seconds=0.5)
