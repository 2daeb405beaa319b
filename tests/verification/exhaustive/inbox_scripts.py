# ruff: noqa: S608  # its SQL is put together from the names of columns
"""The receiver's inbox as a value, for `inbox`: its scripts, its attempts.

A transaction is the receiver's own script, run on SQLite in memory over the rows of one queue. An
attempt is the real `Dispatcher._call_back`, run anew up to where it waits: its state is the list of
the answers that it got so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

from pushkit.errors import MalformedBodyError
from pushkit.queue.held import Ask, Reply
from pushkit.queue.rules import Handed, Room
from pushkit.scheduling import stop_after_attempt
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.storage.script import Script, from_micros
from receiver.accepting import Acceptance, Candidate
from receiver.callbacks.dispatcher import Dispatcher
from receiver.callbacks.registry import CallbackRegistry
from receiver.callbacks.settling import Settled
from receiver.callbacks.shares import CrowdedError
from receiver.inbox import inspection, retention
from receiver.inbox.model import Attempted, Call, InboxStatus
from receiver.inbox.schema import MAILBOX_SCHEMA, SCHEMA
from receiver.inbox.store import accepted_before, group_of, queue_id_of
from receiver.limits import Limits
from receiver.notification import Verified
from receiver.senders import TaskPolicy
from receiver.steps import Trail
from tests.verification.exhaustive.explorer import Leased
from tests.verification.exhaustive.explorer import Sql as AnySql

__all__ = [
    "AHEAD", "BEYOND", "CALLBACKS", "GROUP", "OLD", "QUEUE", "Database", "Job", "Log",
    "Note", "Sql", "View", "continued",
]  # fmt: skip

# Moments are microseconds from now on, in the database from then on. New queues have this epoch.
# Those of before are numbered from 1: only their order matters, and whether they were made before
# the clock was set back: ahead of now, or no longer, but still beyond what the row's comes to.
THEN: Final = 1000
BEYOND: Final = THEN // 2
AHEAD: Final = 2 * THEN
NOW: Final = from_micros(THEN)
TICK: Final = timedelta(microseconds=1)  # a lease, and the wait after a failure
SENDER, TASK, OLD = "s", "t", "old"
QUEUE, GROUP = queue_id_of(SENDER, TASK, ""), group_of(SENDER)
CALLBACKS: Final = ("a", "b")


# --- the database as a value ----------------------------------------------------------------------


class Row(NamedTuple):
    """The queue's row."""

    last_seq: int
    due_at: int | None
    lease_worker: str | None
    lease_until: int | None
    epoch: int
    sending_to: int
    abandoned: int


class Note(NamedTuple):
    """A notification's row."""

    id: int
    place: int
    state: str
    not_before: int
    scheduled_at: int
    redrives: int
    waits: int
    attempts: int
    last_error: str | None
    unmatched: int


class Database(NamedTuple):
    """All rows."""

    queue: Row | None = None
    jobs: tuple[Note, ...] = ()
    calls: tuple[tuple[int, str, int], ...] = ()  # whose callback had it
    forgotten: tuple[int, ...] = ()
    stored: int = 0  # how many were ever


class Job(NamedTuple):
    """A notification in a worker's memory, or its result: what `receiver` reads of a `Job`."""

    id: int
    seq: int
    redrives: int = 0
    attempts: int = 0
    broken_off: bool = False
    had: tuple[str, ...] = ()  # the callbacks that had it, as its reader knows
    known: tuple[str, ...] = ()  # and as the database said when it was read
    result: Attempted | None = None

    @property
    def notification(self) -> Job:
        return self

    @property
    def since(self) -> datetime:
        return NOW

    @property
    def size(self) -> int:
        return 1


