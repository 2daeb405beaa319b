"""Housekeeping: what has been finished for long goes, beside the traffic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta

from pushkit.errors import StorageError
from pushkit.logs import RepeatedLog

_INTERVAL = timedelta(minutes=10)


class Housekeeper:
    """Deletes what may go, again and again. Several at once, in other processes, do no harm."""

    def __init__(
        self,
        store: str,  # what is kept, for the log: `outbox`, `inbox`
        # Deletes what a retention does not keep, and returns how many that was.
        retain: Callable[[], Awaitable[int]],
        *,
        log: logging.Logger,
        interval: timedelta = _INTERVAL,  # how long to rest in between
    ) -> None:
        self._store = store
        self._retain = retain
        self._log = log
        self._faults = RepeatedLog(log)
        self._interval = interval

    async def run(self) -> None:
        """Keep house until cancelled; a fault is logged and outlived."""
        while True:
            try:
                await self.run_once()
            except StorageError as exc:
                said = "housekeeping: the %s is out of reach: %s; trying again later"
                self._faults.say(
                    type(exc.__cause__).__name__, logging.ERROR, said, self._store, exc
                )
            except Exception as exc:  # noqa: BLE001  # the top of a worker loop
                said = "housekeeping: failed unexpectedly; trying again later"
                self._faults.say(type(exc).__name__, logging.ERROR, said, exc_info=exc)
            await asyncio.sleep(self._interval.total_seconds())

    async def run_once(self) -> int:
        """Delete what may go; return how many that was."""
        purged = await self._retain()
        if purged:
            self._log.info("housekeeping: %d finished, deleted from the %s", purged, self._store)
        return purged
