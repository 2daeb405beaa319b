"""Steps 7 to 9 of the verification: id, binding and notification, in one transaction.

Notifications that arrive at the same time form one group, with few statements and one commit.
Nothing is written for a refused one. A notification that is the head of its task is stored in
progress if the dispatcher of this process has a slot for it: no claim is needed then.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from pushkit.errors import InboundError, StorageError
from pushkit.logs import RepeatedLog, printable
from pushkit.storage.database import Database
from pushkit.storage.location import with_database
from pushkit.storage.script import DEFERRED, Deferred, OnDone, Refused, Script, to_micros
from receiver.callbacks.dispatcher import Dispatcher
from receiver.inbox.capacity import BacklogFullError, Capacity, InboxFullError
from receiver.inbox.model import ClaimedNotification, Lease, NewNotification, notification_of
from receiver.inbox.store import Inbox, StoredIds, TaskQueues, task_lock
from receiver.inbox.together import GroupItem, together
from receiver.limits import Limits
from receiver.registrations import RegistrationStore, Standings, TaskNotExpectedError
from receiver.replay.memory import ConflictError, Replay, Seen, remember_ids, unremember_ids
from receiver.senders import TaskPolicy
from receiver.verification import HandedOut, HandedOutTo, Verified, VerifiedNotification

if TYPE_CHECKING:
    from receiver.replay.redis import RedisReplay

_log = logging.getLogger("receiver")

_KEY: Final = attrgetter("key")


class Candidate:
    """A verified notification that is to be stored."""

    __slots__ = (
        *("key", "lease", "result", "seen", "sender", "sequence", "stored", "stored_at"),
        *("task", "traceparent", "verified"),
    )

    def __init__(self, verified: Verified, traceparent: str | None) -> None:
        said = verified.notification
        self.verified = verified
        self.traceparent = traceparent  # the trace that it belongs to, if it states one
        self.sender: str = said.sender  # its name
        # A sender without ids: repetitions cannot be recognised, so each one is stored.
        delivery_id = said.delivery_id or f"none_{uuid.uuid4().hex}"
        self.seen: Seen = Seen(said.sender, delivery_id, said.body_sha256)
        self.key: tuple[str, str] = (said.sender, self.seen.delivery_id)  # unique
        self.task: tuple[str, str] | None = None  # sender and task, if it has one
        self.sequence: tuple[str, str, str] | None = None  # the same, with the config
        if said.task_id is not None:
            self.task = said.sender, said.task_id
            self.sequence = said.sender, said.task_id, said.config_id or ""
        self.stored: NewNotification | None = None  # its row, once it has one
        self.stored_at: datetime  # when it got that
        self.lease: Lease | None = None  # that it is stored with, in a slot
        self.result: int | Deferred | Refused | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for a claim: it was stored as the head of its task, without a slot."""
        return self.lease is None and self.stored is not None and bool(self.stored.head)


