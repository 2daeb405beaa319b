"""The results of `notify()` and `subscribe()`; and reports: log lines, events, counters."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pushkit.a2a import AnyUpdate
from pushkit.errors import CodeTable, PushkitError, page_of
from pushkit.events import (
    Enqueued,
    KeyRingChange,
    KeyRingChanged,
    Listeners,
    PushConfigRefused,
    RecipientRefused,
    SigningKeyNearEnd,
    SubscriptionChange,
    SubscriptionChanged,
    facts_of,
)
from pushkit.keys.ring import KeyRing, KeyState, RingKey, command_to_rotate
from pushkit.logs import RepeatedLog, one_word, printable
from pushkit.record import field, record
from pushkit.subscriptions.model import Subscription

_log: Final = logging.getLogger("pushkit.delivery")

_SOON: Final = timedelta(days=7)
_OLD: Final = timedelta(days=90)


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


def report_ring_changes(events: Listeners, before: KeyRing, now: KeyRing, at: datetime) -> None:
    """Emit an event for each change of a key ring; two for a new key that is scheduled."""
    if not events.wants(KeyRingChanged.usual_level):
        return
    changes: list[tuple[KeyRingChange, RingKey]] = []
    old = {key.kid: key for key in before.keys}
    for key in now.keys:
        known = old.pop(key.kid, None)
        if known is None:
            changes.append((KeyRingChange.PUBLISHED, key))
        if key.activates_at is not None and (
            known is None or known.activates_at != key.activates_at
        ):
            changes.append((KeyRingChange.SCHEDULED, key))
        if key.revoked_at is not None and (known is None or known.revoked_at != key.revoked_at):
            changes.append((KeyRingChange.REVOKED, key))
    changes += [(KeyRingChange.FORGOTTEN, key) for key in old.values()]
    for change, key in changes:
        algorithm = key.algorithm.value
        events.emit(KeyRingChanged(at=at, change=change, kid=key.kid, algorithm=algorithm))


def keys_near_end(ring: KeyRing, now: datetime) -> list[SigningKeyNearEnd]:
    """Return an event for each active key that is old or soon revoked without a successor.

    A key that is revoked within a week has no successor by then; a key that is older than 90 days
    has none at all.
    """
    published = ring.published(now)
    found: list[SigningKeyNearEnd] = []
    for key in published:
        if ring.state(key.kid, now) is not KeyState.ACTIVE:
            continue
        planned = [
            at
            for other in published
            if other.algorithm is key.algorithm and (at := other.took_over_at()) and at > now
        ]
        revoked_at, age, reason = key.revoked_at, key.age(now), None
        remedy = command_to_rotate(ring, key.algorithm)
        if revoked_at is not None and revoked_at - now <= _SOON:
            if not any(at <= revoked_at for at in planned):
                when = revoked_at.isoformat(timespec="minutes")
                reason = f"is revoked at {when}, and none signs then: {remedy}"
        elif age is not None and age > _OLD and not planned:
            reason = f"is {age.days} days old, and no next one is planned: {remedy}"
        if reason is not None:
            algorithm = key.algorithm.value
            found.append(SigningKeyNearEnd(at=now, kid=key.kid, algorithm=algorithm, reason=reason))
    return found
