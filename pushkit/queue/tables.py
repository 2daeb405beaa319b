"""The tables of queues and jobs, as scripts (see `pushkit.storage.script`).

Every script that changes jobs, or a lease, holds their queue's row (`lock`, in id order), decides
by `pushkit.queue.rules`, changes the jobs in later statements, and writes the row (`write`). Rows
of destinations come last. On PostgreSQL nothing waits for rows beside a caller's own transaction:
such rows are skipped (`wait=False`), and the work is deferred.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, TypeVar

from pushkit.queue.rules import GroupKey, PendingJob, Queue
from pushkit.record import record
from pushkit.storage.paging import AtMost, count_at_most
from pushkit.storage.script import (
    Row,
    Script,
    SqlValue,
    Statement,
    chunks,
    filled,
    insert_rows,
    padded,
    rows_of_places,
    run_for_ids,
)

Q = TypeVar("Q")

FIRST_GROUP: Final[GroupKey] = ("", "", "")
_MOST_QUEUES: Final = 64  # of one statement that reads the jobs of each
_WRITTEN = (
    ("last_seq", "BIGINT"),
    ("due_at", "BIGINT"),
    ("lease_worker", "TEXT"),
    ("leased_at", "BIGINT"),
    ("lease_until", "BIGINT"),
    ("epoch", "BIGINT"),
    ("sending_to", "BIGINT"),
    ("settled_to", "BIGINT"),
    ("abandoned", "BIGINT"),
)
_written: Callable[[Queue], tuple[Any, ...]] = attrgetter(*(name for name, _ in _WRITTEN))
_DUE = "q.due_at IS NOT NULL AND q.lease_worker IS NULL"  # as in the indexes

UNFINISHED: Final = "state = 'pending'"
"""The condition of a partial index: SQLite uses it only for statements with the same text."""
QUEUE_COLUMNS: Final = """
    due_at BIGINT,          -- when to look for jobs that no memory has (pushkit.queue.rules)
    lease_worker TEXT,
    leased_at BIGINT,
    lease_until BIGINT,
    epoch BIGINT NOT NULL DEFAULT 0,
    sending_to BIGINT NOT NULL DEFAULT 0,
    settled_to BIGINT NOT NULL DEFAULT 0,
    abandoned BIGINT NOT NULL DEFAULT 0"""
"""The columns of a table of queues, besides id, tenant, owner, origin, last_seq and paused."""


@record(frozen=True, slots=True, kw_only=True)
class QueueTables:
    """The tables of one kind of queue, and scripts over them."""

    queues: str
    jobs: str
    queue_id: str  # the column of jobs that names their queue
    groups: str | None = None  # until when each group waits, and how often it failed
    place: str = "seq"  # the column of jobs that says which number they have in their queue

    # --- the schema --------------------------------------------------------------------------

    def indexes(self) -> str:
        """Return the indexes that the scripts need, as SQL."""
        due = "WHERE due_at IS NOT NULL AND lease_worker IS NULL"
        of_group = ""
        if self.groups is not None:  # for `leased_in`, which only groups that fail need
            of_group = f"""CREATE INDEX {self.queues}_leased_of_group
    ON {self.queues} (tenant, owner, origin) WHERE lease_worker IS NOT NULL;
"""
        return f"""
CREATE INDEX {self.queues}_due ON {self.queues} (due_at) {due};
CREATE INDEX {self.queues}_due_of_group  -- from one group to the next
    ON {self.queues} (tenant, owner, origin, due_at) {due};
CREATE INDEX {self.queues}_leased
    ON {self.queues} (lease_worker, lease_until) WHERE lease_worker IS NOT NULL;
