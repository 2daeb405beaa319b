"""From a task update to one delivery per subscription, as scripts, within the limits."""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from pushkit.a2a import AnyUpdate, UpdateKind, WireVersion
from pushkit.delivery.bodies import Bodies
from pushkit.delivery.chain import Chain
from pushkit.delivery.limits import Quota
from pushkit.delivery.lines import Line, Lines
from pushkit.delivery.notify_result import NotifiedDelivery, NotifyResult, RefusedRecipient
from pushkit.delivery.route import Routes
from pushkit.delivery.slots import Claimed, Place, find_subscriptions
from pushkit.delivery.worker import Worker
from pushkit.errors import BacklogFullError, IdempotencyConflictError, PushkitError
from pushkit.outbox.idempotency import Enqueued, IdempotencyKey, TaskKey, find_enqueued
from pushkit.outbox.model import Claim, NewDelivery, StatusMark, new_delivery_ids
from pushkit.outbox.store import OutboxStore
from pushkit.record import field, record
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.storage.script import DEFERRED, Deferred, Group, Refused, Script, alone
from pushkit.subscriptions.model import Recipient
from pushkit.subscriptions.store import SubscriptionStore

_BY_SUBSCRIPTION = operator.attrgetter("subscription_id")


@record(frozen=False, slots=True, kw_only=True, eq=False)
class Notice:
    """An update that is to be stored."""

    update: AnyUpdate
    bodies: Bodies
    tenant: str
    task_id: str
    idempotency_key: IdempotencyKey | None = None  # the caller's key, if any
    traceparent: str | None = None  # the trace that it belongs to, if there is one
    # Whose slots its deliveries may take the moment they are stored; None for nobody's.
    worker: Worker | None = None
    # What of it is in flight as soon as it is stored, in places of this process.
    claimed: list[Claimed] = field(default_factory=list)
    some_wait: bool = False  # whether something of it waits for a claim

    @property
    def is_last(self) -> bool:
        """Whether the task has ended with it."""
        return self.update.state is not None and self.update.state.terminal

    def cancel(self) -> None:
        """Free the places that were taken."""
        if self.worker is not None:
            self.worker.slots.give_up(self.claimed)
        self.claimed.clear()

    def begin(self, stored: NotifyResult | Unasked | BaseException) -> None:
        """Begin what was stored in a place, or free the places of what was not stored."""
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
    def sought(self) -> TaskKey | None:
        """The key under which something may have been stored before, if there is one."""
        key = self.idempotency_key
        return None if key is None or key.is_new else TaskKey(self.tenant, self.task_id, key.key)


@record(frozen=True, slots=True)
class Unasked:
    """What an update comes to of which nothing was written: snapshots must be asked for first."""

    of: set[tuple[WireVersion, str]]  # version and owner of each


