"""From a task update to one delivery per subscription, as scripts, within the limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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
from pushkit.delivery.lines import Line, Lines
from pushkit.errors import BacklogFullError, PushkitError
from pushkit.outbox import (
    PLAIN,
    Envelopes,
    IdempotencyKey,
    OutboxStore,
    StatusMark,
    find_enqueued,
)
from pushkit.storage import APART, Apart, Database, Refused, Script, alone
from pushkit.subscriptions import Owner, Recipient, SubscriptionStore

__all__ = ["Enqueuer", "Notice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An update that is to be stored.

    Attributes:
        update: What happened.
        bodies: Its bodies.
        tenant: The tenant of its task.
        idempotency_key: The caller's key, if any.
    """

    update: TaskUpdate
    bodies: Bodies
    tenant: str
    idempotency_key: IdempotencyKey | None = None

    @property
    def task_id(self) -> str:
        """The task that it is about."""
        return self.update.task_id or ""

    @property
    def is_last(self) -> bool:
        """Whether the task has ended with it."""
        return self.update.state is not None and self.update.state.terminal


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

    async def store(self, notice: Notice, connection: object | None = None) -> list[str]:
        """Store an update for every subscription that wants it; return the delivery ids.

        Args:
            notice: The update.
            connection: The caller's own, whose transaction this becomes a part of.

        Raises:
            BacklogFullError: There is no room for one of them; nothing was stored.
            IdempotencyConflictError: The key was used with another update.
            StorageError: The database refused; nothing was stored.
        """
        if connection is None:
            return await self.database.write_together(self.enqueue, notice)
        return await self.database.write_on(connection, alone(self.enqueue, notice))

    def enqueue(
        self, notices: Sequence[Notice], /, *, wait: bool = True
    ) -> Script[list[list[str] | Apart | Refused]]:
        """Store updates, in order; return the delivery ids of each.

        Locks the subscriptions in id order, then waits for nothing else: two of these never wait
        for each other. A caller's own transaction keeps the locks until it ends.

        Args:
            notices: The updates.
            wait: Whether to wait for subscriptions that somebody holds, or to leave apart what goes
                to them.
        """
        tasks = tuple(dict.fromkeys((notice.tenant, notice.task_id) for notice in notices))
        recipients, apart = yield from self._hold(tasks, wait=wait)
        now = yield from self.database.now()
        lines = Lines(self.outbox, self.subscriptions)
        yield from lines.open(recipients)
        whole = _Share((yield from self.whole_backlog.of(None, now)))
        adding = _Adding(self, now, lines, whole)
        ids: list[list[str] | Apart | Refused] = []
        for notice in notices:
            if (notice.tenant, notice.task_id) in apart:
                ids.append(APART)
            else:
                ids.append((yield from adding.add_or_refuse(notice)))
        yield from adding.end()
        return ids

    def _hold(
        self, tasks: Sequence[tuple[str, str]], *, wait: bool
    ) -> Script[tuple[list[Recipient], set[tuple[str, str]]]]:
        """Hold the subscriptions to some tasks; return them, and the tasks to leave apart."""
        if wait:
            return (yield from self.subscriptions.lock_recipients(tasks)), set()
        recipients = yield from self.subscriptions.lock_recipients(tasks, wait=False)
        held = Counter((each.tenant, each.task_id) for each in recipients)
        there = yield from self.subscriptions.count_recipients(tasks)
        apart = {task for task, count in there.items() if count != held[task]}
        return [each for each in recipients if (each.tenant, each.task_id) not in apart], apart


@dataclass(slots=True, eq=False)
class _Share:
    """What somebody may still add."""

    left: int
    taken: int = 0

    def take(self, number: int) -> None:
        self.left -= number
        self.taken += number