class Sql(AnySql):
    """The inbox's."""

    def __init__(self) -> None:
        super().__init__((*SCHEMA, *MAILBOX_SCHEMA), partial(getattr, TRANSACTIONS))
        self.connection.execute("INSERT INTO sqlite_sequence VALUES ('pushkit_inbox', 0)")

    def heard(self, reply: Any, after: Database) -> Any:
        if isinstance(reply, Leased | Reply):
            return reply._replace(jobs=tuple(_job(each, after) for each in reply.jobs))
        return reply

    def load(self, database: Database) -> None:
        execute, many = self.connection.execute, self.connection.executemany
        for table in ("inbox_queues", "inbox", "callbacks", "forgotten"):
            execute(f"DELETE FROM pushkit_{table}")
        execute("UPDATE sqlite_sequence SET seq = ?", (database.stored,))
        if database.queue is not None:
            row = database.queue._replace(
                due_at=_shown(database.queue.due_at),
                lease_until=_shown(database.queue.lease_until),
            )
            execute(
                f"INSERT INTO pushkit_inbox_queues (id, tenant, owner, origin,"
                f" {', '.join(Row._fields)}) VALUES (?, '', ?, '', ?, ?, ?, ?, ?, ?, ?)",
                (QUEUE, SENDER, *row),
            )
        many(
            f"INSERT INTO pushkit_inbox ({', '.join(Note._fields)}, queue_id, sender, delivery_id,"
            " task_id, missing, late, version, kid, issued_at, received_at, body, body_bytes,"
            " body_sha256) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, '1.0', '', ?, ?,"
            " x'6a', 1, 'x')",
            [
                (*note._replace(not_before=note.not_before + THEN,
                                scheduled_at=note.scheduled_at + THEN),
                 QUEUE, SENDER, f"n{note.id}", TASK, THEN, THEN)
                for note in database.jobs
            ],
        )  # fmt: skip
        many(
            "INSERT INTO pushkit_callbacks (notification_id, callback, done, attempts)"
            " VALUES (?, ?, ?, 1)",
            database.calls,
        )
        many(
            "INSERT INTO pushkit_forgotten VALUES (?, ?, 'x', 0)",
            [(SENDER, f"n{each}") for each in database.forgotten],
        )

    def dump(self) -> Database:
        def rows(what: str) -> list[Any]:
            return self.connection.execute(f"SELECT {what}").fetchall()

        queue: Row | None = None
        for found in rows(f"{', '.join(Row._fields)} FROM pushkit_inbox_queues"):
            queue = Row(*found)
            queue = queue._replace(
                due_at=_since_then(queue.due_at),
                lease_until=_since_then(queue.lease_until),
                abandoned=min(queue.abandoned, 2),
            )
        notes = []
        for found in rows(f"{', '.join(Note._fields)} FROM pushkit_inbox ORDER BY id"):
            note = Note(*found)
            shown = note._replace(not_before=0, scheduled_at=0, attempts=0, last_error=None)
            if note.state == "pending":
                shown = note._replace(
                    not_before=_since_then(note.not_before),
                    scheduled_at=_since_then(note.scheduled_at),
                    attempts=min(note.attempts, 3),
                )
            notes.append(shown)
        calls = rows("notification_id, callback, done FROM pushkit_callbacks ORDER BY 1, 2")
        forgotten = rows("delivery_id FROM pushkit_forgotten ORDER BY 1")
        [(stored,)] = rows("seq FROM sqlite_sequence WHERE name = 'pushkit_inbox'")
        return Database(
            queue, tuple(notes), tuple(tuple(each) for each in calls),
            tuple(int(each[1:]) for (each,) in forgotten), stored,
        )  # fmt: skip


def _shown(moment: Any) -> Any:
    return None if moment is None else moment + THEN


def _since_then(moment: Any) -> Any:
    """Return a moment from now on; waits of seconds are as long as the others."""
    if moment is None:
        return None
    return 1 if moment > THEN + 10 else max(0, moment - THEN)


def _job(job: Any, database: Database) -> Job:
    had = tuple(name for name in CALLBACKS if job.had_by(name))
    known = tuple(name for of, name, done in database.calls if of == job.notification.id and done)
    return Job(
        job.notification.id, job.seq, job.redrives, min(job.attempts, 3), job.broken_off, had, known
    )


# --- the transactions: the scripts of the receiver, over one queue ------------------------------


