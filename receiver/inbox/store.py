"""The inbox: accepted notifications, until every callback has had them.

| script | from | to | besides |
|---|---|---|---|
| `store` | nothing | received | the head, if nothing of its task is before it |
| `store` with a lease | nothing | in progress | the head; the lease begins |
| `claim`, `follow` | received | in progress | the lease begins; one attempt more |
| `settle_done`: all had it, or none wants it | in progress | done | the next is the head |
| `settle_failed`: retried | in progress | received | waits as the schedule says |
| `settle_failed`: given up | in progress | dead | the next is the head |
| `put_off`: share used up, or often broken off | in progress | received | no attempt; waits |
| `give_back`: its worker ends | in progress | received | no attempt |
| `take_over`, `claim`: worker dead, lease over | in progress | received | |
| `redrive`, of `inspection` | dead; done, unwanted | received | attempts, age begin anew |

Nothing else writes `status`.

The unfinished notifications of a task are a queue, in the order of their ids. Only its oldest is
the head, and only heads are claimed: a claim reads an index of heads that are due, sender by
sender, however long the queues are. A transaction that stores, settles or redrives holds the task
(`task_lock`, for `Database.hold`): the mark is never lost, and ids grow in the order of
commits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from pushkit.storage.paging import read_record
from pushkit.storage.script import (
    Row,
    Script,
    Statement,
    filled,
    from_micros,
    insert_rows,
    moment_or_none,
    run_for_ids,
    run_for_rows,
    slices,
    to_micros,
)
from receiver.inbox.model import (
    CallbackState,
    ClaimedNotification,
    InboxStatus,
    Lease,
    NewNotification,
    Notification,
    StoredNotification,
)

_LEASE_EXPIRED = "lease_expired"
_WORKER_DIED = "worker_died"
_PUT_OFF = "put_off"

_STORE = (
    f"INSERT INTO pushkit_inbox ({', '.join(NewNotification._fields)}) VALUES $rows"
    " ON CONFLICT (sender, delivery_id) DO NOTHING RETURNING id, sender, delivery_id"
)

# Materialized: PostgreSQL would otherwise evaluate it again, and lock more rows for one update.
_CLAIM = (
    "WITH due AS MATERIALIZED (SELECT i.id FROM pushkit_inbox i"
    " WHERE i.sender = $5 AND i.head = 1 AND i.status = 'received' AND i.not_before <= $1"
    " ORDER BY i.not_before, i.id LIMIT CAST($4 AS BIGINT) FOR UPDATE OF i SKIP LOCKED)"
    " UPDATE pushkit_inbox SET status = 'in_progress', lease_worker = $2, lease_until = $3,"
    " attempts = attempts + 1 WHERE id IN (SELECT id FROM due) RETURNING *"
)

# One step in the index for each sender, however many notifications it has.
_HEADS = "head = 1 AND status = 'received'"
_SENDERS = (
    "WITH RECURSIVE senders (sender) AS ("
    f"SELECT MIN(sender) FROM pushkit_inbox WHERE {_HEADS} UNION ALL"
    " SELECT (SELECT MIN(i.sender) FROM pushkit_inbox i"
    f" WHERE {_HEADS} AND i.sender > senders.sender)"
    " FROM senders WHERE senders.sender IS NOT NULL)"
    " SELECT sender, (SELECT MIN(not_before) FROM pushkit_inbox i"
    f" WHERE i.sender = senders.sender AND {_HEADS}) AS due"
    " FROM senders WHERE sender IS NOT NULL"
)

StoredIds: TypeAlias = dict[tuple[str, str], int]
"""The ids of stored notifications, by sender and delivery id."""

Divide: TypeAlias = Callable[[Sequence[str], int, Mapping[str, int]], Sequence[tuple[str, int]]]
"""Returns how many notifications to claim of each sender, given the senders with something due, how
many may be claimed in all, and how many were already claimed of each."""


def task_lock(sender: str, task_id: str) -> str:
    """Return the name of the lock under which the head of a task changes."""
    return f"task {sender} {task_id}"


def locks_of(notification: StoredNotification | Notification) -> Sequence[str]:
    """Return the names of the locks under which a stored notification changes."""
    sender, task_id = notification.sender, notification.task_id
    return [] if task_id is None else [task_lock(sender, task_id)]


class Inbox:
    """Scripts over `pushkit_inbox` and its side tables."""

    # --- receiving -----------------------------------------------------------------------------

    def store(self, notifications: Sequence[NewNotification]) -> Script[StoredIds]:
        """Store notifications that the inbox does not have already; return their ids."""
        rows = yield from insert_rows(_STORE, filled(notifications))
        return {(sender, delivery_id): found for found, sender, delivery_id in rows}

    def has(self, sender: str, delivery_id: str, body: bytes) -> Script[bool]:
        """Return whether the inbox has a delivery with exactly this body."""
        rows = yield Statement(
            "SELECT 1 FROM pushkit_inbox WHERE sender = $1 AND delivery_id = $2 AND body = $3",
            (sender, delivery_id, body),
        )
        return bool(rows)

    # --- claiming ------------------------------------------------------------------------------

    def claim(
        self,
        lease: Lease,
        *,
        limit: int,
        now: datetime,  # leases that ended by then are void
        divide: Divide,
        # The ids that this worker holds: it must not claim them a second time after its clock was
        # set, or the machine was suspended.
        held: Sequence[int] = (),
        spare_others: bool = False,  # whether other workers keep leases that ended
    ) -> Script[list[ClaimedNotification]]:
        """Claim up to `limit` notifications that are due; only the head of each task."""
        moment, until = to_micros(now), to_micros(lease.until)
        leased = yield Statement(
            "SELECT MIN(lease_until) AS until FROM pushkit_inbox WHERE status = 'in_progress'"
        )
        if leased[0]["until"] is not None and leased[0]["until"] <= moment:
            yield from self.keep_leases(held, lease.worker, lease.until)
            if not spare_others:
                yield Statement(
                    "UPDATE pushkit_inbox SET status = 'received', lease_worker = NULL,"
                    f" last_error = '{_LEASE_EXPIRED}' WHERE id IN (SELECT id FROM pushkit_inbox"
                    " WHERE status = 'in_progress' AND lease_until <= $1 FOR UPDATE SKIP LOCKED)",
                    (moment,),
                )
        rows = yield from self._claim(lease.worker, limit, moment, until, divide)
        if not rows:
            return []
        called = yield Statement(
            "SELECT c.* FROM pushkit_inbox i JOIN pushkit_callbacks c ON c.notification_id = i.id"
            " WHERE i.status = 'in_progress' AND i.lease_worker = $1",
            (lease.worker,),
        )
        return sorted(_claimed(rows, called, lease.taken), key=lambda each: each.stored.id)

    def _claim(
        self, worker: str, limit: int, now: int, until: int, divide: Divide
    ) -> Script[list[Row]]:
        senders = yield Statement(_SENDERS)
        due = [str(row["sender"]) for row in senders if row["due"] <= now]
        taken: Counter[str] = Counter()
        rows: list[Row] = []
        while due and (shares := divide(due, limit - len(rows), taken)):
            for sender, number in shares:
                found = yield Statement(_CLAIM, (now, worker, until, number, sender))
                taken[sender] += len(found)
                rows += found
                if len(found) < number:  # there are no more of this sender: others get the rest
                    due.remove(sender)
        return rows

    def after_setback(self, now: datetime) -> Script[None]:
        """Let waits that were set in the future begin now, after the clock was set back.

        A notification is due from the moment when it was stored or redriven; after a callback
        failed, it waits from that moment. Both may then be in the future.
        """
        moment = to_micros(now)
        never_failed = "not_before <= COALESCE(redriven_at, received_at)"
        failed_at = (
            "(SELECT MAX(c.last_at) FROM pushkit_callbacks c"
            " WHERE c.notification_id = pushkit_inbox.id)"
        )
        due = f"status = 'received' AND not_before > $1 AND ({never_failed} OR {failed_at} > $1)"
        heads = yield Statement(
            f"SELECT 1 FROM pushkit_inbox WHERE head = 1 AND {due} LIMIT 1", (moment,)
        )
        if heads:
            yield Statement(
                f"UPDATE pushkit_inbox SET not_before = $1 + CASE WHEN {never_failed} THEN 0"
                f" ELSE not_before - {failed_at} END WHERE id IN"
                f" (SELECT id FROM pushkit_inbox WHERE {due} FOR UPDATE SKIP LOCKED)",
                (moment,),
            )

    def next_due(self, *, but: Collection[str] = ()) -> Script[datetime | None]:
        """Return when a claim may find something of other senders; None if all is finished."""
        senders = yield Statement(_SENDERS)
        leased = yield Statement(
            "SELECT MIN(lease_until) AS due FROM pushkit_inbox WHERE status = 'in_progress'"
        )
        moments = [row["due"] for row in senders if row["sender"] not in but]
        moments += [row["due"] for row in leased if row["due"] is not None]
        return moment_or_none(min(moments, default=None))

    def keep_leases(self, ids: Sequence[int], worker: str, until: datetime) -> Script[set[int]]:
        """Renew leases; return the ids that this worker still holds."""
        rows = yield from run_for_ids(
            "UPDATE pushkit_inbox SET lease_until = $1 WHERE lease_worker = $2"
            " AND status = 'in_progress' AND id IN ($ids) RETURNING id",
            sorted(ids),
            *(to_micros(until), worker),
        )
        return {int(row["id"]) for row in rows}

    def keep_claim(
        self, claimed: ClaimedNotification, worker: str, until: datetime
    ) -> Script[bool]:
        """Renew one lease; return whether this attempt of this worker still has it."""
        rows = yield Statement(
            "UPDATE pushkit_inbox SET lease_until = $1 WHERE id = $2 AND lease_worker = $3"
            " AND status = 'in_progress' AND attempts = $4 RETURNING id",
            (to_micros(until), claimed.stored.id, worker, claimed.attempts),
        )
        return bool(rows)

    def record_calls(
        self, calls: Sequence[tuple[int, str, str | None]], *, now: datetime
    ) -> Script[None]:
        """Record calls: notification, callback and error, at most one for each pair.

        A callback that is done stays done.
        """
        rows = [
            (notification_id, callback, int(error is None), 1, error, to_micros(now))
            for notification_id, callback, error in calls
        ]
        yield from insert_rows(
            "INSERT INTO pushkit_callbacks"
            " (notification_id, callback, done, attempts, last_error, last_at) VALUES $rows"
            " ON CONFLICT (notification_id, callback) DO UPDATE"
            " SET attempts = pushkit_callbacks.attempts + 1, done = excluded.done,"
            " last_error = excluded.last_error, last_at = excluded.last_at"
            " WHERE pushkit_callbacks.done = 0",
            slices(rows),
        )

    def settle_failed(
        self,
        claimed: ClaimedNotification,
        worker: str,
        *,
        now: datetime,
        retry_at: datetime | None,  # None for a dead letter
        error: str,
    ) -> Script[bool]:
        """Settle a failed notification; return False if this attempt no longer holds it."""
        status = InboxStatus.DEAD if retry_at is None else InboxStatus.RECEIVED
        rows = yield Statement(
            "UPDATE pushkit_inbox SET status = $3, not_before = COALESCE($4, not_before),"
            " finished_at = $5, last_error = $6, lease_worker = NULL, lease_until = NULL, head = 0,"
            " unmatched = 0"
            " WHERE id = $1 AND lease_worker = $2 AND status = 'in_progress' AND attempts = $7"
            " RETURNING id",
            (
                claimed.stored.id,
                worker,
                status.value,
                None if retry_at is None else to_micros(retry_at),
                to_micros(now) if retry_at is None else None,
                error,
                claimed.attempts,
            ),
        )
        if not rows:
            return False
        if claimed.stored.task_id is not None:
            task = claimed.stored.sender, claimed.stored.task_id
            yield from self.make_heads([*(yield from self.oldest_unfinished([task]))])
        elif retry_at is not None:
            yield from self.make_heads([claimed.stored.id])
        return True

    def settle_done(
        self,
        claimed: Sequence[ClaimedNotification],
        worker: str,
        *,
        now: datetime,
        unmatched: bool = False,  # whether no callback wants them
    ) -> Script[set[int]]:
        """Settle notifications that every callback has had; return the ids still held."""
        settled: set[int] = set()
        by_attempts: dict[int, list[int]] = {}
        for each in claimed:
            by_attempts.setdefault(each.attempts, []).append(each.stored.id)
        for attempts, found in by_attempts.items():
            rows = yield from run_for_ids(
                "UPDATE pushkit_inbox SET status = 'done', finished_at = $1,"
                " last_error = NULL, lease_worker = NULL, lease_until = NULL, head = 0,"
                f" unmatched = {int(unmatched)} WHERE lease_worker = $2"
                " AND status = 'in_progress' AND attempts = $3 AND id IN ($ids) RETURNING id",
                sorted(found),
                *(to_micros(now), worker, attempts),
            )
            settled.update([int(row["id"]) for row in rows])
        return settled

    def oldest_unfinished(
        self, tasks: Sequence[tuple[str, str]]
    ) -> Script[dict[int, tuple[str, str]]]:
        """Return, by id, the oldest unfinished notification of each task that has one."""
        rows = yield from run_for_rows(
            "WITH asked (sender, task_id) AS (VALUES $rows)"
            " SELECT DISTINCT sender, task_id, (SELECT MIN(i.id) FROM pushkit_inbox i"
            " WHERE i.sender = asked.sender AND i.task_id = asked.task_id"
            " AND i.status IN ('received', 'in_progress')) AS id FROM asked",
            tasks,
        )
        return {
            int(row["id"]): (row["sender"], row["task_id"]) for row in rows if row["id"] is not None
        }

    def make_heads(self, ids: Sequence[int]) -> Script[None]:
        """Make notifications, each the oldest unfinished of its task, heads."""
        yield from run_for_ids("UPDATE pushkit_inbox SET head = 1 WHERE id IN ($ids)", sorted(ids))

    def follow(
        self, ids: Sequence[int], lease: Lease, *, now: datetime
    ) -> Script[list[ClaimedNotification]]:
        """Claim notifications, each the oldest unfinished of its task, if they are due."""
        rows = yield from run_for_ids(
            "UPDATE pushkit_inbox SET head = 1, status = 'in_progress', lease_worker = $1,"
            " lease_until = $2, attempts = attempts + 1"
            " WHERE status = 'received' AND not_before <= $3 AND id IN ($ids) RETURNING *",
            sorted(ids),
            *(lease.worker, to_micros(lease.until), to_micros(now)),
        )
        again = [row["id"] for row in rows if row["attempts"] > 1 or row["redriven_at"] is not None]
        called = yield from run_for_ids(
            "SELECT * FROM pushkit_callbacks WHERE notification_id IN ($ids)", again
        )
        return _claimed(rows, called, lease.taken)

    # --- workers that end ----------------------------------------------------------------------

    def working(self) -> Script[list[str]]:
        """Return the names of the workers that hold notifications."""
        rows = yield Statement(
            "SELECT DISTINCT lease_worker FROM pushkit_inbox WHERE status = 'in_progress'"
        )
        return [str(row["lease_worker"]) for row in rows]

    def take_over(self, worker: str) -> Script[None]:
        """Give back a dead worker's notifications, before their leases end."""
        yield Statement(
            "UPDATE pushkit_inbox SET status = 'received', lease_worker = NULL,"
            f" last_error = '{_WORKER_DIED}' WHERE status = 'in_progress' AND lease_worker = $1",
            (worker,),
        )

    def give_back(self, worker: str, *, but: Collection[int] = ()) -> Script[None]:
        """Give back what a worker holds when it stops, but for ids whose calls still run.

        That was no attempt.
        """
        rows = yield Statement(
            "SELECT id FROM pushkit_inbox WHERE status = 'in_progress' AND lease_worker = $1",
            (worker,),
        )
        yield from run_for_ids(
            "UPDATE pushkit_inbox SET status = 'received', lease_worker = NULL,"
            " attempts = attempts - 1 WHERE status = 'in_progress' AND lease_worker = $1"
            " AND id IN ($ids)",
            [row["id"] for row in rows if row["id"] not in but],
            worker,
        )

    def put_off(self, claimed: ClaimedNotification, worker: str, until: datetime) -> Script[None]:
        """Put a notification off, and do not count this attempt."""
        yield Statement(
            "UPDATE pushkit_inbox SET status = 'received', lease_worker = NULL, lease_until = NULL,"
            f" attempts = attempts - 1, not_before = $4, last_error = '{_PUT_OFF}'"
            " WHERE id = $1 AND lease_worker = $2 AND status = 'in_progress' AND attempts = $3",
            (claimed.stored.id, worker, claimed.attempts, to_micros(until)),
        )

    # --- waiting for a task --------------------------------------------------------------------

    def of_task(
        self, task_id: str, *, sender: str, after: int = 0, limit: int = 100
    ) -> Script[list[StoredNotification]]:
        """Return a task's notifications after an id, in the order of acceptance."""
        rows = yield Statement(
            "SELECT * FROM pushkit_inbox WHERE task_id = $1 AND id > $2 AND sender = $3"
            " ORDER BY id LIMIT CAST($4 AS BIGINT)",
            (task_id, after, sender, limit),
        )
        return [_stored(row) for row in rows]

    def last_wanted(self, limit: int, *, max_bytes: int) -> Script[list[bytes]]:
        """Return the bodies, if not larger, of those that a callback had among the newest done."""
        rows = yield Statement(
            "SELECT body FROM (SELECT body, unmatched FROM pushkit_inbox WHERE status = 'done'"
            " ORDER BY finished_at DESC LIMIT CAST($1 AS BIGINT)) newest"
            " WHERE unmatched = 0 AND LENGTH(body) <= $2",
            (limit, max_bytes),
        )
        return [row["body"] for row in rows]

    def with_news(self, seen: Mapping[tuple[str, str], int]) -> Script[list[tuple[str, str]]]:
        """Return the tasks, by sender and id, that have a notification after the id seen."""
        rows = yield from run_for_rows(
            "WITH seen (sender, task_id, after) AS (VALUES $rows)"
            " SELECT DISTINCT sender, task_id FROM seen WHERE EXISTS (SELECT 1"
            " FROM pushkit_inbox i WHERE i.task_id = seen.task_id"
            " AND i.id > CAST(seen.after AS BIGINT) AND i.sender = seen.sender)",
            [(*key, str(after)) for key, after in seen.items()],
        )
        return [(row["sender"], row["task_id"]) for row in rows]


