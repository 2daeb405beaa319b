"""Housekeeping: deletes rows whose retention is over, in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from pushkit.errors import StorageError
from pushkit.logs import RepeatedLog

_INTERVAL: Final = timedelta(minutes=10)


async def housekeep(
    store: str,  # the name of the store, for the log: `outbox`, `inbox`
    retain: Callable[[], Awaitable[int]],  # deletes those rows, and returns how many
    *,
    log: logging.Logger,
) -> None:
    """Delete old rows at intervals until cancelled, also while other processes do so.

    Errors are logged, and do not end the loop.
    """
    faults = RepeatedLog(log)
    while True:
        try:
            if deleted := await retain():
                log.info("housekeeping: %d finished, deleted from the %s", deleted, store)
        except StorageError as exc:
            text = "housekeeping: the %s is out of reach: %s; trying again later"
            faults.log(type(exc.__cause__).__name__, logging.ERROR, text, store, exc)
        except Exception as exc:  # noqa: BLE001  # the top of a worker loop
            text = "housekeeping: failed unexpectedly; trying again later"
            faults.log(type(exc).__name__, logging.ERROR, text, exc_info=exc)
        await asyncio.sleep(_INTERVAL.total_seconds())
