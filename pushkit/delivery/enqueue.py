"""Stores a task update as one delivery per subscription, within the limits."""

from __future__ import annotations

import asyncio
import functools
import operator
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from pushkit.a2a import AnyUpdate, UpdateKind, WireVersion
from pushkit.delivery.bodies import Bodies
from pushkit.delivery.gathering import PlaceInQueue, joining, make_way, place
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.queues import OpenQueue, Queues
from pushkit.delivery.reporting import NotifiedDelivery, NotifyResult, RefusedRecipient
from pushkit.delivery.route import DeliveryJob, Routes, job_of, read_subscriptions
from pushkit.delivery.worker import Worker
from pushkit.errors import BacklogFullError, IdempotencyConflictError, PushkitError
from pushkit.outbox import store as outbox
from pushkit.outbox.model import (
    IdempotencyKey,
    NewDelivery,
    StatusContent,
    StoredDelivery,
    TaskKey,
    find_enqueued,
    new_delivery_ids,
)
from pushkit.queue.rules import Handed
from pushkit.queue.runner import seconds
from pushkit.record import field, record
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database, read_now
from pushkit.storage.quota import Quota
from pushkit.storage.script import DEFERRED, Deferred, Group, Refused, Script, alone, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import Recipient

_BY_SUBSCRIPTION = operator.attrgetter("subscription_id")


@record(frozen=False, slots=True, kw_only=True, eq=False)
class Notice:
    """An update to be stored."""

    bodies: Bodies  # the update's
    idempotency_key: IdempotencyKey | None = None  # the caller's key, if any
    traceparent: str | None = None  # the trace that it belongs to, if there is one
    # The worker to whose memory its deliveries may be handed; None for no worker.
    worker: Worker | None = None
    # Its deliveries that were handed to that worker as they were stored.
    handed: list[tuple[Handed, DeliveryJob]] = field(default_factory=list)
    since: float = 0.0  # a moment before their queues were read (`pushkit.queue.runner.seconds`)
    seen_at: float = 0.0  # a moment when these were still locked
    some_wait: bool = False  # whether one of its deliveries waits for a claim
    is_counted: bool = False  # whether backlogs were counted for it

    @property
    def is_last(self) -> bool:
        """Whether the update ends its task."""
        state = self.bodies.update.state
        return state is not None and state.terminal

    def begin(
        self, stored: NotifyResult | SnapshotsMissing | CountsMissing | BaseException
    ) -> None:
        """Hand over the deliveries that were stored, after the commit."""
        if self.worker is None or isinstance(stored, BaseException):
            return
        for handed, job in self.handed:
            self.worker.runner.hand(handed, job, since=self.since, seen_at=self.seen_at)
        if self.some_wait:
            self.worker.wake()

    @property
    def task_key(self) -> TaskKey | None:
        """The idempotency key to look up; None if nothing can be stored under it yet."""
        key = self.idempotency_key
        return None if key is None or key.is_new else TaskKey(*self.bodies.task, key.key)


SnapshotsMissing: TypeAlias = set[tuple[WireVersion, str]]
"""Versions and owners whose snapshots an update needs before it can be stored."""


class CountsMissing(frozenset[str | None]):
    """Owners (None for all together) whose backlog has to be counted before an update is stored.

    Counting a long backlog takes milliseconds: it is read beside the transactions that store.
    """


