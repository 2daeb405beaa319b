"""Stores a task update as one delivery per subscription, within the limits."""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from pushkit.a2a import AnyUpdate, UpdateKind, WireVersion
from pushkit.delivery.bodies import Bodies
from pushkit.delivery.chain import Chain
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.queues import Queue, Queues
from pushkit.delivery.reporting import NotifiedDelivery, NotifyResult, RefusedRecipient
from pushkit.delivery.route import Routes
from pushkit.delivery.slots import Claimed, Reservation, read_subscriptions
from pushkit.delivery.worker import Worker
from pushkit.errors import BacklogFullError, IdempotencyConflictError, PushkitError
from pushkit.outbox.idempotency import Enqueued, IdempotencyKey, TaskKey, find_enqueued
from pushkit.outbox.model import Claim, NewDelivery, StatusMark, new_delivery_ids
from pushkit.outbox.store import OutboxStore
from pushkit.record import field, record
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.storage.quota import Quota
from pushkit.storage.script import DEFERRED, Deferred, Group, Refused, Script, alone
from pushkit.subscriptions.model import Recipient
from pushkit.subscriptions.owners import OwnerStore
from pushkit.subscriptions.store import SubscriptionStore

_BY_SUBSCRIPTION = operator.attrgetter("subscription_id")


@record(frozen=False, slots=True, kw_only=True, eq=False)
class Notice:
    """An update to be stored."""

    bodies: Bodies  # the update's
    idempotency_key: IdempotencyKey | None = None  # the caller's key, if any
    traceparent: str | None = None  # the trace that it belongs to, if there is one
    # The worker whose slots its deliveries may take as they are stored; None for no worker.
    worker: Worker | None = None
    # Its deliveries that are stored in flight, each in a slot or a chain of this process.
    claimed: list[Claimed] = field(default_factory=list)
    some_wait: bool = False  # whether one of its deliveries waits for a claim

    @property
    def is_last(self) -> bool:
        """Whether the update ends its task."""
        state = self.bodies.update.state
        return state is not None and state.terminal

    def cancel(self) -> None:
        """Free the slots and places in chains that were reserved."""
        if self.worker is not None:
            self.worker.slots.cancel(self.claimed)
        self.claimed.clear()

    def begin(self, stored: NotifyResult | SnapshotsMissing | BaseException) -> None:
        """Begin the deliveries that were stored in flight; on an error, give back their slots."""
        if self.worker is None:
            return
        if isinstance(stored, BaseException):
            self.cancel()
            return
        for claimed in self.claimed:
            self.worker.begin(claimed)
        if self.some_wait:
            self.worker.pump.wake()

    @property
    def task_key(self) -> TaskKey | None:
        """The idempotency key to look up; None if nothing can be stored under it yet."""
        key = self.idempotency_key
        return None if key is None or key.is_new else TaskKey(*self.bodies.task, key.key)


SnapshotsMissing: TypeAlias = set[tuple[WireVersion, str]]
"""Versions and owners whose snapshots an update needs before it can be stored."""