@record(frozen=True, slots=True, kw_only=True)
class Enqueuer:
    """Turns updates into deliveries."""

    database: Database  # whose clock counts, and whose workers are woken
    max_backlog: int  # the most unfinished deliveries of one subscription
    whole_backlog: Quota[None]  # of the whole outbox
    owner_backlog: Quota[str]  # of each owner in it
    coalesce: bool  # drop superseded `working` statuses before an update is refused
    routes: Routes  # the worker's, for what it begins with at once
    vault: Vault = field(default_factory=Vault)  # seals bodies, where that is asked for
    outbox: OutboxStore = field(default_factory=OutboxStore)
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)
    # `enqueue`, one object for all who call it.
    group: Group[Notice, NotifyResult | Unasked] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", self.enqueue)

    async def store(self, notice: Notice, connection: object | None = None) -> NotifyResult:
        """Store an update for every subscription that wants it, as far as each can have it.

        Args:
            connection: The caller's own, whose transaction this becomes a part of.

        Raises:
            IdempotencyConflictError: The key was used with another update.
            StorageError: The database refused; nothing was stored.
        """
        while True:
            found: NotifyResult | Unasked
            if connection is None:
                # Also where the caller is cancelled, what is stored in a slot is begun.
                found = await self.database.write_together(self.group, notice, notice.begin)
            else:
                found = await self.database.write_on(connection, alone(self.enqueue, notice))
            if isinstance(found, NotifyResult):
                return found
            # Nobody is asked twice, so that this ends.
            await notice.bodies.ask(found.of)

    def enqueue(
        self, notices: Sequence[Notice], /, *, wait: bool = True
    ) -> Script[list[NotifyResult | Unasked | Deferred | Refused]]:
        """Store updates, in order; return what each came to.

        Every recipient stands alone: one that cannot have an update keeps it from no other. Of an
        update that is refused as a whole, or has to ask for snapshots, nothing is written.

        Locks the subscriptions in id order, then waits for nothing else: two of these never wait
        for each other. A caller's own transaction keeps the locks until it ends.

        Args:
            wait: Whether to wait for subscriptions that somebody holds, or to defer what goes
                to them.
        """
        _cancel(notices)  # an attempt before this one may have failed in its commit
        try:
            tasks = tuple(dict.fromkeys([(notice.tenant, notice.task_id) for notice in notices]))
            recipients, deferred = yield from self._hold(tasks, wait=wait)
            since = time.perf_counter()
            now = yield from self.database.now()
            sought = [notice.sought for notice in notices]
            enqueued = yield from find_enqueued([key for key in dict.fromkeys(sought) if key])
            adding = _Adding(self, now, since, enqueued)
            yield from adding.open(recipients)
            results: list[NotifyResult | Unasked | Deferred | Refused] = []
            for notice, key in zip(notices, sought, strict=True):
                if (notice.tenant, notice.task_id) in deferred:
                    results.append(DEFERRED)
                else:
                    results.append((yield from adding.add(notice, key)))
            yield from adding.end()
        except BaseException:
            _cancel(notices)
            raise
        return results

    def _hold(
        self, tasks: Sequence[tuple[str, str]], *, wait: bool
    ) -> Script[tuple[list[Recipient], set[tuple[str, str]]]]:
        """Hold the subscriptions to some tasks; return them, and the tasks that are deferred."""
        if wait:
            return (yield from self.subscriptions.lock_recipients(tasks)), set()
        recipients = yield from self.subscriptions.lock_recipients(tasks, wait=False)
        held = Counter((each.tenant, each.task_id) for each in recipients)
        there = yield from self.subscriptions.count_recipients(tasks)
        deferred = {task for task, count in there.items() if count != held[task]}
        return [
            each for each in recipients if (each.tenant, each.task_id) not in deferred
        ], deferred