CREATE INDEX {self.jobs}_pending
    ON {self.jobs} ({self.queue_id}, {self.place}) WHERE state = 'pending';
{of_group}"""

    # --- queues ------------------------------------------------------------------------------

    @property
    def joined(self) -> str:
        """The tables that a queue is read from, as SQL: `q`, with its group as `g`, if any."""
        if self.groups is None:
            return f"{self.queues} q"
        return (
            f"{self.queues} q LEFT JOIN {self.groups} g"
            " ON g.tenant = q.tenant AND g.owner = q.owner AND g.origin = q.origin"
        )

    @property
    def columns(self) -> str:
        """The columns that `queue_of` reads, as SQL."""
        return QUEUE if self.groups is not None else _WITHOUT_GROUP

    def lock(self, ids: Collection[str], *, wait: bool = True) -> Script[dict[str, Queue]]:
        """Return queues by id, and hold their rows until the transaction ends.

        Args:
            ids: Those that are gone are left out.
            wait: Whether to wait for rows that other transactions hold, or to leave them out too.
        """
        held = f" FOR UPDATE OF q{'' if wait else ' SKIP LOCKED'}"
        return (yield from self._by_ids(ids, held))

    def hold(
        self, ids: Collection[str], *, wait: bool
    ) -> Script[tuple[dict[str, Queue], set[str]]]:
        """Lock queues; return them, and the ids of those that another transaction holds.

        Args:
            ids: Those that are gone are left out.
            wait: Whether to wait for the others: then there are none.
        """
        queues = yield from self.lock(ids, wait=wait)
        missing = [] if wait else sorted(set(ids).difference(queues))
        return queues, (yield from self.existing(missing)) if missing else set()

    def write(self, queues: Sequence[Queue]) -> Script[None]:
        """Write queues whose rows are held."""
        for some in chunks(queues):
            rows = padded(some)
            values = itertools.chain.from_iterable((each.id, *_written(each)) for each in rows)
            yield Statement(_writing(self.queues, len(rows)), tuple(values))

    def read(self, ids: Collection[str]) -> Script[dict[str, Queue]]:
        """Return queues by id, without holding them."""
        return (yield from self._by_ids(ids))

    def _by_ids(self, ids: Collection[str], held: str = "") -> Script[dict[str, Queue]]:
        rows = yield from run_for_ids(
            f"SELECT {self.columns} FROM {self.joined} WHERE q.id IN ($ids) ORDER BY q.id{held}",
            sorted(set(ids)),
        )
        return {row["id"]: queue_of(row) for row in rows}

    def existing(self, ids: Sequence[str]) -> Script[set[str]]:
        """Return those ids that have a queue, held by another transaction or not."""
        rows = yield from run_for_ids(f"SELECT id FROM {self.queues} WHERE id IN ($ids)", ids)
        return {row["id"] for row in rows}

    def add(self, queues: Sequence[Queue]) -> Script[None]:
        """Store new queues, which nobody else can make now."""
        rows = [(each.id, each.tenant, each.owner, each.origin, *_written(each)) for each in queues]
        yield from insert_rows(_adding(self.queues), filled(rows))

    # --- jobs --------------------------------------------------------------------------------

    def first_pending(self, ids: Sequence[str], most: int) -> Script[dict[str, list[PendingJob]]]:
        """Return the first pending jobs of queues, by `seq`, at most so many of each."""
        found: dict[str, dict[int, PendingJob]] = {each: {} for each in ids}
        for start in range(0, len(ids), _MOST_QUEUES):
            some = padded(ids[start : start + _MOST_QUEUES])
            sql = _first_pending(self.jobs, self.queue_id, self.place, len(some))
            for row in (yield Statement(sql, (most, *some))):
                job = PendingJob(*row)
                found[job.queue_id][job.seq] = job  # the last queue is asked several times
        return {each: [jobs[seq] for seq in sorted(jobs)] for each, jobs in found.items()}

    def hand_out(self, jobs: Sequence[PendingJob]) -> Script[None]:
        """Note that jobs which waited to be fetched are in their holder's memory."""
        waiting = [job.id for job in jobs if job.waits]
        if waiting:
            yield from run_for_ids(
                f"UPDATE {self.jobs} SET waits = 0 WHERE id IN ($ids) AND waits = 1", waiting
            )

    def begin_waits_now(self, jobs: Sequence[PendingJob], now: int) -> Script[None]:
        """Let the waits of jobs that were set in the future begin now."""
        yield from run_for_ids(
            f"UPDATE {self.jobs} SET not_before = $1 + not_before - scheduled_at, scheduled_at = $1"
            " WHERE id IN ($ids) AND scheduled_at > $1",
            [job.id for job in jobs if job.scheduled_at > now],
            now,
        )

    # --- who is due --------------------------------------------------------------------------

    def due(
        self, now: int, limit: int, *, group: GroupKey | None = None, lock: bool = True
    ) -> Script[list[Queue]]:
        """Return the queues that have been due longest, and lock those that nobody holds.

        With a group, only its own.
        """
        of_group = " AND q.tenant = $3 AND q.owner = $4 AND q.origin = $5" if group else ""
        rows = yield Statement(
            f"SELECT {self.columns} FROM {self.joined} WHERE {_DUE} AND q.due_at <= $1{of_group}"
            f" ORDER BY q.due_at LIMIT CAST($2 AS BIGINT){_LOCKED if lock else ''}",
            (now, limit, *(group or ())),
        )
        return [*map(queue_of, rows)]

    def first_due(self, after: GroupKey | tuple[str, str], limit: int) -> Script[list[Queue]]:
        """Return the first queue, due now or later, of each of several groups or owners.

        The query steps from one to the next in an index, however many queues each has.

        Args:
            after: The group, or the owner, after which to begin.
            limit: How many to read.
        """
        given = [f"${number}" for number in range(2, len(after) + 2)]
        columns = ["q.tenant", "q.owner", "q.origin"][: len(after)]
        rows = yield Statement(
            f"WITH RECURSIVE step(id, number) AS (SELECT {_following(self.queues, *given)}, 1"
            f" UNION ALL SELECT {_following(self.queues, *columns)}, step.number + 1"
            f" FROM step JOIN {self.queues} q ON q.id = step.id"
            " WHERE step.number < CAST($1 AS BIGINT))"
            f" SELECT {self.columns} FROM step CROSS JOIN {self.joined}"
            " WHERE q.id = step.id ORDER BY q.tenant, q.owner, q.origin",
            (limit, *after),
        )
        return [*map(queue_of, rows)]

    def leased_in(self, groups: Collection[GroupKey]) -> Script[set[GroupKey]]:
        """Return those groups that have a queue under a lease."""
        leased = set[GroupKey]()
        for group in sorted(groups):
            rows = yield Statement(
                f"SELECT 1 FROM {self.queues} WHERE lease_worker IS NOT NULL AND tenant = $1"
                " AND owner = $2 AND origin = $3 LIMIT 1",
                group,
            )
            if rows:
                leased.add(group)
        return leased

    def postpone(self, until: Mapping[GroupKey, int], now: int) -> Script[None]:
        """Let the due queues of groups that wait be due when their wait ends.

        Only a part of them at once, and none that another transaction holds.
        """
        for group, moment in sorted(until.items()):
            yield Statement(
                f"UPDATE {self.queues} SET due_at = $5 WHERE id IN (SELECT q.id"
                f" FROM {self.queues} q WHERE {_DUE} AND q.tenant = $1 AND q.owner = $2"
                f" AND q.origin = $3 AND q.due_at <= $4 ORDER BY q.due_at LIMIT {_MOST_POSTPONED}"
                " FOR UPDATE SKIP LOCKED)",
                (*group, now, moment),
            )

    def due_later(self, groups: Collection[GroupKey], now: int) -> Script[list[str]]:
        """Return ids of the queues of groups that are due later, not held."""
        found: list[str] = []
        for group in sorted(set(groups)):
            rows = yield Statement(
                f"SELECT q.id FROM {self.queues} q WHERE {_DUE} AND q.tenant = $1"
                " AND q.owner = $2 AND q.origin = $3 AND q.due_at > $4",
                (*group, now),
            )
            found += [row["id"] for row in rows]
        return found

    def look_again(self, queues: Sequence[Queue], now: int) -> Script[None]:
        """Make queues due now, whose group's wait was ended: a claim schedules them anew.

        Their rows are held.
        """
        yield from self.write(
            [queue._replace(due_at=now) for queue in queues if queue.is_due_later(now)]
        )

    def moments(self, now: int) -> Script[list[int]]:
        """Return when a queue is due, the first and the next one, and when a lease ends.

        That may be one of the worker itself which it does not know of: the reply to its claim was
        lost.
        """
        rows = yield Statement(
            f"SELECT MIN(q.due_at) AS due FROM {self.queues} q WHERE {_DUE} UNION ALL"
            f" SELECT MIN(q.due_at) FROM {self.queues} q WHERE {_DUE} AND q.due_at > $1 UNION ALL"
            f" SELECT MIN(lease_until) FROM {self.queues} WHERE lease_worker IS NOT NULL",
            (now,),
        )
        return [row["due"] for row in rows if row["due"] is not None]

    def after_setback(
        self, now: int, lease_until: int, *, worker: str | None = None
    ) -> Script[None]:
        """Let waits and leases that were set in the future begin now: the clock was set back.

        With a `worker`, only its own leases: those of others may be longer.

        Queues whose first job, or whose group, was scheduled in the future are due now, and the
        claim that looks at them schedules them anew.
        """
        group = "" if self.groups is None else "g.set_at > $1 OR "
        rows = yield Statement(
            f"SELECT q.id FROM {self.joined} WHERE {_DUE} AND q.due_at > $1 AND ({group}"
            f"(SELECT j.scheduled_at FROM {self.jobs} j WHERE j.{self.queue_id} = q.id"
            f" AND j.state = 'pending' ORDER BY j.{self.place} LIMIT 1) > $1)",
            (now,),
        )
        rows = yield from run_for_ids(
            f"UPDATE {self.queues} SET due_at = $1 WHERE id IN (SELECT id FROM {self.queues}"
            " WHERE id IN ($ids) AND due_at > $1 AND lease_worker IS NULL FOR UPDATE SKIP LOCKED)"
            " RETURNING id",
            sorted(row["id"] for row in rows),
            now,
        )
        yield from run_for_ids(
            f"UPDATE {self.jobs} SET not_before = $1 + not_before - scheduled_at, scheduled_at = $1"
            f" WHERE {self.queue_id} IN ($ids) AND state = 'pending' AND scheduled_at > $1",
            [row["id"] for row in rows],
            now,
        )
        if self.groups is not None:
            yield Statement(
                f"UPDATE {self.groups} SET until = $1 + until - set_at, set_at = $1"
                " WHERE set_at > $1",
                (now,),
            )
        owner = () if worker is None else (worker,)
        whose = "= $2" if owner else "IS NOT NULL"
        yield Statement(
            f"UPDATE {self.queues} SET lease_until = $1 WHERE id IN (SELECT id FROM {self.queues}"
            f" WHERE lease_worker {whose} AND lease_until > $1 FOR UPDATE SKIP LOCKED)",
            (lease_until, *owner),
        )

    # --- leases ------------------------------------------------------------------------------

    def workers(self) -> Script[dict[str, int]]:
        """Return the workers that lease queues, and when the first lease of each ends."""
        following = (
            f"(SELECT MIN(lease_worker) FROM {self.queues} WHERE lease_worker IS NOT NULL%s)"
        )
        rows = yield Statement(
            f"WITH RECURSIVE w(worker) AS (SELECT {following % ''} UNION ALL"
            f" SELECT {following % ' AND lease_worker > w.worker'} FROM w"
            " WHERE w.worker IS NOT NULL)"
            f" SELECT w.worker, (SELECT MIN(lease_until) FROM {self.queues}"
            " WHERE lease_worker = w.worker) AS until FROM w WHERE w.worker IS NOT NULL"
        )
        return {row["worker"]: int(row["until"]) for row in rows}

    def leased_by(self, worker: str, *, until: int | None, limit: int) -> Script[list[str]]:
        """Return ids of a worker's queues; with `until`, those whose lease ends by then."""
        rows = yield Statement(
            f"SELECT id FROM {self.queues} WHERE lease_worker = $1 AND lease_until <= $2"
            " ORDER BY lease_until LIMIT CAST($3 AS BIGINT)",
            (worker, _EVER if until is None else until, limit),
        )
        return [row["id"] for row in rows]

    def renew(self, held: Mapping[str, int], until: int) -> Script[tuple[set[str], set[str]]]:
        """Extend leases, by id and epoch as a memory knows them.

        A row that another transaction holds is left for the next time.

        Returns:
            The queues whose leases hold, and those of them whose leases were extended.
        """
        extended = set[str]()
        for some in chunks(sorted(held.items())):
            pairs: Sequence[tuple[str | int, ...]] = padded(some)
            rows = yield Statement(
                _renewing(self.queues, len(pairs)), (until, *itertools.chain.from_iterable(pairs))
            )
            extended.update(row["id"] for row in rows)
        left = [each for each in held if each not in extended]
        rows = yield from run_for_ids(
            f"SELECT id, epoch FROM {self.queues} WHERE id IN ($ids)", left
        )
        others = (row["id"] for row in rows if row["epoch"] == held[row["id"]])
        return extended.union(others), extended

    # --- for operators -----------------------------------------------------------------------

    def listed(
        self,
        read: Callable[[Row, AtMost], Q],
        columns: str,
        *values: SqlValue,
        after: str | None,
        limit: int,
    ) -> Script[list[Q]]:
        """Return a page of the queues that are leased or due, now or later, by id.

        Args:
            read: Returns a queue from its row and the number of its unfinished jobs.
            columns: What it reads besides the members of `ListedQueue`, of `joined`.
            *values: The parameters of these columns, from `$3` on.
            after: The last id of the previous page.
            limit: How many at most.
        """
        rows = yield Statement(
            "SELECT q.id, q.lease_worker AS worker, q.leased_at, q.lease_until, q.epoch,"
            " q.abandoned, q.due_at, (SELECT COUNT(*) FROM (SELECT 1 FROM"
            f" {self.jobs} j WHERE j.{self.queue_id} = q.id AND j.state = 'pending'"
            f" LIMIT {_MOST_WAITING + 1}) w) AS unfinished, {columns} FROM {self.joined}"
            # Not in the order of the primary key, which has many queues that are idle.
            f" WHERE q.id IN (SELECT id FROM (SELECT id FROM {self.queues} WHERE lease_worker"
            f" IS NOT NULL UNION ALL SELECT q.id FROM {self.queues} q WHERE {_DUE}) b"
            " WHERE id || '' > $1 ORDER BY id || '' LIMIT CAST($2 AS BIGINT)) ORDER BY q.id",
            (after or "", limit, *values),
        )
        return [read(row, AtMost.of(row["unfinished"], _MOST_WAITING)) for row in rows]

    @property
    def is_in_flight(self) -> str:
        """The condition of rows of jobs that are in flight."""
        return (
            f"({UNFINISHED} AND waits = 0 AND EXISTS (SELECT 1 FROM {self.queues} q"
            f" WHERE q.id = {self.queue_id} AND q.lease_worker IS NOT NULL"
            f" AND {self.place} <= q.sending_to))"
        )

    @property
    def is_leased(self) -> str:
        """Whether a job's queue is leased, as SQL, 1 or 0: then a job that is redriven waits."""
        leased = "CASE WHEN q.lease_worker IS NULL THEN 0 ELSE 1 END"
        return f"(SELECT {leased} FROM {self.queues} q WHERE q.id = {self.queue_id})"

    @property
    def in_flight(self) -> str:
        """The jobs `j` in flight, after FROM: from leased queues, however many jobs wait."""
        return (
            f"{self.queues} q CROSS JOIN {self.jobs} j WHERE q.lease_worker IS NOT NULL"
            f" AND j.{self.queue_id} = q.id AND j.state = 'pending'"
            f" AND j.{self.place} <= q.sending_to AND j.waits = 0"
        )

    def count_jobs(self, waiting: str, running: str, at_most: int) -> Script[dict[str, AtMost]]:
        """Return how many jobs wait, are in flight (by these names) and are dead.

        They are counted from partial indexes alone.
        """
        in_use = yield from count_at_most(at_most, self.in_flight)
        unfinished = yield from count_at_most(at_most, f"{self.jobs} WHERE {UNFINISHED}")
        dead = yield from count_at_most(at_most, f"{self.jobs} WHERE state = 'dead'")
        left = AtMost(max(unfinished.number - in_use.number, 0), unfinished.more)
        return {waiting: left, running: in_use, "dead": dead}