class _Database:
    """What the scripts ask of the database, and what an attempt asks of it."""

    location = "memory"

    def __init__(self) -> None:
        self.locks = self
        self.is_old_dead = False

    def dead(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name == OLD and self.is_old_dead]

    def now(self) -> Script[Any]:
        yield from ()
        return NOW

    def hold(self, items: Any, names: Any, *, wait: bool) -> Script[Any]:  # noqa: ARG002
        yield from ()
        return list(items), NOW

    def wake(self) -> Script[None]:
        yield from ()

    announce = wake

    async def read(self, script: Script[Any]) -> Any:  # noqa: ARG002  # only ever `now`
        return NOW


class Transactions:
    """The receiver's transactions, each of them by the real objects."""

    def __init__(self) -> None:
        self.database = _Database()
        self.dispatcher = Dispatcher(
            cast("Any", self.database),
            CallbackRegistry(),
            retry=RetryPolicy(wait=wait_schedule((1e-6,), jitter=0), stop=stop_after_attempt(2)),
            concurrency=8,
        )
        self.dispatcher._lease = TICK

    def store(self, worker: str | None, number: int) -> Script[tuple[int, Handed | None]]:
        here = SimpleNamespace(
            name=worker,
            has_room=lambda *_: worker is not None,
            lease_until=self.dispatcher.lease_until,
        )
        acceptance = Acceptance(
            cast("Any", self.database), Limits(), cast("Any", here), lambda *_: None
        )
        said = SimpleNamespace(
            sender=SENDER, delivery_id=f"n{number}", body_sha256="x", task_id=TASK, config_id=None,
            seq=None, kid=None, issued_at=None,
            update=SimpleNamespace(generation=None, origin="1.0"),
        )  # fmt: skip
        sender = SimpleNamespace(name=SENDER, tasks=TaskPolicy.ANY)
        verified = Verified(cast("Any", sender), None, cast("Any", said), b"j")
        candidate = Candidate(verified, Trail(), None)
        [stored] = yield from acceptance.store([candidate], wait=True)
        assert isinstance(stored, int)
        return stored, candidate.handed

    def claim(
        self, worker: str, is_held: bool, is_after_setback: bool, is_old_dead: bool
    ) -> Script[Leased[Job] | None]:
        self.dispatcher.name = worker
        self.database.is_old_dead = is_old_dead
        self.dispatcher._seen_at = NOW + TICK if is_after_setback else NOW
        room = Room(8, lambda _: 8)
        claims = yield from self.dispatcher._claim(room, [QUEUE] if is_held else [])
        if not claims.claimed:
            return None
        [leased] = claims.claimed
        return Leased(leased.epoch, cast("Any", leased.jobs), leased.upto)

    def settle(self, ask: Ask) -> Script[Reply]:
        [settled] = yield from self.dispatcher._settler.script([ask])
        assert isinstance(settled, Settled)
        return settled.reply._replace(is_due=False)

    def record(self, epoch: int, call: Call) -> Script[bool]:
        job = SimpleNamespace(queue_id=QUEUE, epoch=epoch)
        return (yield from self.dispatcher._recording(cast("Any", job), call))

    def renew(self, epoch: int) -> Script[bool]:
        renewed = yield from self.dispatcher._renew({QUEUE: epoch})
        return QUEUE in renewed.extended

    def give_back(self, worker: str, abandoned: tuple[str, ...]) -> Script[None]:
        self.dispatcher.name = worker
        yield from self.dispatcher._give_back(set(abandoned))

    def redrive(self, number: int) -> Script[bool]:
        return bool((yield from inspection.redrive([number], NOW)))

    def delete(self, number: int, status: InboxStatus) -> Script[bool]:
        return bool((yield from retention.delete_finished([number], status)))

    def accepted(self, numbers: int) -> Script[int]:
        ids = [(SENDER, f"n{number}") for number in range(1, numbers + 1)]
        return len((yield from accepted_before(ids)))


TRANSACTIONS = Transactions()


# --- an attempt -----------------------------------------------------------------------------------


