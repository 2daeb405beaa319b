"""From a task update to one delivery per subscription, as scripts, within the limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pushkit.a2a import (
    ArtifactUpdate,
    MessageUpdate,
    StatusUpdate,
    Task,
    TaskState,
    TaskUpdate,
    WireVersion,
    push_body,
)
from pushkit.errors import BacklogFullError, PayloadTooLargeError
from pushkit.outbox import OutboxStore, StatusMark
from pushkit.storage import Database, Script
from pushkit.subscriptions import Subscription, SubscriptionStore

__all__ = ["Enqueuer", "WholeBacklog"]

_COUNT_AGE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueuer:
    """Turns updates into deliveries.

    Attributes:
        database: Whose clock counts, and whose workers are woken.
        max_body_bytes: The largest body.
        max_backlog: The most unfinished deliveries of one subscription.
        whole_backlog: The room that the whole outbox has.
        coalesce: Drop superseded `working` statuses before an update is refused.
    """

    database: Database
    max_body_bytes: int
    max_backlog: int
    whole_backlog: WholeBacklog
    coalesce: bool
    outbox: OutboxStore = field(default_factory=OutboxStore)
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)

    def enqueue(
        self,
        update: TaskUpdate,
        *,
        tenant: str,
        snapshot: Task | None,
        idempotency_key: str | None,
    ) -> Script[list[str]]:
        """Store an update for every subscription that wants it; return the delivery ids.

        Locks the subscriptions in id order, then waits for nothing else: two of these never wait
        for each other. A caller's own transaction keeps the locks until it ends.

        Args:
            update: What happened.
            tenant: The tenant of the task.
            snapshot: The whole task, for 0.3.
            idempotency_key: The caller's key, if any.

        Raises:
            BacklogFullError: There is no room for one of them; nothing may be stored.
        """
        subscriptions = yield from self.subscriptions.lock_active_of_task(
            tenant=tenant, task_id=update.task_id or ""
        )
        now = yield from self.database.now()
        bodies = {
            version: self._body(update, version, snapshot)
            for version in {each.version for each in subscriptions if each.wanted.accepts(update)}
        }
        room = free = yield from self.whole_backlog.room(now)
        ids = []
        for subscription in subscriptions:
            if subscription.wanted.accepts(update):
                body = bodies[subscription.version]
                found = yield from self._found(subscription, idempotency_key, body)
                if found is None:
                    room += yield from self._make_room(subscription, update, room, now)
                    found = yield from self.enqueue_one(
                        subscription,
                        body,
                        idempotency_key=idempotency_key,
                        status=_status_mark(update),
                        now=now,
                    )
                    room -= 1
                ids.append(found)
            if update.state is not None and update.state.terminal:
                yield from self._end(subscription, now)
        self.whole_backlog.added(free - room)
        yield from self.database.wake()
        return ids

    def enqueue_one(
        self,
        subscription: Subscription,
        body: bytes,
        *,
        now: datetime,
        idempotency_key: str | None = None,
        status: StatusMark | None = None,
    ) -> Script[str]:
        """Store one delivery for a subscription whose row is held; return its id."""
        seq = yield from self.subscriptions.take_seq(subscription.id)
        return (
            yield from self.outbox.enqueue(
                subscription_id=subscription.id,
                tenant=subscription.key.tenant,
                owner=subscription.key.owner,
                task_id=subscription.key.task_id,
                config_id=subscription.key.config_id,
                origin=subscription.origin,
                seq=seq,
                content_type=subscription.version.content_type,
                body=body,
                idempotency_key=idempotency_key,
                now=now,
                status=status,
                paused=subscription.paused,
            )
        )

    def _found(
        self, subscription: Subscription, idempotency_key: str | None, body: bytes
    ) -> Script[str | None]:
        if idempotency_key is None:
            return None
        return (yield from self.outbox.find_enqueued(subscription.id, idempotency_key, body))

    def _make_room(
        self, subscription: Subscription, update: TaskUpdate, room: int, now: datetime
    ) -> Script[int]:
        """See that one more fits; return how many deliveries were dropped for it."""
        backlog = yield from self.outbox.backlog(
            subscription.id, subscription.last_seq, self.max_backlog
        )
        if backlog < self.max_backlog and room > 0:
            return 0
        dropped = 0
        if self.coalesce:
            dropped = yield from self.outbox.supersede(
                subscription.id, by_new_status=_status_mark(update) is not None, now=now
            )
        if backlog - dropped >= self.max_backlog:
            raise BacklogFullError(
                f"task {subscription.key.task_id!r}: {backlog} deliveries to {subscription.origin}"
                f" are waiting, expected fewer than {self.max_backlog}: nothing was stored; notify"
                " again later, or remove the subscription"
            )
        if room + dropped <= 0:
            raise BacklogFullError(
                "the outbox is full (max_backlog): nothing was stored; notify again later, or let"
                " more workers deliver"
            )
        return dropped

    def _end(self, subscription: Subscription, now: datetime) -> Script[None]:
        yield from self.subscriptions.end(subscription.id)
        if not (yield from self.outbox.has_unfinished(subscription.id)):
            yield from self.subscriptions.withdraw(subscription.id, now)

    def _body(self, update: TaskUpdate, version: WireVersion, snapshot: Task | None) -> bytes:
        body = push_body(update, version, snapshot)
        if len(body) > self.max_body_bytes:
            raise PayloadTooLargeError(
                f"the {version.value} body would be {len(body)} bytes,"
                f" expected at most {self.max_body_bytes}: send large artifacts by URL"
            )
        return body


def _status_mark(update: TaskUpdate) -> StatusMark | None:
    if isinstance(update, ArtifactUpdate | MessageUpdate):
        return None
    bare = (
        isinstance(update, StatusUpdate)
        and update.state is TaskState.WORKING
        and update.status.message is None
        and not update.metadata
    )
    return StatusMark.BARE if bare else StatusMark.FULL


class WholeBacklog:
    """How much room the whole outbox has, counted at most once a second.

    Between two counts it knows what this process added. What others add meanwhile may take the
    outbox over its limit by as much as they add in a second.

    Args:
        limit: The most unfinished deliveries.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._counted_at: datetime | None = None
        self._used = 0

    def room(self, now: datetime) -> Script[int]:
        """Return how many deliveries still fit; 0 or less if none does."""
        if self._counted_at is None or not timedelta(0) <= now - self._counted_at < _COUNT_AGE:
            self._used = yield from OutboxStore().whole_backlog(self._limit)
            self._counted_at = now
        return self._limit - self._used

    def added(self, deliveries: int) -> None:
        """Note what this process added."""
        self._used += deliveries