class TaskQueues:
    """The queues that new notifications join: whether each is empty, and the last `seq`."""

    def __init__(self) -> None:
        # The tasks, by sender and id, whose queues are not empty.
        self.unfinished: set[tuple[str, str]] = set()
        self._last: dict[tuple[str, str, str], int] = {}
        self._changed: set[tuple[str, str, str]] = set()

    def read(self, keys: Iterable[tuple[str, str, str]]) -> Script[None]:
        """Read the queue of each task, and the last `seq` of each sender, task and config."""
        rows = yield from run_for_rows(
            "WITH asked (sender, task_id, config_id) AS (VALUES $rows)"
            " SELECT asked.*, s.last_seq, EXISTS (SELECT 1 FROM pushkit_inbox i"
            " WHERE i.sender = asked.sender AND i.task_id = asked.task_id"
            " AND i.status IN ('received', 'in_progress')) AS waits"
            " FROM asked LEFT JOIN pushkit_sequences s ON s.sender = asked.sender"
            " AND s.task_id = asked.task_id AND s.config_id = asked.config_id",
            list(dict.fromkeys(keys)),
        )
        for sender, task_id, config_id, last_seq, waits in rows:
            self._last[sender, task_id, config_id] = last_seq or 0
            if waits:
                self.unfinished.add((sender, task_id))

    def compare(self, key: tuple[str, str, str], seq: int) -> tuple[int, bool]:
        """Return how many updates are missing before a `seq`, and whether it is late."""
        last = self._last[key]
        if seq <= last:
            return 0, True
        self._last[key] = seq
        self._changed.add(key)
        return seq - last - 1, False

    def write(self, now: datetime) -> Script[None]:
        """Write the `seq` numbers that grew."""
        yield from insert_rows(
            "INSERT INTO pushkit_sequences (sender, task_id, config_id, last_seq, updated_at)"
            " VALUES $rows ON CONFLICT (sender, task_id, config_id)"
            " DO UPDATE SET last_seq = excluded.last_seq, updated_at = excluded.updated_at",
            slices([(*key, self._last[key], to_micros(now)) for key in sorted(self._changed)]),
        )