class Enqueuer:
    """Turns updates into deliveries."""

    def __init__(
        self, database: Database, options: SenderOptions, routes: Routes, vault: Vault
    ) -> None:
        self.database = database  # supplies the time, and wakes its workers
        self.options = options
        self.routes = routes  # the worker's, for deliveries that begin at once
        self.vault = vault  # seals bodies, if that is configured
        self._whole_backlog = Quota[str | None](
            options.max_backlog, lambda _, limit: outbox.whole_backlog(limit)
        )
        self._owner_backlog = Quota[str | None](
            options.max_backlog_per_owner,
            lambda owner, limit: subscriptions.backlog_of_owner(owner or "", limit),
        )
        # `enqueue`, as one object: a group commit collects the calls of the same function.
        self._group: Group[Notice, NotifyResult | SnapshotsMissing | CountsMissing] = self.enqueue
        self._counting: dict[CountsMissing, asyncio.Future[None]] = {}

    async def store(self, notice: Notice, connection: object | None = None) -> NotifyResult:
        """Store an update for each subscription that wants it and can have it.

        Args:
            connection: The caller's own connection; the update becomes part of its transaction.

        Raises:
            IdempotencyConflictError: The key was used with another update.
            StorageError: The database refused; nothing was stored.
        """
        while True:
            found: NotifyResult | SnapshotsMissing | CountsMissing
            if connection is None:
                # Deliveries that are handed over are begun even if the caller is cancelled.
                found = await self.database.write_together(self._group, notice, notice.begin)
            else:
                found = await self.database.write_on(connection, alone(self.enqueue, notice))
            if isinstance(found, NotifyResult):
                return found
            if isinstance(found, CountsMissing):
                await self._count(found)
                notice.is_counted = True
                continue
            # Each owner's snapshot is fetched at most once, so the loop ends.
            await notice.bodies.fetch_snapshots(found)

    async def _count(self, missing: CountsMissing) -> None:
        """Count backlogs beside the transactions; callers that need the same ones share it."""
        counting = self._counting.get(missing)
        if counting is None:
            counting = asyncio.ensure_future(
                read_now(self.database, functools.partial(self._counts, missing))
            )
            self._counting[missing] = counting
            counting.add_done_callback(lambda _: self._counting.pop(missing, None))
        await asyncio.shield(counting)

    def _counts(self, missing: CountsMissing, now: datetime) -> Script[None]:
        for owner in missing:
            yield from self.backlog_of(owner).count(owner, now)

    def backlog_of(self, owner: str | None) -> Quota[str | None]:
        """Return the quota of an owner's backlog, or of all together."""
        return self._whole_backlog if owner is None else self._owner_backlog

    def enqueue(
        self, notices: Sequence[Notice], /, *, wait: bool = True
    ) -> Script[list[NotifyResult | SnapshotsMissing | CountsMissing | Deferred | Refused]]:
        """Store updates, in order; return the result of each.

        A recipient that cannot have an update does not affect the others. Nothing is written of an
        update that is refused as a whole, or that needs snapshots first.

        Locks the subscriptions in id order, then waits for no other lock: two of these never
        deadlock. A caller's own transaction keeps the locks until it ends.

        Args:
            wait: Whether to wait for subscriptions that another transaction has locked, or to
                defer the updates that go to them.
        """
        since = seconds()
        for notice in notices:  # an earlier run of this script may have failed in its commit
            notice.handed, notice.since = [], since
        tasks = tuple(dict.fromkeys([notice.bodies.task for notice in notices]))
        recipients: Sequence[Recipient]
        recipients = yield from subscriptions.lock_recipients(tasks, wait=wait)
        deferred = set[tuple[str, str]]()
        if not wait:
            recipients, deferred = yield from self._without_deferred(tasks, recipients)
        now = yield from self.database.now()
        keys = [notice.task_key for notice in notices]
        enqueued = yield from find_enqueued([key for key in dict.fromkeys(keys) if key])
        transaction = _Transaction(self, now, recipients, enqueued)
        results: list[NotifyResult | SnapshotsMissing | CountsMissing | Deferred | Refused] = []
        for notice, key in zip(notices, keys, strict=True):
            if notice.bodies.task in deferred:
                results.append(DEFERRED)
            elif uncounted := transaction.uncounted(notice):
                results.append(uncounted)
            else:
                results.append((yield from transaction.add(notice, key)))
        yield from transaction.finish()
        seen_at = seconds()
        for notice in notices:
            notice.seen_at = seen_at
        return results

    def _without_deferred(
        self, tasks: Sequence[tuple[str, str]], recipients: Sequence[Recipient]
    ) -> Script[tuple[Sequence[Recipient], set[tuple[str, str]]]]:
        """Return recipients whose tasks can go ahead, and the tasks that are deferred.

        A task is deferred if another transaction has locked one of its subscriptions.
        """
        locked = Counter((each.tenant, each.task_id) for each in recipients)
        there = yield from subscriptions.count_recipients(tasks)
        deferred = {task for task, count in there.items() if count != locked[task]}
        return [
            each for each in recipients if (each.tenant, each.task_id) not in deferred
        ], deferred


