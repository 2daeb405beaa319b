"""The results of `notify()` and `subscribe()`, and their reports: log lines, events, counters."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pushkit.a2a import AnyUpdate
from pushkit.errors import CodeTable, PushkitError, page_of
from pushkit.events.listeners import Listeners, facts_of
from pushkit.events.sender import (
    Enqueued,
    PushConfigRefused,
    RecipientRefused,
    SubscriptionChange,
    SubscriptionChanged,
)
from pushkit.logs import RepeatedLog, one_word, printable
from pushkit.record import field, record
from pushkit.subscriptions.model import Subscription

_log: Final = logging.getLogger("pushkit.delivery")


@record(frozen=True, slots=True, kw_only=True)
class NotifiedDelivery:
    """A delivery of an update."""

    id: str
    owner: str  # of its subscription
    config_id: str  # of its subscription
    subscription_id: str


@record(frozen=True, slots=True, kw_only=True)
class RefusedRecipient:
    """A subscription for which an update was not stored."""

    owner: str
    config_id: str
    subscription_id: str
    origin: str  # its destination
    code: str  # the reason, for programs: the `code` of an error, for example `backlog_full`
    message: str  # the reason, for people


@record(frozen=True, slots=True, kw_only=True)
class NotifyResult:
    """The result of `PushSender.notify`, recipient by recipient.

    Attributes:
        deliveries: The deliveries that were stored, one per subscription, by the subscription's
            id; after a repetition with an idempotency key, those that were stored the first time.
        refused: The subscriptions that want the update, but for which it was not stored.
        unwanted: How many subscriptions to the task do not want it, because of their filters.
        at: When it was stored, by the database's clock.
    """

    deliveries: tuple[NotifiedDelivery, ...] = ()
    refused: tuple[RefusedRecipient, ...] = ()
    unwanted: int = 0
    at: datetime = field(compare=False)

    @property
    def ids(self) -> list[str]:
        """The ids of the deliveries."""
        return [delivery.id for delivery in self.deliveries]

    @property
    def for_nobody(self) -> bool:
        """Whether there was no recipient: no subscription, or none that wants the update."""
        return not self.deliveries and not self.refused


@dataclass(slots=True, kw_only=True)
class NotifyCounts:
    """Counts of what `notify()` did in this process; they only go up."""

    updates: int = 0  # updates that were accepted, with or without recipients
    deliveries: int = 0  # deliveries of them; a repeated update counts again
    refused: int = 0  # recipients for which an update was not stored
    for_nobody: int = 0  # updates without a recipient


class Reports:
    """Reports the results of `notify()` and `subscribe()`."""

    def __init__(self, events: Listeners) -> None:
        self.counts: NotifyCounts = NotifyCounts()
        self._events = events
        self._repeated = RepeatedLog(_log)

    def report_replaced(self, before: Subscription, now: Subscription) -> None:
        """Log a warning if a registration changed an existing subscription."""
        differences = {
            "URL": before.config.url != now.config.url,
            "version": before.version is not now.version,
            "filter": before.wanted != now.wanted,
        }
        changed = [name for name, differs in differences.items() if differs]
        if changed:
            self._repeated.log(
                ("replaced", now.key.owner),
                logging.WARNING,
                "task %r: owner %r registered config %r again with another %s, which replaced it:"
                " to keep both, give each its own id (the default id is the task's)",
                now.key.task_id,
                now.key.owner,
                now.key.config_id,
                " and ".join(changed),
            )

    def report_refused_config(self, event: PushConfigRefused, advice: str) -> None:
        """Report that a client's push config was refused; only the log has the advice."""
        self._repeated.log(
            ("push config", event.code, event.owner),
            logging.WARNING,
            "a push config was refused (%s): %s [owner=%s host=%s task=%s]%s%s",
            event.code,
            printable(event.reason, 500),
            one_word(event.owner),
            one_word(event.host),
            one_word(event.task_id),
            advice,
            _page_said(event.code),
            extra=facts_of(event),
        )
        if self._events.wants(PushConfigRefused.usual_level):
            self._events.emit(event)

    def report(self, update: AnyUpdate, tenant: str, result: NotifyResult) -> None:
        """Report the result of one `notify()`."""
        task_id = update.task_id or ""
        counts = self.counts
        counts.updates += 1
        counts.deliveries += len(result.deliveries)
        counts.refused += len(result.refused)
        if not result.deliveries and result.for_nobody:
            counts.for_nobody += 1
            _log.debug(
                "task %r: %s has no recipient: %d subscriptions do not want it",
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
            self._repeated.log(
                (each.code, each.owner),
                logging.WARNING,
                "task %r: %s not stored for config %r of owner %r (%s): %s%s",
                task_id,
                update.kind.value,
                each.config_id,
                each.owner,
                each.code,
                each.message,
                _page_said(each.code),
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


def _page_said(code: str) -> str:
    """Return where an error's code is explained, as the end of a message; empty for others."""
    return f"; see {page_of(CodeTable.ERROR, code)}" if code in PushkitError.codes else ""


def report_changed(
    events: Listeners, change: SubscriptionChange, changed: Sequence[Subscription], at: datetime
) -> int:
    """Emit an event for each changed subscription; return how many there are."""
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
