"""From a task update to one delivery per subscription, as scripts, within the limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from pushkit.a2a import (
    ArtifactUpdate,
    MessageUpdate,
    StatusUpdate,
    TaskState,
    TaskUpdate,
)
from pushkit.delivery.bodies import Bodies
from pushkit.delivery.limits import Room
from pushkit.errors import BacklogFullError
from pushkit.outbox import (
    PLAIN,
    Envelopes,
    IdempotencyKey,
    OutboxStore,
    StatusMark,
    find_enqueued,
)
from pushkit.storage import Database, Script
from pushkit.subscriptions import Owner, Subscription, SubscriptionStore

__all__ = ["Enqueuer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueuer:
    """Turns updates into deliveries.

    Attributes:
        database: Whose clock counts, and whose workers are woken.
        max_backlog: The most unfinished deliveries of one subscription.
        whole_backlog: The room that the whole outbox has.
        owner_backlog: The room that each owner has in it.
        coalesce: Drop superseded `working` statuses before an update is refused.
        envelopes: Seals bodies, where that is asked for.
    """

    database: Database
    max_backlog: int
    whole_backlog: Room[None]
    owner_backlog: Room[Owner]
    coalesce: bool
    envelopes: Envelopes = PLAIN
    outbox: OutboxStore = field(default_factory=OutboxStore)
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)

    def enqueue(
        self,
        update: TaskUpdate,
        bodies: Bodies,
        *,
        tenant: str,
        idempotency_key: IdempotencyKey | None,
    ) -> Script[list[str]]:
        """Store an update for every subscription that wants it; return the delivery ids.

        Locks the subscriptions in id order, then waits for nothing else: two of these never wait
        for each other. A caller's own transaction keeps the locks until it ends.

        Args:
            update: What happened.
            bodies: Its bodies.
            tenant: The tenant of the task.
            idempotency_key: The caller's key, if any.

        Raises:
            BacklogFullError: There is no room for one of them; nothing may be stored.
            IdempotencyConflictError: The key was used with another update.
        """
        task_id, mark = update.task_id or "", _status_mark(update)
        subscriptions = yield from self.subscriptions.lock_active_of_task(
            tenant=tenant, task_id=task_id
        )
        ids = yield from find_enqueued(idempotency_key, tenant=tenant, task_id=task_id)
        now = yield from self.database.now()
        wanting = [each for each in subscriptions if each.wanted.accepts(update)]
        contents = bodies.of({each.version for each in wanting})
        room = free = yield from self.whole_backlog.of(None, now)
        added: Counter[Owner] = Counter()
        for subscription in wanting:
            if subscription.id not in ids:
                owner = _owner_of(subscription)
                share = (yield from self.owner_backlog.of(owner, now)) - added[owner]
                dropped = yield from self._make_room(subscription, mark, min(room, share), now)
                room += dropped
                added[owner] += 1 - dropped
                ids[subscription.id] = yield from self.enqueue_one(
                    subscription,
                    contents[subscription.version],
                    idempotency_key=idempotency_key,
                    status=mark,
                    now=now,
                )
                room -= 1
        if update.state is not None and update.state.terminal:
            for subscription in subscriptions:
                yield from self._end(subscription, now)
        self.whole_backlog.added(None, free - room)
        for owner, number in added.items():
            self.owner_backlog.added(owner, number)
        yield from self.database.wake()
        return [ids[subscription_id] for subscription_id in sorted(ids)]

    def enqueue_one(
        self,
        subscription: Subscription,
        body: bytes,
        *,
        now: datetime,
        idempotency_key: IdempotencyKey | None = None,
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
                envelopes=self.envelopes,
                idempotency_key=idempotency_key,
                now=now,
                status=status,
                paused=subscription.paused,
            )
        )

    def _make_room(
        self, subscription: Subscription, mark: StatusMark | None, room: int, now: datetime
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
                subscription.id, by_new_status=mark is not None, now=now
            )
        if backlog - dropped >= self.max_backlog:
            raise BacklogFullError(
                f"task {subscription.key.task_id!r}: {backlog} deliveries to {subscription.origin}"
                f" are waiting, expected fewer than {self.max_backlog}: nothing was stored; notify"
                " again later, or remove the subscription"
            )
        if room + dropped <= 0:
            raise BacklogFullError(
                "the outbox is full (max_backlog), or what owner"
                f" {subscription.key.owner!r} may have in it (max_backlog_per_owner): nothing was"
                " stored; notify again later, or let more workers deliver"
            )
        return dropped

    def _end(self, subscription: Subscription, now: datetime) -> Script[None]:
        yield from self.subscriptions.end(subscription.id)
        if not (yield from self.outbox.has_unfinished(subscription.id)):
            yield from self.subscriptions.withdraw(subscription.id, now)


def _owner_of(subscription: Subscription) -> Owner:
    return Owner(tenant=subscription.key.tenant, name=subscription.key.owner)


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