class _Transaction:
    """Adds updates to the outbox in one transaction, within the quotas."""

    def __init__(
        self,
        enqueuer: Enqueuer,
        now: datetime,
        recipients: Sequence[Recipient],  # whose rows are locked
        enqueued: dict[TaskKey, list[StoredDelivery]],
    ) -> None:
        self._enqueuer = enqueuer
        self._max_backlog = enqueuer.options.max_backlog_per_subscription
        self._now = now
        self._ids = new_delivery_ids(now)
        self._enqueued = enqueued
        self._queues = Queues(recipients)
        # How many more deliveries each owner may add, and (None) all of them together: now, and
        # when the transaction began.
        self._left: dict[str | None, int] = {}
        self._quota: dict[str | None, int] = {}
        self._unrouted: list[DeliveryJob] = []  # whose routes are not remembered
        self._some_wait = False

    def uncounted(self, notice: Notice) -> CountsMissing | None:
        """Return whose backlogs have to be counted for an update; note those that are known."""
        missing = set[str | None]()
        queues = self._queues.of_task(notice.bodies.task)
        for owner in {None, *[queue.recipient.owner for queue in queues]}.difference(self._quota):
            quota = self._enqueuer.backlog_of(owner)
            is_due = quota.is_due(owner, self._now) and not notice.is_counted
            if is_due or not quota.is_known(owner):
                missing.add(owner)
            else:
                self._quota[owner] = self._left[owner] = quota.known_left(owner)
        return CountsMissing(missing) if missing else None

    def add(
        self, notice: Notice, key: TaskKey | None
    ) -> Script[NotifyResult | SnapshotsMissing | Refused]:
        """Add an update to each queue that wants it and has the capacity.

        Args:
            notice: The update.
            key: Its idempotency key: subscriptions that have a delivery of it get no second one.
        """
        earlier = [] if key is None else self._enqueued.setdefault(key, [])
        try:
            if earlier and notice.idempotency_key is not None:
                notice.idempotency_key.check(earlier)
        except IdempotencyConflictError as exc:
            return Refused(exc)
        bodies, update, left = notice.bodies, notice.bodies.update, self._left
        queues = self._queues.of_task(bodies.task)
        without, versions, unwanted = _wanting(queues, update, earlier)
        if not versions.isdisjoint(bodies.by_owner):
            missing = bodies.missing_snapshots(queue.recipient for queue in without)
            if missing:
                return missing
        bodies.remember(versions)
        status = _status_content(update)
        added, refused, notice.some_wait = list[NewDelivery](), [], False
        for queue in without:
            recipient = queue.recipient
            try:
                to = yield from self._place(queue, update, bodies.of(recipient))
                fits = left[recipient.owner] > 0 < left[None] and queue.length < self._max_backlog
                if to.replaces is None and not fits:
                    yield from self._require_capacity(queue, notice)
            except PushkitError as exc:  # nothing was written or dropped for this recipient
                refused.append(_refusal(recipient, exc))
                continue
            if to.replaces is None:
                left[recipient.owner] -= 1
                left[None] -= 1
            if to.replaces is not None or to.hurries:
                queue.row = yield from make_way(queue.row, to, now=to_micros(self._now))
            added.append(self._add(queue, to, notice, status))
            if self._queues.is_full:
                yield from self._queues.write()
        if notice.is_last:
            yield from self._queues.end_task(bodies.task, self._now)
        result = NotifyResult(
            deliveries=_notified([*earlier, *added]),
            refused=tuple(refused),
            unwanted=unwanted,
            at=self._now,
        )
        if key is not None:
            earlier += map(_enqueued, added)
        return result

    def _place(self, queue: OpenQueue, update: AnyUpdate, body: bytes) -> Script[PlaceInQueue]:
        """Return where an update goes in a queue."""
        interval = queue.recipient.wanted.min_interval
        if interval is None:
            return PlaceInQueue(body, 0)
        if queue.has_new:
            yield from self._queues.write()
        vault, most_bytes = self._enqueuer.vault, self._enqueuer.options.max_body_bytes
        join = joining(update, queue.recipient.version, body, vault, most_bytes=most_bytes)
        now = to_micros(self._now)
        return (yield from place(queue.row, body, join, interval=interval, now=now))

    def _add(
        self, queue: OpenQueue, to: PlaceInQueue, notice: Notice, status: StatusContent | None
    ) -> NewDelivery:
        """Add an update to a queue, and hand it to the worker's memory if that is allowed."""
        worker, recipient, body = notice.worker, queue.recipient, to.body
        delivery_id = next(self._ids)
        has_room = worker is not None and worker.has_room(recipient.id, len(body))
        new, handed = self._queues.add(
            queue,
            delivery_id,
            self._enqueuer.vault.seal_body(delivery_id, body),
            now=self._now,
            status=status,
            idempotency_key=notice.idempotency_key,
            traceparent=notice.traceparent,
            worker=worker.name if worker is not None and has_room else None,
            until=worker.lease_until(self._now) if worker is not None else 0,
            probation_from=self._enqueuer.options.breaker.failures,
            not_before=to.not_before,
            may_be_joined=to.may_be_joined,
        )
        if handed is not None:
            route = self._enqueuer.routes.known(recipient.id, recipient.revision)
            job = job_of(new, route)
            notice.handed.append((handed, job))
            if route is None:
                self._unrouted.append(job)
        elif (
            to.replaces is None and queue.row.lease_worker is None and queue.row.due_at is not None
        ):
            notice.some_wait = self._some_wait = True  # nobody looks at it but a claim
        return new

    def finish(self) -> Script[None]:
        """Write the added deliveries, wake workers if one is due, and update the quotas."""
        enqueuer = self._enqueuer
        yield from self._queues.write()
        if self._some_wait:
            yield from enqueuer.database.wake()
        if self._unrouted:
            yield from read_subscriptions(self._unrouted)
        for owner, quota in self._quota.items():
            enqueuer.backlog_of(owner).add(owner, quota - self._left[owner])

    def _require_capacity(self, queue: OpenQueue, notice: Notice) -> Script[None]:
        """Check that one more delivery fits; with `coalesce`, drop superseded statuses for it.

        One delivery of each subscription may exceed the limits, for the end of its task: clients
        always learn of it.

        Raises:
            BacklogFullError: It does not fit.
        """
        enqueuer, recipient = self._enqueuer, queue.recipient
        yield from self._queues.write()
        backlog = yield from outbox.backlog(recipient.id, self._max_backlog)
        left = min(self._left[recipient.owner], self._left[None])
        if backlog < self._max_backlog and left > 0:
            return
        if enqueuer.options.coalesce:
            dropped = yield from outbox.supersede(
                queue.row,
                by_new_status=_status_content(notice.bodies.update) is not None,
                now=self._now,
            )
            if dropped:  # at least one leaves for the one that is added, however full it is
                queue.hurry(to_micros(self._now))  # the first one may have waited to be retried
                self._left[recipient.owner] += dropped
                self._left[None] += dropped
                return
        if notice.is_last and not queue.ended:  # the reserved delivery
            return
        if backlog >= self._max_backlog:
            raise BacklogFullError(
                f"{backlog} deliveries to {recipient.origin} are waiting, expected fewer than"
                f" {self._max_backlog} (max_backlog_per_subscription): notify again later, or"
                " remove the subscription"
            )
        raise BacklogFullError(
            f"the outbox (max_backlog), or the share of owner {recipient.owner!r} in it"
            " (max_backlog_per_owner), is full: notify again later, or let more workers deliver"
        )


