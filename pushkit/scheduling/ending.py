"""What loops and tasks do when they end."""

from __future__ import annotations

import asyncio

from pushkit.errors import ConfigError


def check_may_close(opened_in: asyncio.AbstractEventLoop) -> None:
    """Raise ConfigError in another event loop while this one runs: its tasks would not end."""
    if opened_in is not asyncio.get_running_loop() and opened_in.is_running():
        raise ConfigError(
            "close: opened in another event loop, which is running: close it there, from another"
            " thread with asyncio.run_coroutine_threadsafe()"
        )


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task until it ends: before Python 3.12, `wait_for` may swallow a cancellation."""
    if not task.cancelling():  # a second cancellation would interrupt its clean-up
        task.cancel()
    # A done one may belong to an event loop that is closed, where nothing can be waited for.
    while not task.done() and (await asyncio.wait([task], timeout=1))[1]:
        task.cancel()
