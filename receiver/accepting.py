"""Steps 7 to 9 of the verification: id, binding and notification, in one transaction.

What waits at the same time is one group: few statements for all of it, and one commit. Of what is
refused nothing is written. Where nothing waits for a claim, and the task has nothing before it, a
notification is stored in progress, in the hands of this process (`Hands`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from typing import Final, Protocol

from pushkit.errors import InboundError
from pushkit.storage.database import Database
from pushkit.storage.script import DEFERRED, Deferred, Ending, Refused, Script
from receiver.expected import ExpectedStore, Standings, TaskNotExpectedError
from receiver.inbox.capacity import BacklogFullError, Capacity, InboxFullError
from receiver.inbox.model import (
    ClaimedNotification,
    Lease,
    NewNotification,
    Notification,
    notification_of,
)
from receiver.inbox.store import Inbox, Lines, StoredIds, task_lock
from receiver.inbox.together import Asked, together
from receiver.limits import Limits
from receiver.replay.memory import ConflictError, Replay, ReplayMemory, Seen
from receiver.trust import TaskPolicy
from receiver.verification import Verified

_KEY: Final = attrgetter("key")


class Hands(Protocol):
    """Takes notifications the moment they are stored: the dispatcher of this process."""

    def lease(self, now: datetime, taken: float) -> Lease:
        """Return the lease of what is in hand.

        Args:
            now: The present, by the database's clock.
            taken: When that was asked for, by the clock of this process that nobody sets.
        """

    def reserve(self, senders: Sequence[str]) -> list[bool]:
        """Take notifications into hand that are being stored; False if one waits for a claim."""

    def cancel(self, senders: Iterable[str]) -> None:
        """Let go of what was not stored after all."""

    def begin(self, claimed: ClaimedNotification) -> None:
        """Call back what was stored in hand."""

    def keep(self, notification: Notification) -> None:
        """Keep what was stored and has to wait, so that it need not be decoded again."""

    def wake(self) -> None:
        """Look for what was stored a moment ago, and waits to be claimed."""

    def settle(self) -> None:
        """Write down what is done: in one transaction with what is asked for next."""


@dataclass(slots=True, eq=False)
class Candidate:
    """A notification that is proven, on its way into the inbox."""

    verified: Verified  # what is proven
    seen: Seen  # its id and body, with the right to store them
    traceparent: str | None = None  # the trace that it belongs to, if it came in one
    lease: Lease | None = field(default=None, init=False)  # whose hands it was stored into, if any
    stored: NewNotification | None = field(default=None, init=False)
    sender: str = field(init=False)  # its name
    key: tuple[str, str] = field(init=False)  # what is unique of it
    task: tuple[str, str] | None = field(init=False)  # its task, if it has one
    line: tuple[str, str, str] | None = field(init=False)  # the same, with the config
    result: int | Deferred | Refused | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.sender = sender = self.verified.sender.name
        self.key = sender, self.seen.delivery_id
        said = self.verified.notification
        self.task = self.line = None
        if said.task_id is not None:
            self.task = sender, said.task_id
            self.line = sender, said.task_id, said.config_id or ""

    @property
    def waits(self) -> bool:
        """Whether it was stored for whoever claims it, before others of its task."""
        return self.lease is None and self.stored is not None and self.stored.head

    def accepted(self, notification_id: int) -> Notification:
        """Return it as it is called back."""
        assert self.stored is not None  # noqa: S101  # it is stored
        return notification_of(self.stored, notification_id, self.verified.notification.update)


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

    def submit(self, candidate: Candidate, ended: Ending[int | None]) -> asyncio.Future[int | None]:
        """Accept one, together with what else is written; `ended` hears what it came to."""
        self._hands.settle()
        return self._database.write_together(together, Asked(self.accept, candidate), ended)

    def cancel(self, candidates: Sequence[Candidate]) -> None:
        """Let go of what was in hand."""
        self._hands.cancel(each.sender for each in candidates if each.lease is not None)
        for each in candidates:
            each.lease = each.stored = None

    def accept(
        self, candidates: Sequence[Candidate], /, *, wait: bool = True
    ) -> Script[list[int | Deferred | Refused | None]]:
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
    ) -> Script[list[int | Deferred | Refused | None]]:
        firsts: dict[tuple[str, str], Candidate] = {}
        for each in candidates:
            firsts.setdefault(each.key, each)
        taken = time.perf_counter()
        ours, now = yield from self._held(firsts.values(), wait=wait)
        fresh = yield from self._remember(ours, now)  # 7
        standings = yield from self._expected.standings(
            [(each.sender, each.verified.secret) for each in fresh if each.verified.secret], now
        )
        yield from self._capacity.count({each.sender for each in fresh}, now)
        stored: list[Candidate] = []
        refused: list[Candidate] = []
        for each in fresh:
            try:
                if (yield from self._admit(each, standings, now)):
                    stored.append(each)
            except InboundError as exc:
                each.result = Refused(exc)
                refused.append(each)
        ids = (yield from self._store(stored, now, taken)) if stored else {}
        for each in stored:
            each.result = ids.get(each.key)
            # Not in the memory of ids, but still in the inbox: an update is called back once.
            if each.result is None and not (
                yield from self._inbox.has(*each.key, each.verified.body)
            ):
                each.result = Refused(ConflictError("this id is in the inbox with another body"))
                refused.append(each)
        if refused:
            yield from self._replay.unremember([each.seen for each in refused])
        if any(each.waits for each in stored):
            yield from self._database.wake()
        elif ids:
            yield from self._database.tell()  # who waits for a task in another process
        if len(firsts) < len(candidates):
            yield from self._judge_copies(candidates, firsts, wait=wait)
        return [each.result for each in candidates]

    def _judge_copies(
        self,
        candidates: Sequence[Candidate],
        firsts: Mapping[tuple[str, str], Candidate],
        *,
        wait: bool,
    ) -> Script[None]:
        """Say what becomes of copies; one whose first is refused stands for itself."""
        copies = [each for each in candidates if firsts[each.key] is not each]
        for each in copies:
            each.result = _of_copy(each, firsts[each.key])
        again = [each for each in copies if isinstance(each.result, Refused)]
        if again:
            yield from self._accept(again, wait=wait)

    def _remember(self, candidates: Sequence[Candidate], now: datetime) -> Script[list[Candidate]]:
        """Do step 7; return what is fresh."""
        ordered = sorted(candidates, key=_KEY)  # who waits does so in one order
        found = yield from self._replay.remember([each.seen for each in ordered], now)
        news = set()
        for each, replay in zip(ordered, found, strict=True):
            each.result = Refused(replay) if isinstance(replay, InboundError) else None
            if replay is Replay.FRESH:
                news.add(each)
        return [each for each in candidates if each in news]

    def _held(
        self, candidates: Iterable[Candidate], *, wait: bool
    ) -> Script[tuple[list[Candidate], datetime]]:
        """Hold tasks and tokens; return those whose own nobody else holds, and the present."""
        names = {each: _names(each) for each in candidates}
        wanted = {name for each in names.values() for name in each}
        held, now = yield from self._database.hold(sorted(wanted), wait=wait)
        if len(held) == len(wanted):
            return list(names), now
        for each in names:
            each.result = DEFERRED
        return [each for each, own in names.items() if held.issuperset(own)], now

    def _admit(self, each: Candidate, standings: Standings, now: datetime) -> Script[bool]:
        """Do steps 8 and 9; return False for one that the inbox still has.

        Raises:
            InboundError: It is refused.
        """
        sender, secret, task = each.sender, each.verified.secret, each.task
        bind = False
        try:
            if secret is None or not standings.is_bound(sender, secret, task):
                bind = yield from self._expected.check(  # 8
                    each.verified.sender.tasks,
                    sender=sender,
                    secret=secret,
                    task_id=task and task[1],
                    now=now,
                    standings=standings,
                )
            self._capacity.take(sender)  # 9
        except (TaskNotExpectedError, BacklogFullError, InboxFullError):
            # The memory of ids may be elsewhere, and may have lost what the inbox still has.
            if (yield from self._inbox.has(*each.key, each.verified.body)):
                return False
            raise
        if bind and secret is not None and task is not None:
            yield from self._expected.bind(sender, secret, task[1], now, standings)
        return True

    def _store(
        self, candidates: Sequence[Candidate], now: datetime, taken: float
    ) -> Script[StoredIds]:
        """Store what may be, in hand if there is room; return the ids."""
        lines, lease = Lines(), self._hands.lease(now, taken)
        yield from lines.read(each.line for each in candidates if each.line is not None)
        behind = lines.unfinished
        heads: list[Candidate] = []
        for each in candidates:
            if each.task is None or each.task not in behind:
                heads.append(each)
            if each.task is not None:
                behind.add(each.task)
        in_hand = dict(
            zip(heads, self._hands.reserve([each.sender for each in heads]), strict=True)
        )
        for each in candidates:
            said, missing, late = each.verified.notification, 0, False
            if each.line is not None and said.seq is not None:
                missing, late = lines.next(each.line, said.seq)
            each.lease = lease if in_hand.get(each) else None
            each.stored = NewNotification(
                sender=each.sender,
                delivery_id=each.seen.delivery_id,
                kid=said.kid or "",
                issued_at=said.issued_at or now,
                task_id=said.task_id,
                config_id=said.config_id,
                seq=said.seq,
                missing=missing,
                late=late,
                body=each.verified.body,
                received_at=now,
                head=each in in_hand,
                lease=each.lease,
                traceparent=each.traceparent,
            )
        new = [each.stored for each in candidates if each.stored is not None]
        ids = yield from self._inbox.store(new)
        if len(ids) < len(new) > 1:
            raise _NotAloneError  # one of them is in the inbox: it must not be another one's head
        if ids:
            yield from lines.write(now)
        else:
            self.cancel(candidates)
        return ids


class _NotAloneError(Exception):
    """A group has to be taken apart; each is then stored alone."""


def _of_copy(copy: Candidate, first: Candidate) -> int | Deferred | Refused | None:
    """Return what becomes of a copy of what was just accepted, or was before."""
    if isinstance(first.result, Deferred | Refused):
        return first.result
    if copy.seen.body_sha256 != first.seen.body_sha256:
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