class _Adding:
    """Updates on their way into the outbox, and what they take of the room there."""

    def __init__(self, enqueuer: Enqueuer, now: datetime, lines: Lines, whole: _Share) -> None:
        self._enqueuer = enqueuer
        self._now = now
        self._lines = lines
        self._whole = whole
        self._shares: dict[Owner, _Share] = {}
        self._has_begun = False

    def add_or_refuse(self, notice: Notice) -> Script[list[str] | Refused]:
        """Add an update, or return why not; raise that once something of it may be written."""
        self._has_begun = False
        try:
            return (yield from self.add(notice))
        except PushkitError as exc:
            if self._has_begun:
                raise
            return Refused(exc)

    def add(self, notice: Notice) -> Script[list[str]]:
        """Add an update to every line that wants it; return the delivery ids."""
        enqueuer, key, mark = self._enqueuer, notice.idempotency_key, _status_mark(notice.update)
        ids: dict[str, str] = {}
        if key is not None:
            yield from self._lines.write(self._now)
            ids = yield from find_enqueued(key, tenant=notice.tenant, task_id=notice.task_id)
        lines = self._lines.of_task(notice.tenant, notice.task_id)
        wanting = [line for line in lines if line.recipient.wanted.accepts(notice.update)]
        bodies = notice.bodies.of({line.recipient.version for line in wanting})
        for line in wanting:
            recipient = line.recipient
            if recipient.id not in ids:
                share = yield from self._share_of(recipient)
                if not (share.left > 0 < self._whole.left and line.length < enqueuer.max_backlog):
                    yield from self._make_room(line, share, by_new_status=mark is not None)
                self._take(share, 1)
                ids[recipient.id] = self._lines.add(
                    line,
                    bodies[recipient.version],
                    now=self._now,
                    envelopes=enqueuer.envelopes,
                    status=mark,
                    idempotency_key=key,
                )
                if self._lines.is_heavy:
                    yield from self._lines.write(self._now)
        if notice.is_last:
            self._lines.end(notice.tenant, notice.task_id)
        return [ids[subscription_id] for subscription_id in sorted(ids)]

    def end(self) -> Script[None]:
        """Write what was added, and wake who delivers it."""
        enqueuer = self._enqueuer
        yield from self._lines.write(self._now)
        if self._shares:
            yield from enqueuer.database.wake()
        enqueuer.whole_backlog.added(None, self._whole.taken)
        for owner, share in self._shares.items():
            enqueuer.owner_backlog.added(owner, share.taken)

    def _share_of(self, recipient: Recipient) -> Script[_Share]:
        owner = Owner(recipient.tenant, recipient.owner)
        share = self._shares.get(owner)
        if share is None:
            share = _Share((yield from self._enqueuer.owner_backlog.of(owner, self._now)))
            self._shares[owner] = share
        return share

    def _take(self, share: _Share, number: int) -> None:
        self._has_begun = True
        share.take(number)
        self._whole.take(number)

    def _make_room(self, line: Line, share: _Share, *, by_new_status: bool) -> Script[None]:
        """See that one more fits, dropping what was superseded if that helps and was asked for."""
        enqueuer, recipient = self._enqueuer, line.recipient
        yield from self._lines.write(self._now)
        backlog = yield from enqueuer.outbox.backlog(recipient.id, enqueuer.max_backlog)
        fits = backlog < enqueuer.max_backlog and min(share.left, self._whole.left) > 0
        if not fits and enqueuer.coalesce:
            self._has_begun = True
            dropped = yield from enqueuer.outbox.supersede(
                recipient.id, by_new_status=by_new_status, now=self._now
            )
            yield from self._lines.look_again(line)
            self._take(share, -dropped)
            backlog -= dropped
        if backlog >= enqueuer.max_backlog:
            raise BacklogFullError(
                f"task {recipient.task_id!r}: {backlog} deliveries to {recipient.origin} are"
                f" waiting, expected fewer than {enqueuer.max_backlog}: nothing was stored;"
                " notify again later, or remove the subscription"
            )
        if min(share.left, self._whole.left) <= 0:
            raise BacklogFullError(
                "the outbox is full (max_backlog), or what owner"
                f" {recipient.owner!r} may have in it (max_backlog_per_owner): nothing was"
                " stored; notify again later, or let more workers deliver"
            )


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
