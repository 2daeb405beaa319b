"""Housekeeping: what has been finished for long goes, beside the traffic."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from pushkit.delivery.admin import OutboxAdmin
from pushkit.errors import StorageError
from pushkit.outbox import Retention

__all__ = ["Housekeeper"]

_log = logging.getLogger("pushkit.delivery")

_INTERVAL = timedelta(minutes=10)


class Housekeeper:
    """Applies a retention, again and again. Several at once, in other processes, do no harm.

    Args:
        admin: The outbox.
        retention: What stays.
        interval: How long to rest in between.
    """

    def __init__(
        self, admin: OutboxAdmin, retention: Retention, *, interval: timedelta = _INTERVAL
    ) -> None:
        self._admin = admin
        self._retention = retention
        self._interval = interval

    async def run(self) -> None:
        """Keep house until cancelled; a fault is logged and outlived."""
        while True:
            try:
                await self.run_once()
            except StorageError:
                _log.exception("housekeeping: the outbox is out of reach; trying again later")
            except Exception:  # noqa: BLE001  # the top of a worker loop
                _log.exception("housekeeping: failed unexpectedly; trying again later")
            await asyncio.sleep(self._interval.total_seconds())

    async def run_once(self) -> int:
        """Delete what may go; return how many deliveries that was."""
        purged = await self._admin.retain(self._retention)
        if purged:
            _log.info("housekeeping: %d finished deliveries are deleted", purged)
        return purged
