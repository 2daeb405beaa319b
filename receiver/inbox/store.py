"""The inbox: accepted notifications, until every callback has had them.

One script per arrow:

    RECEIVED ─claim→ IN_PROGRESS ─every callback done→ DONE
       ▲                 ├─retry→ RECEIVED (not_before)
       │                 └─give up→ DEAD ─redrive→ RECEIVED (so is DONE that no callback wanted)
       └── an expired lease, or a dead worker's, counts as RECEIVED again

Order is kept by `head`: of each task's unfinished notifications only the oldest is the head, and
only heads are claimed. A claim therefore looks at an index of heads that are due, sender by
sender, whatever the backlog behind them. Whoever stores, settles or redrives holds the task
(`task_lock`, for `Database.exclusively`): the mark is never lost in between, and ids grow in the
order of commits.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from pushkit.storage import (
    Row,
    Script,
    Statement,
    among,
    chunks,
    from_micros,
    moment_or_none,
    padded,
    to_micros,
)
from receiver.inbox.model import (
    CallbackState,
    ClaimedNotification,
    InboxStatus,
    StoredNotification,
)

__all__ = ["Inbox", "callback_state", "task_lock"]

_LEASE_EXPIRED = "lease_expired"
_WORKER_DIED = "worker_died"
_PUT_OFF = "put_off"
_UNFINISHED = "status IN ('received', 'in_progress')"

# Materialized: PostgreSQL must not lock a second handful for the same update.
_CLAIM = (
    "WITH due AS MATERIALIZED (SELECT i.id FROM pushkit_inbox i"
    " WHERE i.sender = $5 AND i.head = 1 AND i.status = 'received' AND i.not_before <= $1"
    " ORDER BY i.not_before, i.id LIMIT CAST($4 AS BIGINT) FOR UPDATE OF i SKIP LOCKED)"
    " UPDATE pushkit_inbox SET status = 'in_progress', lease_worker = $2, lease_until = $3,"
    " attempts = attempts + 1 WHERE id IN (SELECT id FROM due) RETURNING *"
)

# One step in the index for each sender, however much there is of each.
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

Divide: TypeAlias = Callable[[Sequence[str], int, Mapping[str, int]], Sequence[tuple[str, int]]]
"""Says which of the senders that are due may take how many of the free places, besides what each
was given just now."""


def task_lock(sender: str, task_id: str) -> str:
    """Return the name to hold for changing which notification of a task is the head."""
    return f"task {sender} {task_id}"


class Inbox:
    """Scripts over `pushkit_inbox` and its side tables."""

    # --- receiving -----------------------------------------------------------------------------

    def store(
        self,
        *,
        sender: str,
        delivery_id: str,
        kid: str,
        issued_at: datetime,
        task_id: str | None,
        config_id: str | None,
        seq: int | None,
        body: bytes,
        now: datetime,
    ) -> Script[int | None]:
        """Store one notification and return its id; None if the inbox has the delivery already."""
        missing, late = yield from self._sequence(sender, task_id, config_id, seq, now)
        rows = yield Statement(
            "INSERT INTO pushkit_inbox (sender, delivery_id, task_id, config_id, seq, missing,"
            " late, kid, issued_at, received_at, not_before, body, head)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, $11,"
            " CASE WHEN EXISTS (SELECT 1 FROM pushkit_inbox WHERE sender = $1 AND task_id = $3"
            f" AND {_UNFINISHED}) THEN 0 ELSE 1 END)"
            " ON CONFLICT (sender, delivery_id) DO NOTHING RETURNING id",
            (
                sender,
                delivery_id,
                task_id,
                config_id,
                seq,
                missing,
                int(late),
                kid,
                to_micros(issued_at),
                to_micros(now),
                body,
            ),
        )
        return int(rows[0]["id"]) if rows else None

    def has(self, sender: str, delivery_id: str, body: bytes) -> Script[bool]:
        """Say whether the inbox has a delivery with exactly this body."""
        rows = yield Statement(
            "SELECT 1 FROM pushkit_inbox WHERE sender = $1 AND delivery_id = $2 AND body = $3",
            (sender, delivery_id, body),
        )
        return bool(rows)

    # --- handing out ---------------------------------------------------------------------------

    def claim(
        self,
        worker: str,
        *,
        limit: int,
        now: datetime,
        until: datetime,
        held: Sequence[int] = (),
        divide: Divide | None = None,
    ) -> Script[list[ClaimedNotification]]:
        """Take up to `limit` notifications that are due; of each task only the oldest.

        Args:
            worker: Who takes them.
            limit: How many.
            now: Leases that ended before are void.
            until: When the new leases end.
            held: What this worker has in hand: a clock that leapt, or a machine that slept, must
                not have it take them a second time.
            divide: Shares them among senders; by default as evenly as may be.
        """
        moment = to_micros(now)
        for clause, ids in among(held, after=2):
            yield Statement(
                "UPDATE pushkit_inbox SET lease_until = $1 WHERE lease_worker = $2"
                f" AND status = 'in_progress' AND id {clause}",
                (to_micros(until), worker, *ids),
            )
        yield Statement(
            "UPDATE pushkit_inbox SET status = 'received', lease_worker = NULL,"
            f" last_error = '{_LEASE_EXPIRED}' WHERE id IN (SELECT id FROM pushkit_inbox"
            " WHERE status = 'in_progress' AND lease_until <= $1 FOR UPDATE SKIP LOCKED)",
            (moment,),
        )
        rows = yield from self._take(worker, limit, moment, to_micros(until), divide or _evenly)
        callbacks = (yield from self._callbacks_of(worker)) if rows else {}
        claimed = [_claimed(row, callbacks.get(row["id"], {})) for row in rows]
        return sorted(claimed, key=lambda each: each.stored.id)

    def _take(
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
                if len(found) < number:  # there is no more of this one: the rest is the others'
                    due.remove(sender)
        return rows

    def next_due(self, *, but: Collection[str] = ()) -> Script[datetime | None]:
        """Return when the next claim may find something; None if nothing is unfinished.

        A notification behind an unfinished one of its task is not due before that one is settled.

        Args:
            but: Senders that would be given nothing.
        """
        senders = yield Statement(_SENDERS)
        leased = yield Statement(
            "SELECT MIN(lease_until) AS due FROM pushkit_inbox WHERE status = 'in_progress'"
        )
        moments = [row["due"] for row in senders if row["sender"] not in but]
        moments += [row["due"] for row in leased if row["due"] is not None]
        return moment_or_none(min(moments, default=None))

    def keep_lease(self, notification_id: int, worker: str, until: datetime) -> Script[bool]:
        """Extend a lease; False if it is no longer this worker's."""
        rows = yield Statement(
            "UPDATE pushkit_inbox SET lease_until = $3 WHERE id = $1 AND lease_worker = $2"
            " AND status = 'in_progress' RETURNING id",
            (notification_id, worker, to_micros(until)),
        )
        return bool(rows)

    def record_call(
        self, notification_id: int, callback: str, *, error: str | None, now: datetime
    ) -> Script[None]:
        """Remember how a callback ended; one that is done does not get the notification again."""
        yield Statement(
            "INSERT INTO pushkit_callbacks"
            " (notification_id, callback, done, attempts, last_error, last_at)"
            " VALUES ($1, $2, $3, 1, $4, $5) ON CONFLICT (notification_id, callback) DO UPDATE"
            " SET attempts = pushkit_callbacks.attempts + 1, done = excluded.done,"
            " last_error = excluded.last_error, last_at = excluded.last_at"
            " WHERE pushkit_callbacks.done = 0",
            (notification_id, callback, int(error is None), error, to_micros(now)),
        )

    def settle(
        self,
        claimed: ClaimedNotification,
        worker: str,
        status: InboxStatus,
        *,
        now: datetime,
        retry_at: datetime | None = None,
        error: str | None = None,
        unmatched: bool = False,
    ) -> Script[bool]:
        """Write down what became of a notification; False if it is no longer this worker's.

        The number of the attempt tells two attempts of one worker apart. `unmatched`: no callback
        wants it.
        """
        finished = status in (InboxStatus.DONE, InboxStatus.DEAD)
        rows = yield Statement(
            "UPDATE pushkit_inbox SET status = $3, not_before = COALESCE($4, not_before),"
            " finished_at = $5, last_error = $6, lease_worker = NULL, lease_until = NULL, head = 0,"
            " unmatched = $8"
            " WHERE id = $1 AND lease_worker = $2 AND status = 'in_progress' AND attempts = $7"
            " RETURNING id",
            (
                claimed.stored.id,
                worker,
                status.value,
                to_micros(retry_at) if retry_at else None,
                to_micros(now) if finished else None,
                error,
                claimed.attempts,
                int(unmatched),
            ),
        )
        if rows:
            yield from self._pass_head_on(claimed.stored, status)
        return bool(rows)

    # --- workers that end ----------------------------------------------------------------------

    def working(self) -> Script[list[str]]:
        """Return the names of the workers that have notifications in hand."""
        rows = yield Statement(
            "SELECT DISTINCT lease_worker FROM pushkit_inbox WHERE status = 'in_progress'"
        )
        return [str(row["lease_worker"]) for row in rows]

    def take_over(self, worker: str) -> Script[None]:
        """Give a dead worker's notifications back, before their leases end."""
        yield Statement(
            "UPDATE pushkit_inbox SET status = 'received', lease_worker = NULL,"
            f" last_error = '{_WORKER_DIED}' WHERE status = 'in_progress' AND lease_worker = $1",
            (worker,),
        )

    def give_back(self, worker: str, *, but: Collection[int] = ()) -> Script[None]:
        """Give back what a worker that ends in good order leaves: that was no attempt.

        Args:
            worker: Who ends.
            but: What it cannot let go of: that comes back with its lease.
        """
        rows = yield Statement(
            "SELECT id FROM pushkit_inbox WHERE status = 'in_progress' AND lease_worker = $1",
            (worker,),
        )
        for clause, ids in among([row["id"] for row in rows if row["id"] not in but], after=1):
            yield Statement(
                "UPDATE pushkit_inbox SET status = 'received', lease_worker = NULL,"
                " attempts = attempts - 1 WHERE status = 'in_progress' AND lease_worker = $1"
                f" AND id {clause}",
                (worker, *ids),
            )

    def put_off(self, claimed: ClaimedNotification, worker: str, until: datetime) -> Script[None]:
        """Hand a notification out later, and do not count that it was claimed now."""
        yield Statement(
            "UPDATE pushkit_inbox SET status = 'received', lease_worker = NULL, lease_until = NULL,"
            f" attempts = attempts - 1, not_before = $4, last_error = '{_PUT_OFF}'"
            " WHERE id = $1 AND lease_worker = $2 AND status = 'in_progress' AND attempts = $3",
            (claimed.stored.id, worker, claimed.attempts, to_micros(until)),
        )

    # --- looking -------------------------------------------------------------------------------

    def of_task(
        self, task_id: str, *, after: int = 0, sender: str | None = None, limit: int = 100
    ) -> Script[list[StoredNotification]]:
        """Return a task's notifications in the order of acceptance, those after an id."""
        rows = yield Statement(
            "SELECT * FROM pushkit_inbox WHERE task_id = $1 AND id > $2"
            " AND (sender = $3 OR CAST($3 AS TEXT) IS NULL) ORDER BY id"
            " LIMIT CAST($4 AS BIGINT)",
            (task_id, after, sender, limit),
        )
        return [_stored(row) for row in rows]

    def with_news(self, seen: Mapping[tuple[str, str], int]) -> Script[list[tuple[str, str]]]:
        """Return those tasks, by sender and id, of which there is something after the id seen."""
        found: list[tuple[str, str]] = []
        for each in chunks([(*key, after) for key, after in seen.items()]):
            rows = yield Statement(
                f"WITH seen (sender, task_id, after) AS (VALUES {_triples(len(padded(each)))})"
                " SELECT DISTINCT sender, task_id FROM seen WHERE EXISTS (SELECT 1"
                " FROM pushkit_inbox i WHERE i.task_id = seen.task_id AND i.id > seen.after"
                " AND i.sender = seen.sender)",
                tuple(itertools.chain.from_iterable(padded(each))),
            )
            found += [(row["sender"], row["task_id"]) for row in rows]
        return found

    def _pass_head_on(self, settled: StoredNotification, status: InboxStatus) -> Script[None]:
        """Offer the oldest that is unfinished of its task; the same one, unless it is done."""
        if settled.task_id is not None:
            yield Statement(
                "UPDATE pushkit_inbox SET head = 1 WHERE id = (SELECT id FROM pushkit_inbox"
                f" WHERE sender = $1 AND task_id = $2 AND {_UNFINISHED} ORDER BY id LIMIT 1)",
                (settled.sender, settled.task_id),
            )
        elif status is InboxStatus.RECEIVED:
            yield Statement("UPDATE pushkit_inbox SET head = 1 WHERE id = $1", (settled.id,))

    def _callbacks_of(self, worker: str) -> Script[dict[int, dict[str, CallbackState]]]:
        rows = yield Statement(
            "SELECT c.* FROM pushkit_inbox i JOIN pushkit_callbacks c ON c.notification_id = i.id"
            " WHERE i.status = 'in_progress' AND i.lease_worker = $1",
            (worker,),
        )
        found: dict[int, dict[str, CallbackState]] = {}
        for row in rows:
            found.setdefault(row["notification_id"], {})[row["callback"]] = callback_state(row)
        return found

    def _sequence(
        self,
        sender: str,
        task_id: str | None,
        config_id: str | None,
        seq: int | None,
        now: datetime,
    ) -> Script[tuple[int, bool]]:
        """Compare a `seq` with the last one: how many are missing before it, and is it late."""
        if seq is None or task_id is None:
            return 0, False
        key = (sender, task_id, config_id or "")
        rows = yield Statement(
            "SELECT last_seq FROM pushkit_sequences"
            " WHERE sender = $1 AND task_id = $2 AND config_id = $3",
            key,
        )
        last = rows[0]["last_seq"] if rows else 0
        if seq <= last:
            return 0, True
        yield Statement(
            "INSERT INTO pushkit_sequences (sender, task_id, config_id, last_seq, updated_at)"
            " VALUES ($1, $2, $3, $4, $5) ON CONFLICT (sender, task_id, config_id)"
            " DO UPDATE SET last_seq = excluded.last_seq, updated_at = excluded.updated_at",
            (*key, seq, to_micros(now)),
        )
        return seq - last - 1, False