def _wanting(
    queues: Sequence[OpenQueue], update: AnyUpdate, earlier: Sequence[StoredDelivery]
) -> tuple[list[OpenQueue], set[WireVersion], int]:
    """Return the queues that lack an update, the versions wanted, and how many do not want it."""
    has_it = {each.subscription_id for each in earlier} if earlier else ()
    without, versions, unwanted = list[OpenQueue](), set[WireVersion](), 0
    for queue in queues:
        recipient = queue.recipient
        if not recipient.wanted.accepts(update):
            unwanted += 1
            continue
        versions.add(recipient.version)
        if recipient.id not in has_it:
            without.append(queue)
    return without, versions, unwanted


def _refusal(recipient: Recipient, error: PushkitError) -> RefusedRecipient:
    return RefusedRecipient(
        owner=recipient.owner,
        config_id=recipient.config_id,
        subscription_id=recipient.id,
        origin=recipient.origin,
        code=error.code,
        message=str(error),
    )


def _enqueued(new: NewDelivery) -> StoredDelivery:
    return StoredDelivery(new.id, new.subscription_id, new.owner, new.config_id, new.update_sha256)


def _notified(stored: list[StoredDelivery | NewDelivery]) -> tuple[NotifiedDelivery, ...]:
    stored.sort(key=_BY_SUBSCRIPTION)
    return tuple(
        [
            NotifiedDelivery(
                id=each.id,
                owner=each.owner,
                config_id=each.config_id,
                subscription_id=each.subscription_id,
            )
            for each in stored
        ]
    )


def _status_content(update: AnyUpdate) -> StatusContent | None:
    if update.kind not in (UpdateKind.TASK, UpdateKind.STATUS_UPDATE):
        return None
    return StatusContent.BARE if update.is_bare else StatusContent.FULL