def _claimed(
    rows: Iterable[Row], called: Iterable[Row], leased_at: float
) -> list[ClaimedNotification]:
    """Return rows of the inbox with their rows of `pushkit_callbacks`."""
    callbacks: defaultdict[int, dict[str, CallbackState]] = defaultdict(dict)
    for row in called:
        callbacks[row["notification_id"]][row["callback"]] = read_record(CallbackState, row)
    return [
        ClaimedNotification(
            stored=_stored(row),
            attempts=row["attempts"],
            since=from_micros(row["redriven_at"] or row["received_at"]),
            broken_off=row["last_error"] in (_LEASE_EXPIRED, _WORKER_DIED),
            callbacks=callbacks[row["id"]],
            leased_at=leased_at,
        )
        for row in rows
    ]


def _stored(row: Row) -> StoredNotification:
    return StoredNotification(
        id=row["id"],
        sender=row["sender"],
        kid=row["kid"],
        delivery_id=row["delivery_id"],
        task_id=row["task_id"],
        config_id=row["config_id"],
        seq=row["seq"],
        missing=row["missing"],
        late=bool(row["late"]),
        issued_at=from_micros(row["issued_at"]),
        received_at=from_micros(row["received_at"]),
        body=bytes(row["body"]),
        traceparent=row["traceparent"],
    )