@functools.cache
def _triples(number: int) -> str:
    return ", ".join(
        f"(CAST(${n + 1} AS TEXT), CAST(${n + 2} AS TEXT), CAST(${n + 3} AS BIGINT))"
        for n in range(0, 3 * number, 3)
    )


def _evenly(due: Sequence[str], free: int, taken: Mapping[str, int]) -> Sequence[tuple[str, int]]:
    given: Counter[str] = Counter()
    for _ in range(free):
        given[min(due, key=lambda sender: taken.get(sender, 0) + given[sender])] += 1
    return list(given.items())


def callback_state(row: Row) -> CallbackState:
    """Return a row of `pushkit_callbacks`."""
    return CallbackState(
        callback=row["callback"],
        done=bool(row["done"]),
        attempts=row["attempts"],
        last_error=row["last_error"],
        last_at=moment_or_none(row["last_at"]),
    )


def _claimed(row: Row, callbacks: dict[str, CallbackState]) -> ClaimedNotification:
    redriven_at = row["redriven_at"]
    return ClaimedNotification(
        stored=_stored(row),
        attempts=row["attempts"],
        since=from_micros(row["received_at"] if redriven_at is None else redriven_at),
        broken_off=row["last_error"] in (_LEASE_EXPIRED, _WORKER_DIED),
        callbacks=callbacks,
    )


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
    )