class Acceptance:
    """Stores verified notifications: each id once, expected tasks alone, within the capacity."""

    def __init__(
        self,
        database: Database,
        redis: RedisReplay | None,  # the memory of ids, if it is not in the database
        limits: Limits,
        dispatcher: Dispatcher,  # calls back in this process
        # Called with the sender and the task of each stored notification that has a task.
        announce: Callable[[str, str], None],
    ) -> None:
        self._database = database
        self._redis = redis
        self._registrations = RegistrationStore()
        self._dispatcher = dispatcher
        self._slots = dispatcher.slots
        self._inbox = Inbox()
        self._capacity = Capacity(
            per_sender=limits.max_backlog_per_sender,
            in_all=limits.max_backlog,
            command=with_database("receiver inbox stats", database.location),
        )
        self._announce = announce
        self._left_out = RepeatedLog(_log, interval=timedelta(hours=1))

    async def handed_out(self, asked: HandedOutTo) -> list[HandedOut]:
        """Return the registrations that step 5 asks for."""
        script = self._registrations.handed_out(asked.sender.name, asked.secret)
        return await self._database.read(script)

    def begin(
        self, verified: Verified, traceparent: str | None, ended: OnDone[int | None]
    ) -> Coroutine[Any, Any, None] | None:
        """Store a notification; call `ended` with its id, None for a duplicate, or the error.

        Returns:
            A coroutine that has to run for that, if ids are in Redis; None if there is none.
        """
        candidate = Candidate(verified, traceparent)
        if self._redis is not None:
            return self._reserve_and_store(self._redis, candidate, ended)

        try:
            self._submit(candidate, functools.partial(self._dispatch_and_end, candidate, ended))
        except StorageError as exc:  # the inbox is not open
            ended(exc)
        return None

    def _dispatch_and_end(
        self, candidate: Candidate, ended: OnDone[int | None], result: int | BaseException | None
    ) -> None:
        try:
            self._dispatch(candidate, result)
        except Exception as exc:  # noqa: BLE001  # `ended` replies to it
            result = exc
        ended(result)

    async def _reserve_and_store(
        self, redis: RedisReplay, candidate: Candidate, ended: OnDone[int | None]
    ) -> None:
        stored = None
        try:
            reserved = await redis.reserve(candidate.seen)
            if reserved is not None:
                try:
                    # Dispatched even if the request is cancelled: its callbacks must begin.
                    dispatch = functools.partial(self._dispatch, candidate)
                    stored = await self._submit(candidate, dispatch)
                except Exception:
                    await redis.release(reserved)
                    raise
                await redis.commit(reserved)
        except Exception as exc:  # noqa: BLE001  # `ended` replies to it
            ended(exc)
        else:
            ended(stored)

    def _dispatch(self, candidate: Candidate, result: int | BaseException | None) -> None:
        """Dispatch a notification that was stored in a slot; give the slot back if it was not."""
        if isinstance(result, BaseException):
            self._cancel([candidate])
            return
        new, said, lease = candidate.stored, candidate.verified.notification, candidate.lease
        if result is None or new is None:
            return  # it was stored before
        if said.update.left_out:
            self._log_left_out(said)
        notification = notification_of(
            new,
            result,
            said.update,
            issued_at=said.issued_at or candidate.stored_at,
            received_at=candidate.stored_at,
        )
        if lease is not None:
            self._dispatcher.begin(
                ClaimedNotification(
                    stored=notification, since=candidate.stored_at, leased_at=lease.taken
                )
            )
        else:
            self._dispatcher.keep(notification)
            if candidate.waits:  # one that is not the head of its task waits for the head
                self._dispatcher.pump.wake()
        if notification.task_id is not None:
            self._announce(notification.sender, notification.task_id)

    def _log_left_out(self, said: VerifiedNotification) -> None:
        """Log which members could not be read: once for each sender and each set of members."""
        left_out = said.update.left_out
        self._left_out.log(
            (said.sender, left_out),
            logging.WARNING,
            "left out of sender=%s task=%s id=%s: %s",
            said.sender,
            printable(said.task_id),
            printable(said.delivery_id),
            "; ".join(left_out),
            extra={
                "code": "left_out",
                "sender": said.sender,
                "task": said.task_id,
                "delivery_id": said.delivery_id,
            },
        )

    # --- in groups -----------------------------------------------------------------------------

    def _submit(
        self, candidate: Candidate, ended: OnDone[int | None]
    ) -> asyncio.Future[int | None]:
        """Store one, in a group with other writes; `ended` is called with the result."""
        self._dispatcher.settler.settle()
        item = GroupItem(self._write_group, candidate)
        return self._database.write_together(together, item, ended)

    def _cancel(self, candidates: Sequence[Candidate]) -> None:
        """Give back the slots that were reserved for notifications."""
        self._slots.cancel(each.sender for each in candidates if each.lease)
        for each in candidates:
            each.stored = each.lease = None

    def _write_group(
        self,
        candidates: Sequence[Candidate],
        /,
        *,
        wait: bool,  # for tasks and tokens that other transactions hold; else defer
    ) -> Script[list[int | Deferred | Refused | None]]:
        """Store notifications; return the id of each, None for one that was accepted before."""
        self._cancel(candidates)  # the commit of an earlier run may have failed
        try:
            return (yield from self._accept(candidates, wait=wait))
        except BaseException:
            self._cancel(candidates)
            raise

    def _accept(
        self, candidates: Sequence[Candidate], *, wait: bool
    ) -> Script[list[int | Deferred | Refused | None]]:
        firsts: dict[tuple[str, str], Candidate] = {}
        for each in candidates:
            each.result = None
            firsts.setdefault(each.key, each)
        taken = time.perf_counter()
        ours, now = yield from self._database.hold(list(firsts.values()), _names, wait=wait)
        if len(ours) < len(firsts):
            for each in set(firsts.values()).difference(ours):
                each.result = DEFERRED
        fresh = yield from self._remember(ours, now)  # 7
        standings = yield from self._registrations.standings(
            [(each.sender, each.verified.secret) for each in fresh if each.verified.secret], now
        )
        yield from self._capacity.count({each.sender for each in fresh}, now)
        stored: list[Candidate] = []
        refused: list[Candidate] = []
        for each in fresh:
            try:
                if (yield from self._check(each, standings, now)):
                    stored.append(each)
            except InboundError as exc:
                each.result = Refused(exc)
                refused.append(each)
        ids = (yield from self._store(stored, now, taken)) if stored else {}
        for each in stored:
            each.result = ids.get(each.key)
            # The id is not in the memory of ids, but in the inbox: it was called back before.
            if each.result is None and not (
                yield from self._inbox.has(*each.key, each.verified.body)
            ):
                each.result = Refused(ConflictError("this id is in the inbox with another body"))
                refused.append(each)
        if refused and self._redis is None:
            yield from unremember_ids([each.seen for each in refused])
        if any(each.waits for each in stored):
            yield from self._database.wake()
        elif ids:
            yield from self._database.announce()  # another process may wait for the task
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
        """Set the results of copies within the group; where the first was refused, judge each."""
        copies = [each for each in candidates if firsts[each.key] is not each]
        for each in copies:
            first = firsts[each.key]
            if isinstance(first.result, Deferred | Refused):
                each.result = first.result
            elif each.seen.body_sha256 != first.seen.body_sha256:
                conflict = ConflictError("this id was accepted before with another body")
                each.result = Refused(conflict)
        again = [each for each in copies if isinstance(each.result, Refused)]
        if again:
            yield from self._accept(again, wait=wait)

    def _remember(self, candidates: Sequence[Candidate], now: datetime) -> Script[list[Candidate]]:
        """Do step 7, unless Redis did it; return the candidates whose ids are fresh."""
        if self._redis is not None:
            return list(candidates)
        ordered = sorted(candidates, key=_KEY)  # one order for all: waits must not form a cycle
        found = yield from remember_ids([each.seen for each in ordered], now)
        news = set()
        for each, replay in zip(ordered, found, strict=True):
            if isinstance(replay, InboundError):
                each.result = Refused(replay)
            if replay is Replay.FRESH:
                news.add(each)
        return [each for each in candidates if each in news]

    def _check(self, each: Candidate, standings: Standings, now: datetime) -> Script[bool]:
        """Do step 8 and check the capacity of step 9; return False for one that the inbox has.

        Raises:
            InboundError: It is refused.
        """
        sender, secret, task = each.sender, each.verified.secret, each.task
        bind = False
        try:
            if secret is None or not standings.is_bound(sender, secret, task):
                bind = yield from self._registrations.check(  # 8
                    each.verified.sender.tasks,
                    sender=sender,
                    secret=secret,
                    task_id=task and task[1],
                    now=now,
                    standings=standings,
                )
            self._capacity.take(sender)  # 9
        except (TaskNotExpectedError, BacklogFullError, InboxFullError):
            # A memory of ids outside of the database may have lost an id that the inbox has.
            if (yield from self._inbox.has(*each.key, each.verified.body)):
                return False
            raise
        if bind and secret is not None and task is not None:
            yield from self._registrations.bind(sender, secret, task[1], now, standings)
        return True

    def _store(
        self, candidates: Sequence[Candidate], now: datetime, taken: float
    ) -> Script[StoredIds]:
        """Store candidates, the heads in slots as far as there are some; return the ids."""
        queues, lease = TaskQueues(), self._dispatcher.leases.lease(now, taken)
        yield from queues.read(each.sequence for each in candidates if each.sequence is not None)
        behind = queues.unfinished
        heads: list[Candidate] = []
        for each in candidates:
            if each.task is None or each.task not in behind:
                heads.append(each)
            if each.task is not None:
                behind.add(each.task)
        reserved = dict(
            zip(heads, self._slots.reserve([each.sender for each in heads]), strict=True)
        )
        received, leased, new = to_micros(now), lease.columns(), []
        for each in candidates:
            said, missing, late = each.verified.notification, 0, False
            if each.sequence is not None and said.seq is not None:
                missing, late = queues.compare(each.sequence, said.seq)
            has_slot = reserved.get(each)  # None if it is not the head of its task
            each.stored_at, each.lease = now, lease if has_slot else None
            each.stored = NewNotification(
                *each.key,
                said.task_id,
                said.config_id,
                said.seq,
                missing,
                int(late),
                said.kid or "",
                to_micros(said.issued_at or now),
                received,
                received,
                each.verified.body,
                each.traceparent,
                int(has_slot is not None),
                *(leased if has_slot else ()),
            )
            new.append(each.stored)
        ids = yield from self._inbox.store(new)
        if len(ids) < len(new) > 1:
            raise _NotAloneError  # one is in the inbox already: another one counted it as its head
        if ids:
            yield from queues.write(now)
        else:
            self._cancel(candidates)
        return ids


class _NotAloneError(Exception):
    """This group cannot be stored together: each one has to be stored alone."""


def _names(each: Candidate) -> list[str]:
    """Return the names of the locks under which a notification is stored."""
    secret, names = each.verified.secret, []
    if secret is not None and each.verified.sender.tasks is TaskPolicy.BIND:
        # Two tasks may arrive at once with one token: only one of them binds it.
        names.append(f"token {each.sender} {secret.sha256}")
    if each.task is not None:
        # One at a time per task: its ids grow in the order of commits, and each `seq` is compared.
        names.append(task_lock(*each.task))
    return names
