"""A worker of one kind of queue: what the outbox's and the inbox's do alike, over a database."""

from __future__ import annotations

import abc
import asyncio
import functools
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from pushkit.errors import StorageError
from pushkit.queue.held import Ask, Job, Reply
from pushkit.queue.leases import Claimed, ClaimResult, Claims
from pushkit.queue.rules import Leased, PendingJob, Room
from pushkit.queue.runner import Due, Renewed, Runner, Seen, Work, seconds
from pushkit.queue.tables import QueueTables
from pushkit.storage.database import Database
from pushkit.storage.script import Group, Script, alone, from_micros, to_micros

J = TypeVar("J", bound=Job)

_log = logging.getLogger("pushkit.queue")

# Seconds after an outage in which leases that ended are left to their workers, who renew them.
_SPARED_FOR: Final = 5.0


class QueueWorker(Work[J], abc.ABC, Generic[J]):
    """Claims queues, takes over those of workers that ended, and renews leases.

    Args:
        database: Where the queues are.
        tables: Their tables.
        kind: What the worker is called in the tables, before a random number.
        lease: How long a lease lasts.
        probation_from: From how many failures on a group is on probation.
    """

    runner: Runner[J]
    # Settles queues; each result has a `reply`. One object: a group commit collects the calls of
    # the same function.
    _settling: Group[Ask, Any]

    def __init__(
        self,
        database: Database,
        tables: QueueTables,
        *,
        kind: str,
        lease: timedelta,
        probation_from: int = 1,
    ) -> None:
        self._database = database
        self._tables = tables
        self._kind = kind
        self._lease = lease
        self._claims = Claims(tables=tables, lose=self._lose, probation_from=probation_from)
        self._seen_at: datetime | None = None  # the time that the last look or claim saw
        self._spares_until = 0.0

    @functools.cached_property
    def name(self) -> str:
        """A unique name, drawn at its first use: processes forked before then have one each."""
        return f"{self._kind}_{secrets.token_hex(8)}"

    def wake(self) -> None:
        """Look for due queues now."""
        self.runner.wake()

    def has_room(self, queue_id: str, size: int, origin: str = "") -> bool:
        """Return whether a job that is being stored may be handed over, in any thread."""
        return self.runner.has_room(queue_id, size, origin)

    def lease_until(self, now: datetime) -> int:
        """Return when a lease that begins now ends, in microseconds by the database's clock."""
        return to_micros(now + self._lease)

    # --- what kinds of queues differ in ------------------------------------------------------

    @abc.abstractmethod
    def _jobs_of(self, claimed: Sequence[Claimed]) -> Script[dict[Any, J]]:
        """Read the jobs of queues that were claimed, by id."""

    @abc.abstractmethod
    def _lose(self, lost: Sequence[tuple[PendingJob, str, int]], now: int) -> Script[None]:
        """Note that workers ended with jobs (see `Claims`)."""

    @abc.abstractmethod
    def _look(self, ids: Sequence[str]) -> Script[dict[str, Seen]]:
        """Read what the rows of queues say now."""

    @abc.abstractmethod
    def _tell(self, settled: Any) -> None:
        """Log and emit what became of the jobs of a settled queue, after the commit."""

    def _settle_together(self, ask: Ask, settled: Callable[[Any], None]) -> None:
        """Settle one queue with others; call `settled` in the event loop."""
        self._database.write_together(self._settling, ask, settled)

    def _version(self, jobs: Sequence[J]) -> int:  # noqa: ARG002
        """Return the version of what the jobs of a queue have in common."""
        return 0

    # --- `pushkit.queue.runner.Work` ---------------------------------------------------------

    async def claim(self, room: Room, held: Collection[str]) -> ClaimResult:
        """Lease due queues, and take over those of workers that ended."""
        self._hold_lock()
        before = self._seen_at
        try:
            return await self._database.write(self._claim(room, held))
        except BaseException as exc:
            self._seen_at = before  # what it did about a clock that was set back is undone
            if isinstance(exc, StorageError):
                self._spares_until = seconds() + _SPARED_FOR
            raise

    def _is_set_back(self, now: datetime) -> bool:
        """Return whether the clock was set back, or may have been: the next claim looks for it."""
        return self._seen_at is None or now < self._seen_at

    def _hold_lock(self) -> None:
        """Show other processes that this worker lives; only then may it lease queues."""
        if self._database.locks is not None:
            self._database.locks.hold(self.name)
        self.runner.is_open = self.runner.is_running

    def _claim(self, room: Room, held: Collection[str]) -> Script[ClaimResult]:
        now = yield from self._database.now()
        moment = to_micros(now)
        if self._is_set_back(now):
            yield from self._tables.after_setback(moment, self.lease_until(now))
        self._seen_at = now
        locks = self._database.locks
        ended, put_off = yield from self._claims.take_over(
            self.name,
            held=held,
            dead=lambda names: [] if locks is None else locks.dead(names),
            now=moment,
            spares=seconds() < self._spares_until,
        )
        for worker in ended:
            _log.warning("worker %s ended with queues that it leased: they are taken over", worker)
        result = yield from self._claims.claim(
            self.name, room, now=moment, until=self.lease_until(now)
        )
        jobs = yield from self._jobs_of(result.claimed)
        leased = []
        for queue, pending, upto in result.claimed:
            theirs = [jobs[each.id] for each in pending]
            version, is_probe = self._version(theirs), queue.failures >= self._claims.probation_from
            leased.append(
                Leased(queue.id, queue.group, queue.epoch, theirs, upto, version, is_probe)
            )
        return replace(result, claimed=leased, look_again=result.look_again or put_off)

    def settle(
        self, ask: Ask, done: Callable[[Reply | BaseException], None], *, is_urgent: bool
    ) -> None:
        """Settle one queue, and call `done` in the event loop."""

        def settled(result: Any) -> None:
            if isinstance(result, BaseException):
                done(result)
                return
            done(result.reply)
            self._tell(result)

        if is_urgent:
            settling = self._settle_alone(ask, settled)
            self.runner.keep(asyncio.create_task(settling, name=f"{self._kind}-settling"))
        else:
            self._settle_together(ask, settled)

    async def _settle_alone(self, ask: Ask, settled: Callable[[Any], None]) -> None:
        try:
            result = await self._database.write_patiently(lambda: alone(self._settling, ask))
        except BaseException as exc:  # noqa: BLE001  # `settled` gets it
            settled(exc)
        else:
            settled(result)

    async def look(self, ids: Sequence[str]) -> Mapping[str, Seen]:
        """Return what the rows of queues say now."""
        return await self._database.read(self._look(ids))

    async def renew(self, held: Mapping[str, int]) -> Renewed:
        """Extend leases."""
        return await self._database.write(self._renew(held))

    def _renew(self, held: Mapping[str, int]) -> Script[Renewed]:
        now = yield from self._database.now()
        return Renewed(*(yield from self._tables.renew(held, self.lease_until(now))))

    async def due(self) -> Due:
        """Look whether a claim may find something."""
        self._hold_lock()
        return await self._database.read(self._due())

    def _due(self) -> Script[Due]:
        now = yield from self._database.now()
        moment = to_micros(now)
        moments = yield from self._tables.moments(moment)
        later = min((each for each in moments if each > moment), default=None)
        is_due = self._is_set_back(now) or any(each <= moment for each in moments)
        if not is_due:
            self._seen_at = now
        if not is_due and self._database.locks is not None:
            workers = yield from self._tables.workers()
            is_due = bool(self._database.locks.dead(set(workers).difference([self.name])))
        return Due(is_due, None if later is None else from_micros(later) - now)