@record(frozen=True, slots=True, kw_only=True)
class ListedQueue:
    """A queue that a worker leases, or that is due, now or later."""

    id: str
    worker: str | None  # which worker leases it; None if none does
    leased_at: datetime | None  # since when
    lease_until: datetime | None  # until when, unless the worker renews it
    epoch: int  # how many leases began or ended
    abandoned: int  # how many workers died with it in a row
    due_at: datetime | None  # when to look for jobs that no worker has in memory
    waiting: AtMost  # how many jobs are unfinished


_EVER: Final = 2**63 - 1
_MOST_WAITING: Final = 1000  # jobs that are counted of a queue
_MOST_POSTPONED: Final = 1000
_LOCKED: Final = " FOR UPDATE OF q SKIP LOCKED"
QUEUE: Final = (
    "q.id, q.tenant, q.owner, q.origin, q.last_seq, q.due_at, q.lease_worker, q.leased_at,"
    " q.lease_until, q.epoch, q.sending_to, q.settled_to, q.abandoned, q.paused,"
    " COALESCE(g.until, 0) AS waits_until, COALESCE(g.failures, 0) AS failures"
)
"""The columns that `queue_of` reads, as SQL, of queues with groups."""
_WITHOUT_GROUP: Final = QUEUE.replace("COALESCE(g.until, 0)", "0").replace(
    "COALESCE(g.failures, 0)", "0"
)