class _Adding:
    """Updates on their way into the outbox, and what they take of the room there."""

    def __init__(
        self,
        enqueuer: Enqueuer,
        now: datetime,
        since: float,  # the same, by `time.perf_counter`
        enqueued: dict[TaskKey, list[Enqueued]],
    ) -> None:
        self._enqueuer = enqueuer
        self._now = now
        self._since = since
        self._ids = new_delivery_ids(now)
        self._enqueued = enqueued
        self._lines = Lines(enqueuer.outbox, enqueuer.subscriptions)
        # What each owner may still add, and (None) all of them together; and how much that was.
        self._left: dict[str | None, int] = {}
        self._quota: dict[str | None, int] = {}
        self._unrouted: list[Claimed] = []  # whose way is not remembered
        self._some_wait = False

    def open(self, recipients: Sequence[Recipient]) -> Script[None]:
        """Look at what waits for those whose rows are held, and at the room that there is."""
        enqueuer = self._enqueuer
        yield from self._lines.open(recipients)
        self._quota[None] = yield from enqueuer.whole_backlog.of(None, self._now)
        for owner in {recipient.owner for recipient in recipients}:
            self._quota[owner] = yield from enqueuer.owner_backlog.of(owner, self._now)
        self._left = dict(self._quota)

    def add(
        self, notice: Notice, sought: TaskKey | None
    ) -> Script[NotifyResult | Unasked | Refused]:
        """Add an update to every line that wants it and has room for it.

        Args:
            notice: The update.
            sought: Its key; what is added to what the key made already, it made, too.
        """
        made = [] if sought is None else self._enqueued.setdefault(sought, [])
        try:
            if made and notice.idempotency_key is not None:
                notice.idempotency_key.check(made)
        except IdempotencyConflictError as exc:
            return Refused(exc)
        update, bodies, left = notice.update, notice.bodies, self._left
        lines = self._lines.of_task(notice.tenant, notice.task_id)
        missing, versions, unwanted = _wanting(lines, update, made)
        if not versions.isdisjoint(bodies.by_owner):
            unasked = bodies.unasked(line.recipient for line in missing)
            if unasked:
                return Unasked(unasked)
        bodies.note(versions)
        status = _status_mark(update)
        added, refused, notice.some_wait = list[NewDelivery](), [], False
        for line in missing:
            recipient = line.recipient
            try:
                body = bodies.of(recipient)
                has_room = left[recipient.owner] > 0 < left[None]
                if not has_room or line.length >= self._enqueuer.max_backlog:
                    yield from self._make_room(line, notice)
            except PushkitError as exc:  # of it nothing was written, and nothing dropped
                refused.append(_refusal(recipient, exc))
                continue
            new = self._add(line, body, notice, status)
            left[recipient.owner] -= 1
            left[None] -= 1
            added.append(new)
            if self._lines.is_heavy:
                yield from self._lines.write(self._now)
        if notice.is_last:
            self._lines.end(notice.tenant, notice.task_id)
        result = NotifyResult(
            deliveries=_notified([*made, *added]),
            refused=tuple(refused),
            unwanted=unwanted,
            at=self._now,
        )
        if sought is not None:
            made += map(_enqueued, added)
        return result

    def _add(
        self, line: Line, body: bytes, notice: Notice, status: StatusMark | None
    ) -> NewDelivery:
        """Add an update to a line, in flight already if it can have a place."""
        worker, recipient = notice.worker, line.recipient
        delivery_id = next(self._ids)
        sealed = self._enqueuer.vault.seal_body(delivery_id, body)
        place: Place | None = None
        claim: Claim | None = None
        if worker is not None and not recipient.paused:
            seq, is_next = line.last_seq + 1, line.oldest is None
            place = worker.reserve(recipient, seq, len(body), self._now, is_next=is_next)
            claim = None if place is None else worker.lease_of(self._now)
        new = self._lines.add(
            line,
            delivery_id,
            sealed,
            now=self._now,
            status=status,
            idempotency_key=notice.idempotency_key,
            claim=claim,
            traceparent=notice.traceparent,
        )
        if place is not None:
            to = self._enqueuer.routes.known(recipient.id, recipient.revision)
            chain = place if isinstance(place, Chain) else None
            notice.claimed.append(Claimed(new, to, self._since, chain=chain))
            if to is None:
                self._unrouted.append(notice.claimed[-1])
        elif new.head:
            notice.some_wait = self._some_wait = True
        return new

    def end(self) -> Script[None]:
        """Write what was added, and wake who delivers what waits."""
        enqueuer = self._enqueuer
        yield from self._lines.write(self._now)
        if self._some_wait:
            yield from enqueuer.database.wake()
        if self._unrouted:
            yield from find_subscriptions(self._unrouted)
        for owner, quota in self._quota.items():
            taken = quota - self._left[owner]
            if owner is None:
                enqueuer.whole_backlog.added(None, taken)
            else:
                enqueuer.owner_backlog.added(owner, taken)

    def _make_room(self, line: Line, notice: Notice) -> Script[None]:
        """See that one more fits, dropping what was superseded if that was asked for.

        Each subscription has one place more, for the end of its task: a client always hears of it.

        Raises:
            BacklogFullError: It does not fit.
        """
        enqueuer, recipient = self._enqueuer, line.recipient
        yield from self._lines.write(self._now)
        backlog = yield from enqueuer.outbox.backlog(recipient.id, enqueuer.max_backlog)
        left = min(self._left[recipient.owner], self._left[None])
        if backlog < enqueuer.max_backlog and left > 0:
            return
        if enqueuer.coalesce:
            dropped = yield from enqueuer.outbox.supersede(
                recipient.id, by_new_status=_status_mark(notice.update) is not None, now=self._now
            )
            if dropped:  # one goes in for one at least that goes out, however full it is
                yield from self._lines.look_again(line)
                self._left[recipient.owner] += dropped
                self._left[None] += dropped
                return
        if notice.is_last and not line.ended:  # the reserved place
            return
        if backlog >= enqueuer.max_backlog:
            raise BacklogFullError(
                f"{backlog} deliveries to {recipient.origin} are waiting, expected fewer than"
                f" {enqueuer.max_backlog} (max_backlog_per_subscription): notify again later, or"
                " remove the subscription"
            )
        raise BacklogFullError(
            "the outbox is full (max_backlog), or what owner"
            f" {recipient.owner!r} may have in it (max_backlog_per_owner):"
            " notify again later, or let more workers deliver"
        )


def _wanting(
    lines: Sequence[Line], update: AnyUpdate, made: Sequence[Enqueued]
) -> tuple[list[Line], set[WireVersion], int]:
    """Return the lines that want an update and have it not yet; its versions; and who does not."""
    has_it = {each.subscription_id for each in made} if made else ()
    missing, versions, unwanted = list[Line](), set[WireVersion](), 0
    for line in lines:
        recipient = line.recipient
        if not recipient.wanted.accepts(update):
            unwanted += 1
            continue
        versions.add(recipient.version)
        if recipient.id not in has_it:
            missing.append(line)
    return missing, versions, unwanted


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