class Enqueuer:
    """Turns updates into deliveries."""

    def __init__(
        self, database: Database, options: SenderOptions, routes: Routes, vault: Vault
    ) -> None:
        self.database = database  # supplies the time, and wakes its workers
        self.options = options
        self.routes = routes  # the worker's, for deliveries that begin at once
        self.vault = vault  # seals bodies, if that is configured
        self.outbox = OutboxStore()
        self.subscriptions = SubscriptionStore()
        self.whole_backlog = Quota[None](
            options.max_backlog, lambda _, limit: self.outbox.whole_backlog(limit)
        )
        self.owner_backlog = Quota[str](options.max_backlog_per_owner, OwnerStore().backlog)
        # `enqueue`, as one object: a group commit collects the calls of the same function.
        self._group: Group[Notice, NotifyResult | SnapshotsMissing] = self.enqueue

    async def store(self, notice: Notice, connection: object | None = None) -> NotifyResult:
        """Store an update for each subscription that wants it and can have it.

        Args:
            connection: The caller's own connection; the update becomes part of its transaction.

        Raises:
            IdempotencyConflictError: The key was used with another update.
            StorageError: The database refused; nothing was stored.
        """
        while True:
            found: NotifyResult | SnapshotsMissing
            if connection is None:
                # Deliveries stored in a slot are begun even if the caller is cancelled.
                found = await self.database.write_together(self._group, notice, notice.begin)
            else:
                found = await self.database.write_on(connection, alone(self.enqueue, notice))
            if isinstance(found, NotifyResult):
                return found
            # Each owner's snapshot is fetched at most once, so the loop ends.
            await notice.bodies.fetch_snapshots(found)

    def enqueue(
        self, notices: Sequence[Notice], /, *, wait: bool = True
    ) -> Script[list[NotifyResult | SnapshotsMissing | Deferred | Refused]]:
        """Store updates, in order; return the result of each.

        A recipient that cannot have an update does not affect the others. Nothing is written of an
        update that is refused as a whole, or that needs snapshots first.

        Locks the subscriptions in id order, then waits for no other lock: two of these never
        deadlock. A caller's own transaction keeps the locks until it ends.

        Args:
            wait: Whether to wait for subscriptions that another transaction has locked, or to
                defer the updates that go to them.
        """
        _cancel(notices)  # an earlier run of this script may have failed in its commit
        try:
            tasks = tuple(dict.fromkeys([notice.bodies.task for notice in notices]))
            recipients: Sequence[Recipient]
            recipients = yield from self.subscriptions.lock_recipients(tasks, wait=wait)
            deferred = set[tuple[str, str]]()
            if not wait:
                recipients, deferred = yield from self._without_deferred(tasks, recipients)
            since = time.perf_counter()
            now = yield from self.database.now()
            keys = [notice.task_key for notice in notices]
            enqueued = yield from find_enqueued([key for key in dict.fromkeys(keys) if key])
            transaction = _Transaction(self, now, since, enqueued)
            yield from transaction.open(recipients)
            results: list[NotifyResult | SnapshotsMissing | Deferred | Refused] = []
            for notice, key in zip(notices, keys, strict=True):
                if notice.bodies.task in deferred:
                    results.append(DEFERRED)
                else:
                    results.append((yield from transaction.add(notice, key)))
            yield from transaction.finish()
        except BaseException:
            _cancel(notices)
            raise
        return results

    def _without_deferred(
        self, tasks: Sequence[tuple[str, str]], recipients: Sequence[Recipient]
    ) -> Script[tuple[Sequence[Recipient], set[tuple[str, str]]]]:
        """Return recipients whose tasks can go ahead, and the tasks that are deferred.

        A task is deferred if another transaction has locked one of its subscriptions.
        """
        locked = Counter((each.tenant, each.task_id) for each in recipients)
        there = yield from self.subscriptions.count_recipients(tasks)
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
        since: float,  # the same, by `time.perf_counter`
        enqueued: dict[TaskKey, list[Enqueued]],
    ) -> None:
        self._enqueuer = enqueuer
        self._max_backlog = enqueuer.options.max_backlog_per_subscription
        self._now = now
        self._since = since
        self._ids = new_delivery_ids(now)
        self._enqueued = enqueued
        self._queues = Queues(enqueuer.outbox, enqueuer.subscriptions)
        # How many more deliveries each owner may add, and (None) all of them together: now, and
        # when the transaction began.
        self._left: dict[str | None, int] = {}
        self._quota: dict[str | None, int] = {}
        self._claim: Claim | None = None  # of all deliveries that are stored in flight
        self._unrouted: list[Claimed] = []  # whose routes are not remembered
        self._some_wait = False

    def open(self, recipients: Sequence[Recipient]) -> Script[None]:
        """Read the queues of recipients whose rows are locked, and the quotas."""
        enqueuer = self._enqueuer
        yield from self._queues.open(recipients)
        self._quota[None] = yield from enqueuer.whole_backlog.left(None, self._now)
        for owner in {recipient.owner for recipient in recipients}:
            self._quota[owner] = yield from enqueuer.owner_backlog.left(owner, self._now)
        self._left = dict(self._quota)

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
        status = _status_mark(update)
        added, refused, notice.some_wait = list[NewDelivery](), [], False
        for queue in without:
            recipient = queue.recipient
            try:
                body = bodies.of(recipient)
                fits = left[recipient.owner] > 0 < left[None]
                if not fits or queue.length >= self._max_backlog:
                    yield from self._require_capacity(queue, notice)
            except PushkitError as exc:  # nothing was written or dropped for this recipient
                refused.append(_refusal(recipient, exc))
                continue
            new = self._add(queue, body, notice, status)
            left[recipient.owner] -= 1
            left[None] -= 1
            added.append(new)
            if self._queues.is_full:
                yield from self._queues.write(self._now)
        if notice.is_last:
            self._queues.end_task(bodies.task)
        result = NotifyResult(
            deliveries=_notified([*earlier, *added]),
            refused=tuple(refused),
            unwanted=unwanted,
            at=self._now,
        )
        if key is not None:
            earlier += map(_enqueued, added)
        return result

    def _add(
        self, queue: Queue, body: bytes, notice: Notice, status: StatusMark | None
    ) -> NewDelivery:
        """Add an update to a queue: in flight if a slot or its chain has a place, else pending."""
        worker, recipient = notice.worker, queue.recipient
        delivery_id = next(self._ids)
        sealed = self._enqueuer.vault.seal_body(delivery_id, body)
        reserved: Reservation | None = None
        claim: Claim | None = None
        if worker is not None and not recipient.paused:
            reserved = worker.reserve(queue, len(body), self._now)
            if reserved is not None:
                claim = self._claim = self._claim or worker.claim_at(self._now)
        new = self._queues.add(
            queue,
            delivery_id,
            sealed,
            now=self._now,
            status=status,
            idempotency_key=notice.idempotency_key,
            claim=claim,
            traceparent=notice.traceparent,
        )
        if reserved is not None:
            to = self._enqueuer.routes.known(recipient.id, recipient.revision)
            chain = reserved if isinstance(reserved, Chain) else None
            notice.claimed.append(Claimed(new, to, self._since, chain=chain))
            if to is None:
                self._unrouted.append(notice.claimed[-1])
        elif new.head:
            notice.some_wait = self._some_wait = True
        return new

    def finish(self) -> Script[None]:
        """Write the added deliveries, wake workers if one is due, and update the quotas."""
        enqueuer = self._enqueuer
        yield from self._queues.write(self._now)
        if self._some_wait:
            yield from enqueuer.database.wake()
        if self._unrouted:
            yield from read_subscriptions(self._unrouted)
        for owner, quota in self._quota.items():
            used = quota - self._left[owner]
            if owner is None:
                enqueuer.whole_backlog.add(None, used)
            else:
                enqueuer.owner_backlog.add(owner, used)

    def _require_capacity(self, queue: Queue, notice: Notice) -> Script[None]:
        """Check that one more delivery fits; with `coalesce`, drop superseded statuses for it.

        One delivery of each subscription may exceed the limits, for the end of its task: clients
        always learn of it.

        Raises:
            BacklogFullError: It does not fit.
        """
        enqueuer, recipient = self._enqueuer, queue.recipient
        yield from self._queues.write(self._now)
        backlog = yield from enqueuer.outbox.backlog(recipient.id, self._max_backlog)
        left = min(self._left[recipient.owner], self._left[None])
        if backlog < self._max_backlog and left > 0:
            return
        if enqueuer.options.coalesce:
            dropped = yield from enqueuer.outbox.supersede(
                recipient.id,
                by_new_status=_status_mark(notice.bodies.update) is not None,
                now=self._now,
            )
            if dropped:  # at least one leaves for the one that is added, however full it is
                yield from self._queues.refresh(queue)
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
    queues: Sequence[Queue], update: AnyUpdate, earlier: Sequence[Enqueued]
) -> tuple[list[Queue], set[WireVersion], int]:
    """Return the queues that lack an update, the versions wanted, and how many do not want it."""
    has_it = {each.subscription_id for each in earlier} if earlier else ()
    without, versions, unwanted = list[Queue](), set[WireVersion](), 0
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


def _enqueued(new: NewDelivery) -> Enqueued:
    return Enqueued(new.id, new.subscription_id, new.owner, new.config_id, new.update_sha256)


def _cancel(notices: Sequence[Notice]) -> None:
    for notice in notices:
        if notice.claimed:
            notice.cancel()


def _notified(stored: list[Enqueued | NewDelivery]) -> tuple[NotifiedDelivery, ...]:
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


def _status_mark(update: AnyUpdate) -> StatusMark | None:
    if update.kind in (UpdateKind.ARTIFACT_UPDATE, UpdateKind.MESSAGE):
        return None
    return StatusMark.BARE if update.is_bare else StatusMark.FULL
