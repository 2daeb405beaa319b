"""Who hears of what `notify()` and `subscribe()` came to: the log, listeners, and counters."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pushkit.a2a import AnyUpdate
from pushkit.delivery.notify_result import NotifyResult
from pushkit.events.listeners import Listeners
from pushkit.events.sender import (
    Enqueued,
    RecipientRefused,
    SubscriptionChange,
    SubscriptionChanged,
)
from pushkit.logs import RepeatedLog
from pushkit.subscriptions.model import Subscription

_log: Final = logging.getLogger("pushkit.delivery")


@dataclass(slots=True, kw_only=True)
class NotifyCounts:
    """What `notify()` did in this process; it only counts up."""

    updates: int = 0  # updates that were taken, whatever became of them
    deliveries: int = 0  # deliveries that they became; of a repeated update, once more
    refused: int = 0  # recipients for which an update was not stored
    for_nobody: int = 0  # updates without a recipient


class Reports:
    """Reports what updates and registrations came to."""

    def __init__(self, events: Listeners) -> None:
        self.counts: NotifyCounts = NotifyCounts()
        self._events = events
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
        if not result.deliveries and result.for_nobody:
            counts.for_nobody += 1
            _log.debug(
                "task %r: %s for nobody: %d subscriptions do not want it",
                task_id,
                update.kind.value,
                result.unwanted,
            )
        if self._events.wants(Enqueued.usual_level):
            for stored in result.deliveries:
                self._events.emit(
                    Enqueued(
                        at=result.at,
                        tenant=tenant,
                        owner=stored.owner,
                        task_id=task_id,
                        subscription_id=stored.subscription_id,
                        delivery_id=stored.id,
                    )
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
                extra={"code": each.code, "owner": each.owner, "task": task_id},
            )
            if self._events.wants(RecipientRefused.usual_level):
                self._events.emit(
                    RecipientRefused(
                        at=result.at,
                        tenant=tenant,
                        owner=each.owner,
                        task_id=task_id,
                        subscription_id=each.subscription_id,
                        origin=each.origin,
                        error=each.code,
                    )
                )


def report_changed(
    events: Listeners, change: SubscriptionChange, changed: Sequence[Subscription], at: datetime
) -> int:
    """Report what was done with subscriptions; return how many they are."""
    if events.wants(SubscriptionChanged.usual_level):
        for each in changed:
            events.emit(
                SubscriptionChanged(
                    at=at,
                    tenant=each.key.tenant,
                    owner=each.key.owner,
                    task_id=each.key.task_id,
                    subscription_id=each.id,
                    change=change,
                    origin=each.origin,
                )
            )
    return len(changed)