def queue_of(row: Iterable[Any]) -> Queue:
    """Return a queue from a row of the columns `QUEUE`."""
    return Queue._make(row)


def _following(table: str, tenant: str, owner: str, origin: str | None = None) -> str:
    """Return, in SQL, the id of the first due queue after a group, or after an owner.

    There is a step for each prefix of the index: for one comparison of rows SQLite would use the
    tenant alone.
    """
    steps = [
        (f"n.tenant = {tenant} AND n.owner > {owner}", "n.owner, n.origin"),
        (f"n.tenant > {tenant}", "n.tenant, n.owner, n.origin"),
    ]
    if origin is not None:
        of_owner = f"n.tenant = {tenant} AND n.owner = {owner} AND n.origin > {origin}"
        steps.insert(0, (of_owner, "n.origin"))
    found = (
        f"(SELECT n.id FROM {table} n WHERE n.due_at IS NOT NULL AND n.lease_worker IS NULL"
        f" AND {condition} ORDER BY {order}, n.due_at LIMIT 1)"
        for condition, order in steps
    )
    return f"COALESCE({', '.join(found)})"


@functools.cache
def _writing(table: str, number: int) -> str:
    places = rows_of_places(number, 1 + len(_WRITTEN))
    # The types of the first row are those of all.
    for place, (_, kind) in reversed([*enumerate((("id", "TEXT"), *_WRITTEN), 1)]):
        places = re.sub(rf"\${place}\b", f"CAST(${place} AS {kind})", places, count=1)
    sets = ", ".join(f"{name} = v.column{place}" for place, (name, _) in enumerate(_WRITTEN, 2))
    return f"UPDATE {table} SET {sets} FROM (VALUES {places}) v WHERE {table}.id = v.column1"


@functools.cache
def _first_pending(jobs: str, queue_id: str, place: str, number: int) -> str:
    return " UNION ALL ".join(
        f"SELECT * FROM (SELECT {queue_id} AS queue_id, id, {place}, not_before, scheduled_at,"
        " redrives, waits,"
        f" body_bytes FROM {jobs} WHERE {queue_id} = ${of} AND state = 'pending'"
        f" ORDER BY {place} LIMIT CAST($1 AS BIGINT)) j{of}"
        for of in range(2, number + 2)
    )


@functools.cache
def _adding(table: str) -> str:
    names = ", ".join(name for name, _ in _WRITTEN)
    return (
        f"INSERT INTO {table} (id, tenant, owner, origin, {names}) VALUES $rows"
        " ON CONFLICT (id) DO NOTHING"
    )


@functools.cache
def _renewing(table: str, number: int) -> str:
    held = " OR ".join(f"(id = ${n} AND epoch = ${n + 1})" for n in range(2, 2 + 2 * number, 2))
    return (
        f"UPDATE {table} SET lease_until = $1 WHERE id IN (SELECT id FROM {table}"
        f" WHERE {held} FOR UPDATE SKIP LOCKED) RETURNING id"
    )
