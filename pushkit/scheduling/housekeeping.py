"""Housekeeping: deletes rows whose retention is over, in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from pushkit.errors import StorageError
from pushkit.logs import RepeatedLog

_INTERVAL = timedelta(minutes=10)


class Housekeeper:
    """Deletes old rows at intervals. Several housekeepers may run at once, in other processes."""

    def __init__(
        self,
        store: str,  # the name of the store, for the log: `outbox`, `inbox`
        # Deletes the rows whose retention is over, and returns how many.
        retain: Callable[[], Awaitable[int]],
        *,
        log: logging.Logger,
        interval: timedelta = _INTERVAL,  # how long to pause in between
    ) -> None:
        self._store = store
        self._retain = retain
        self._log = log
        self._faults = RepeatedLog(log)
        self._interval = interval

    async def run(self) -> None:
        """Delete old rows until cancelled; errors are logged, and do not end the loop."""
        while True:
            try:
                await self.run_once()
            except StorageError as exc:
                text = "housekeeping: the %s is out of reach: %s; trying again later"
                self._faults.log(
                    type(exc.__cause__).__name__, logging.ERROR, text, self._store, exc
                )
            except Exception as exc:  # noqa: BLE001  # the top of a worker loop
                text = "housekeeping: failed unexpectedly; trying again later"
                self._faults.log(type(exc).__name__, logging.ERROR, text, exc_info=exc)
            await asyncio.sleep(self._interval.total_seconds())

    async def run_once(self) -> int:
        """Delete old rows once; return how many."""
        deleted = await self._retain()
        if deleted:
            self._log.info("housekeeping: %d finished, deleted from the %s", deleted, self._store)
        return deleted
