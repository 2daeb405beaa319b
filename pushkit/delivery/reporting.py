"""Who hears of what `notify()` and `subscribe()` came to: the log, `on_event`, and counters."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pushkit.a2a import AnyUpdate
from pushkit.delivery.events import EventKind, SenderEvent, tell
from pushkit.delivery.notify_result import NotifyResult
from pushkit.logs import RepeatedLog
from pushkit.subscriptions import Subscription

__all__ = ["NotifyCounts", "Reports"]

_log: Final = logging.getLogger("pushkit.delivery")


@dataclass(slots=True, kw_only=True)
class NotifyCounts:
    """What `notify()` did in this process; it only counts up.

    Attributes:
        updates: Updates that were taken, whatever became of them.
        deliveries: Deliveries that they became; of a repeated update, once more.
        refused: Recipients for which an update was not stored.
        for_nobody: Updates without a recipient.
    """

    updates: int = 0
    deliveries: int = 0
    refused: int = 0
    for_nobody: int = 0


class Reports:
    """Reports what updates and registrations came to.

    Args:
        on_event: Hears of every recipient that was refused.
    """

    def __init__(self, on_event: Callable[[SenderEvent], None] | None) -> None:
        self.counts = NotifyCounts()
        self._on_event = on_event
        self._repeated = RepeatedLog(_log)

    def report_replaced(self, before: Subscription, now: Subscription) -> None:
        """Warn of a subscription that took the place of another one."""
        differences = {
            "URL": before.config.url != now.config.url,
            "version": before.version is not now.version,
            "filter": before.wanted != now.wanted,
        }
        changed = [name for name, differs in differences.items() if differs]
        if changed:
            self._repeated.say(
                ("replaced", now.key.owner),
                logging.WARNING,
                "task %r: owner %r registered config %r again with another %s, which replaced it:"
                " for both, give each an id of its own; without one it is the task's",
                now.key.task_id,
                now.key.owner,
                now.key.config_id,
                " and ".join(changed),
            )

    def report(self, update: AnyUpdate, tenant: str, result: NotifyResult) -> None:
        """Report one update."""
        task_id = update.task_id or ""
        counts = self.counts
        counts.updates += 1
        counts.deliveries += len(result.deliveries)
        counts.refused += len(result.refused)
        if result.for_nobody:
            counts.for_nobody += 1
            _log.debug(
                "task %r: %s for nobody: %d subscriptions do not want it",
                task_id,
                update.kind.value,
                result.unwanted,
            )
        for each in result.refused:
            self._repeated.say(
                (each.code, each.owner),
                logging.WARNING,
                "task %r: %s not stored for config %r of owner %r (%s): %s",
                task_id,
                update.kind.value,
                each.config_id,
                each.owner,
                each.code,
                each.message,
            )
            event = SenderEvent(
                kind=EventKind.RECIPIENT_REFUSED,
                at=result.at,
                tenant=tenant,
                owner=each.owner,
                task_id=task_id,
                subscription_id=each.subscription_id,
                delivery_id=None,
                origin=each.origin,
                error=each.code,
            )
            tell(self._on_event, [event])