class _Choice(Exception):  # noqa: N818  # no error
    """An attempt goes on in one of several ways."""


class _Asks:
    """Awaited: what an attempt waits for."""

    def __init__(self, what: tuple[Any, ...]) -> None:
        self.what = what

    def __await__(self) -> Any:
        return (yield self.what)


Log = tuple[Any, ...]
View = tuple[bool, bool] | None  # whether memory has the queue under the epoch, and lease is left


class _Replay:
    """`Dispatcher._call_back`, run up to what it waits for after the answers in a log."""

    def __init__(self, job: Job, log: Log, view: View) -> None:
        self.job, self.log, self.view = job, list(log), view
        self.at = 0
        self.call: Call | None = None
        self.memory = self.caller = self.runner = self  # of what `Dispatcher` has
        self.queues = self

    def run(self) -> tuple[Any, ...] | Attempted:
        dispatcher, job = TRANSACTIONS.dispatcher, self.job
        real = dict(vars(dispatcher))
        vars(dispatcher).update(
            registry=self, _unmatched=self, caller=self, runner=self, _call=self._call,
            _database=SimpleNamespace(
                write=self._write, read=real["_database"].read, now=real["_database"].now
            ),
        )  # fmt: skip
        attempt = dispatcher._call_back(cast("Any", SimpleNamespace(
            size=1, notification=SimpleNamespace(id=job.id, decode=self._decode), queue_id=QUEUE,
            epoch=0, had_by=job.had.__contains__, broken_off=job.broken_off,
            attempts=job.attempts, since=job.since, callbacks={},
        )))  # fmt: skip
        try:
            asked = attempt.send(None)
            while self.at < len(self.log):
                asked = attempt.send(self._next())
            return cast("tuple[Any, ...]", asked)
        except StopIteration as stop:
            return cast("Attempted", stop.value)
        finally:
            attempt.close()
            vars(dispatcher).update(real)
            del dispatcher._call

    def _next(self) -> Any:
        self.at += 1
        return self.log[self.at - 1]

    def _chosen(self, *ways: str) -> str:
        if self.at == len(self.log):
            raise _Choice(*ways)
        return cast("str", self._next())

    # What the dispatcher asks:

    def _decode(self) -> Any:
        if self._chosen("readable", "unreadable") == "unreadable":
            raise MalformedBodyError("of another version")
        return self

    def wanting(self, _: Any) -> list[Any]:
        way = self._chosen("wanted", "unwanted")
        return [] if way == "unwanted" else [SimpleNamespace(name=name) for name in CALLBACKS]

    has_one = False

    async def note_unwanted(self, _: Any) -> None: ...

    def note_wanted(self, _: Any) -> None: ...

    def slot_of(self, *_: Any, **__: Any) -> Any:
        return self

    def take_now(self) -> bool:
        return self._chosen("free", "full") == "free"

    async def take(self) -> None:
        if (await _Asks(("slot",))) == "crowded":
            raise CrowdedError(TICK)

    def release(self) -> None: ...

    def get(self, _: str) -> Any:
        if self.at == len(self.log):
            self.log.append(("memory", self.view))
        _, view = self._next()
        return view and SimpleNamespace(epoch=int(not view[0]), until=math.inf if view[1] else 0)

    async def renew(self) -> None:
        await _Asks(("renew",))

    async def _call(self, callback: Any, *_: Any) -> Call:
        error = await _Asks(("call", callback.name))
        self.call = Call(self.job.id, callback.name, error)
        return self.call

    async def _write(self, script: Script[bool]) -> bool:
        script.close()
        return bool(await _Asks(("record", self.call)))


def continued(job: Job, log: Log, view: View) -> list[tuple[Log, tuple[Any, ...] | Attempted]]:
    """Return the ways in which an attempt goes on from a log to where it waits, or ends."""
    found, todo = [], [log]
    while todo:
        before = todo.pop()
        replay = _Replay(job, before, view)
        try:
            result = replay.run()
        except _Choice as choice:
            todo += [(*replay.log, way) for way in choice.args]
            continue
        found.append((tuple(replay.log), result))
    return found
