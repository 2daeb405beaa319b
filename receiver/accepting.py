"""Steps 7 to 9 of the verification: id, binding and notification, in one transaction.

What waits at the same time is one group: few statements for all of it, and one commit. Of what is
refused nothing is written. Where a callback's place is free, nobody waits for one, and the task has
nothing before it, a notification is stored in progress, in the hands of this process (`Hands`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeAlias

from pushkit.errors import InboundError
from pushkit.storage.database import Database
from pushkit.storage.script import APART, Apart, Refused, Script
from receiver.expected import ExpectedStore, Standings
from receiver.inbox.capacity import BacklogFullError, Capacity, InboxFullError
from receiver.inbox.model import ClaimedNotification, Lease, NewNotification, Notification
from receiver.inbox.store import Inbox, Sequences, StoredIds, task_lock
from receiver.limits import Limits
from receiver.replay.memory import ConflictError, Replay, ReplayMemory, Reservation
from receiver.trust import TaskPolicy
from receiver.verification import Verified


class Hands(Protocol):
    """Takes notifications the moment they are stored: the dispatcher of this process."""

    def lease(self, now: datetime, taken: float) -> Lease:
        """Return the lease of what is stored in a place.

        Args:
            now: The present, by the database's clock.
            taken: When that was asked for, by the clock of this process that nobody sets.
        """

    def reserve(self, sender: str) -> bool:
        """Take a place for a notification that is being stored; False if it has to wait."""

    def cancel(self, senders: Iterable[str]) -> None:
        """Free the places of what was not stored after all."""

    def begin(self, claimed: ClaimedNotification) -> None:
        """Call back what was stored in a place."""

    def keep(self, notification: Notification) -> None:
        """Keep what was stored and has to wait, so that it need not be decoded again."""

    def settle(self) -> None:
        """Write down what is done: in one transaction with what is asked for next."""


@dataclass(slots=True, eq=False, kw_only=True)
class Candidate:
    """A notification that is proven, on its way into the inbox."""

    verified: Verified  # what is proven
    reservation: Reservation  # the right to store its id
    traceparent: str | None = None  # the trace that it belongs to, if it came in one
    lease: Lease | None = None  # the place that was taken for it, if any
    stored: NewNotification | None = field(default=None, init=False)

    @property
    def sender(self) -> str:
        """The name of its sender."""
        return self.verified.sender.name

    @property
    def key(self) -> tuple[str, str]:
        """What is unique of it."""
        return self.sender, self.reservation.seen.delivery_id

    @property
    def task(self) -> tuple[str, str] | None:
        """Its task, if it has one."""
        task_id = self.verified.notification.task_id
        return None if task_id is None else (self.sender, task_id)

    def accepted(self, notification_id: int) -> Notification:
        """Return it as it is called back."""
        new, said = self.stored, self.verified.notification
        assert new is not None  # noqa: S101  # it is stored
        return Notification(
            id=notification_id,
            idempotency_key=f"{new.sender}:{new.delivery_id}",
            sender=new.sender,
            kid=new.kid,
            delivery_id=new.delivery_id,
            update=said.update,
            task_id=new.task_id,
            config_id=new.config_id,
            seq=new.seq,
            missing=new.missing,
            late=new.late,
            issued_at=new.issued_at,
            received_at=new.received_at,
            body=new.body,
            traceparent=new.traceparent,
        )


_Results: TypeAlias = dict[Candidate, int | Apart | Refused | None]


class Acceptance:
    """Accepts what is proven, if its id is fresh, its task expected, and there is room."""

    def __init__(
        self,
        database: Database,
        replay: ReplayMemory,
        expected: ExpectedStore,
        limits: Limits,
        hands: Hands,
    ) -> None:
        self._database = database
        self._replay = replay
        self._expected = expected
        self._hands = hands
        self._inbox = Inbox()
        self._capacity = Capacity(
            per_sender=limits.max_backlog_per_sender, in_all=limits.max_backlog
        )

    def cancel(self, candidates: Sequence[Candidate]) -> None:
        """Free the places that were taken."""
        self._hands.cancel(each.sender for each in candidates if each.lease is not None)
        for each in candidates:
            each.lease = each.stored = None

    def accept(
        self, candidates: Sequence[Candidate], /, *, wait: bool = True
    ) -> Script[list[int | Apart | Refused | None]]:
        """Store notifications; return the id of each, None for one that was accepted before.

        Args:
            wait: Whether to wait for tasks and tokens that somebody holds.
        """
        self.cancel(candidates)  # an attempt before this one may have failed in its commit
        try:
            return (yield from self._accept(candidates, wait=wait))
        except BaseException:
            self.cancel(candidates)
            raise

    def _accept(
        self, candidates: Sequence[Candidate], *, wait: bool
    ) -> Script[list[int | Apart | Refused | None]]:
        results: _Results = {}
        firsts = {each.key: each for each in reversed(candidates)}
        held = yield from self._held_elsewhere(firsts.values(), wait)
        results |= dict.fromkeys(held, APART)
        taken = time.perf_counter()
        now = yield from self._database.now()
        first_ones = [each for each in candidates if firsts[each.key] is each]
        ours = [each for each in first_ones if each not in results]
        fresh = yield from self._remember(ours, now, results)  # 7
        refused: list[Candidate] = []
        stored: list[Candidate] = []
        standings = yield from self._expected.standings(
            [(each.sender, each.verified.secret) for each in fresh if each.verified.secret], now
        )
        for each in fresh:
            try:
                is_new = yield from self._admit(each, standings, now)
            except InboundError as exc:
                results[each] = Refused(exc)
                refused.append(each)
            else:
                results[each] = None
                if is_new:
                    stored.append(each)
        ids = yield from self._store(stored, now, taken)
        for each in stored:
            if (found_id := ids.get(each.key)) is not None:
                results[each] = found_id
                continue
            # Not in the memory of ids, but still in the inbox: an update is called back once.
            if not (yield from self._inbox.has(*each.key, each.verified.body)):
                results[each] = Refused(ConflictError("this id is in the inbox with another body"))
                refused.append(each)
        if refused:
            yield from self._replay.unremember([each.reservation for each in refused])
        if ids:
            yield from self._database.wake()
        copies = [each for each in candidates if firsts[each.key] is not each]
        results |= {each: _of_copy(each, firsts[each.key], results) for each in copies}
        # Whose first one is refused stands for itself.
        again = [each for each in copies if isinstance(results[each], Refused)]
        if again:
            results |= zip(again, (yield from self._accept(again, wait=wait)), strict=True)
        return [results[each] for each in candidates]

    def _remember(
        self, candidates: Sequence[Candidate], now: datetime, results: _Results
    ) -> Script[list[Candidate]]:
        """Do step 7; return what is fresh."""
        ordered = sorted(candidates, key=lambda each: each.key)  # who waits does so in one order
        found = yield from self._replay.remember([each.reservation for each in ordered], now)
        for each, replay in zip(ordered, found, strict=True):
            if isinstance(replay, InboundError):
                results[each] = Refused(replay)
            elif replay is Replay.DUPLICATE:
                results[each] = None
        return [each for each in candidates if each not in results]

    def _held_elsewhere(
        self, candidates: Iterable[Candidate], wait: bool
    ) -> Script[list[Candidate]]:
        """Hold tasks and tokens; return the candidates whose own are held by somebody else."""
        names = {each: _names(each) for each in candidates}
        wanted = sorted({name for each in names.values() for name in each})
        if wait:
            for name in wanted:
                yield from self._database.exclusively(name)
            return []
        held = yield from self._database.hold_at_once(wanted)
        return [each for each, own in names.items() if not held.issuperset(own)]

    def _admit(self, each: Candidate, standings: Standings, now: datetime) -> Script[bool]:
        """Do steps 8 and 9; return False for one that the inbox still has.

        Raises:
            InboundError: It is refused.
        """
        verified, task_id = each.verified, each.verified.notification.task_id
        check = self._expected.check(
            verified.sender.tasks,
            sender=each.sender,
            secret=verified.secret,
            task_id=task_id,
            now=now,
            standings=standings,
        )
        bind = yield from check  # 8
        try:
            yield from self._capacity.take(each.sender, now)  # 9
        except (BacklogFullError, InboxFullError):
            # The memory of ids may be elsewhere, and may have lost what the inbox still has.
            if (yield from self._inbox.has(*each.key, verified.body)):
                return False
            raise
        if bind and verified.secret is not None and task_id is not None:
            yield from self._expected.bind(each.sender, verified.secret, task_id, now, standings)
        return True

    def _store(
        self, candidates: Sequence[Candidate], now: datetime, taken: float
    ) -> Script[StoredIds]:
        """Store what may be, each in a place if it can have one; return the ids."""
        if not candidates:
            return {}
        tasks = {each.task for each in candidates if each.task is not None}
        behind = yield from self._inbox.unfinished_tasks(sorted(tasks))
        sequences, lease = Sequences(), self._hands.lease(now, taken)
        yield from sequences.read(
            (*each.task, said.config_id or "")
            for each in candidates
            if each.task is not None and (said := each.verified.notification).seq is not None
        )
        for each in candidates:
            task, said = each.task, each.verified.notification
            is_head = task is None or task not in behind
            if task is not None:
                behind.add(task)
            missing, late = 0, False
            if task is not None and said.seq is not None:
                missing, late = sequences.next((*task, said.config_id or ""), said.seq)
            each.lease = lease if is_head and self._hands.reserve(each.sender) else None
            each.stored = NewNotification(
                sender=each.sender,
                delivery_id=each.reservation.seen.delivery_id,
                kid=said.kid or "",
                issued_at=said.issued_at or now,
                task_id=said.task_id,
                config_id=said.config_id,
                seq=said.seq,
                missing=missing,
                late=late,
                body=each.verified.body,
                received_at=now,
                head=is_head,
                lease=each.lease,
                traceparent=each.traceparent,
            )
        new = [each.stored for each in candidates if each.stored is not None]
        ids = yield from self._inbox.store(new)
        if len(ids) < len(new) > 1:
            raise _NotAloneError  # one of them is in the inbox: it must not be another one's head
        if ids:
            yield from sequences.write(now)
        else:
            self.cancel(candidates)
        return ids


class _NotAloneError(Exception):
    """A group has to be taken apart; each is then stored alone."""


def _of_copy(copy: Candidate, first: Candidate, results: _Results) -> int | Apart | Refused | None:
    """Return what becomes of a copy of what was just accepted, or was before."""
    result = results[first]
    if isinstance(result, Apart | Refused):
        return result
    if copy.reservation.seen.body_sha256 != first.reservation.seen.body_sha256:
        return Refused(ConflictError("this id was accepted before with another body"))
    return None


def _names(each: Candidate) -> list[str]:
    """Return what is to be held for storing a notification."""
    secret, names = each.verified.secret, []
    if secret is not None and each.verified.sender.tasks is TaskPolicy.BIND:
        # Of two tasks that come at once with one token, one binds it.
        names.append(f"token {each.sender} {secret.sha256}")
    if each.task is not None:
        # One at a time: its ids grow in the order of commits, and each `seq` is compared.
        names.append(task_lock(*each.task))
    return names
