"""Steps 7 to 9 of the verification: id, binding and notification, in one transaction.

Notifications that arrive at the same time form one group, with few statements and one commit.
Nothing is written for a refused one. The transaction that stores a notification leases its queue,
or continues the lease of this process, if the dispatcher has room: no claim is needed then.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pushkit.errors import InboundError
from pushkit.logs import RepeatedLog, printable
from pushkit.queue.rules import Handed, Queue, appended
from pushkit.queue.runner import seconds
from pushkit.storage.database import Database
from pushkit.storage.location import with_database
from pushkit.storage.script import DEFERRED, Deferred, Refused, Script, to_micros
from receiver.callbacks.dispatcher import Dispatcher
from receiver.inbox.capacity import Capacity
from receiver.inbox.model import NewNotification, NotificationJob, notification_of
from receiver.inbox.store import (
    INBOX,
    GroupItem,
    PlaceInSequence,
    Sequences,
    accepted_before,
    new_queue,
    queue_id_of,
    together,
)
from receiver.inbox.store import store as store_rows
from receiver.limits import Limits
from receiver.notification import Accepted, Verified, VerifiedNotification
from receiver.refusals import REFUSALS
from receiver.registrations import (
    RegisteredSecrets,
    bind_secret,
    check_expected,
    handed_out,
    read_secrets,
)
from receiver.senders import TaskPolicy, TrustedSender
from receiver.steps import Step, Trail
from receiver.tokens import HandedOut, Presented

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing

_log = logging.getLogger("receiver")


class ConflictError(InboundError, code="id_conflict", status=REFUSALS["id_conflict"].status):
    """The id was accepted before with another body."""


class BeingStoredError(InboundError, code="being_stored", status=REFUSALS["being_stored"].status):
    """A copy with this id is being stored: its result decides about this one."""


class Candidate:
    """A verified notification that is to be stored."""

    __slots__ = (
        *("body", "handed", "id", "key", "notification", "queue_id", "result", "secret", "seen_at"),
        *("sender", "sequence", "_before", "since", "stored", "stored_at", "tasks", "traceparent"),
        "trail",
    )

    def __init__(self, verified: Verified, trail: Trail, traceparent: str | None) -> None:
        sender, secret, notification, body = verified
        self.notification = notification
        self.sender: str = sender.name
        self.tasks = sender.tasks
        self.secret = secret  # the token or the credentials that authorise it, if any
        self.body = body
        self.trail = trail
        trail.begun.append(Step.REPLAY)  # 7
        self._before = len(trail.begun)  # the steps that no second run of the transaction repeats
        self.traceparent = traceparent  # the trace that it belongs to, if it states one
        task_id, seq = notification.task_id, notification.seq
        # A sender without ids: repetitions cannot be recognised, so each one is stored.
        self.id: str = notification.delivery_id or f"none_{uuid.uuid4().hex}"
        self.key: tuple[str, str] = (sender.name, self.id)  # unique
        self.queue_id = queue_id_of(sender.name, task_id, self.id)
        # What its `seq` and its generation are compared with.
        self.sequence: tuple[str, str, str] | None = None
        if task_id is not None and (seq, notification.update.generation) != (None, None):
            self.sequence = sender.name, task_id, notification.config_id or ""
        self.stored: NewNotification | None = None  # its row, once it has one
        self.stored_at: datetime  # when it got that
        self.handed: Handed | None = None  # how it was handed to the dispatcher's memory
        self.since = self.seen_at = 0.0  # before its queue was read, and while it was still held
        self.result: int | Deferred | Refused | None = None

    def begin_anew(self) -> None:
        """Forget what an earlier run of the transaction did, whose commit failed."""
        self.stored = self.handed = self.result = None
        del self.trail.begun[self._before :]


class Acceptance:
    """Stores verified notifications: each id once, expected tasks alone, within the capacity."""

    def __init__(
        self,
        database: Database,
        limits: Limits,
        dispatcher: Dispatcher,  # calls back in this process
        # Called with the sender and the task of each stored notification that has a task.
        announce: Callable[[str, str], None],
        tracing: Tracing | None = None,
    ) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._capacity = Capacity(
            per_sender=limits.max_backlog_per_sender,
            in_all=limits.max_backlog,
            command=with_database("receiver inbox stats", database.location),
        )
        self._announce = announce
        self._tracing = tracing
        self._said = RepeatedLog(_log, interval=timedelta(hours=1))
        # `store`, as one object: a group commit collects the calls of the same function.
        self._group = self.store

    async def handed_out(self, sender: TrustedSender, secrets: Presented) -> list[HandedOut]:
        """Return the sender's registrations that fit the secrets of a request, for step 5."""
        return await self._database.read(handed_out(sender.name, secrets))

    async def accept(self, verified: Verified, trail: Trail, traceparent: str | None) -> Accepted:
        """Do steps 7 to 9: store a notification, unless it was before.

        It is stored even if the caller is cancelled. With tracing it gets a span, in the trace that
        its sender states.

        Raises:
            InboundError: It is refused.
            StorageError: It could not be stored.
        """
        said = verified.notification
        if self._tracing is None:
            return await self._accepted(verified, Candidate(verified, trail, traceparent))
        with self._tracing.accepting(
            traceparent, sender=said.sender, task=said.task_id, delivery_id=said.delivery_id
        ) as span:
            candidate = Candidate(verified, trail, span.traceparent)
            try:
                accepted = await self._accepted(verified, candidate)
            except InboundError as exc:
                span.note(code=exc.code)
                refusal = exc
            else:
                span.note(code=accepted.code)
                return accepted
        raise refusal  # outside of the span: a refusal is no failure of ours

    async def _accepted(self, verified: Verified, candidate: Candidate) -> Accepted:
        said, gap = verified.notification, None
        number = await self._database.write_together(
            together,
            GroupItem(self._group, candidate),
            functools.partial(self._hand, candidate),
        )
        stored, generation = candidate.stored, said.update.generation
        if stored is not None and stored.generation_before is not None and generation is not None:
            gap = stored.generation_before, generation
        return Accepted(verified.sender, said.delivery_id, said.remembered(), number, gap)

    def _hand(self, candidate: Candidate, notification_id: int | BaseException | None) -> None:
        """Hand a notification to the dispatcher, after the commit, if it was stored."""
        if not isinstance(notification_id, int):
            return
        new, said, handed = candidate.stored, candidate.notification, candidate.handed
        assert new is not None  # noqa: S101  # it has an id
        if said.update.left_out or said.update.misstated is not None:
            self._log_reading(said)
        if handed is None:
            self._dispatcher.runner.wake_for(candidate.sender)
        else:
            notification = notification_of(
                new,
                notification_id,
                said.update,
                issued_at=said.issued_at or candidate.stored_at,
                received_at=candidate.stored_at,
            )
            job = NotificationJob(
                notification=notification,
                queue_id=new.queue_id,
                seq=handed.seq,
                epoch=handed.epoch,
                since=candidate.stored_at,
            )
            self._dispatcher.runner.hand(
                handed, job, since=candidate.since, seen_at=candidate.seen_at
            )
        if said.task_id is not None:
            self._announce(said.sender, said.task_id)

    def _log_reading(self, said: VerifiedNotification) -> None:
        """Log what was not read as it was meant: once for each sender and cause."""
        update, facts = said.update, {"sender": said.sender, "task": said.task_id}
        stated = f"A2A-Version {update.shown_misstated}, and a body of {update.origin}"
        other = None if update.misstated is None else update.origin
        for code, cause, what, text in (
            ("left_out", update.left_out, "left out of", "; ".join(update.left_out)),
            ("other_version", other, "two versions:", stated),
        ):
            if cause:
                self._said.log(
                    (said.sender, code, cause),
                    logging.WARNING,
                    "%s sender=%s task=%s id=%s: %s",
                    what,
                    said.sender,
                    printable(said.task_id),
                    printable(said.delivery_id),
                    text,
                    extra={"code": code, **facts, "delivery_id": said.delivery_id},
                )

    # --- the transaction ---------------------------------------------------------------------

    def store(
        self,
        candidates: Sequence[Candidate],
        /,
        *,
        wait: bool,  # for tasks and tokens that other transactions hold; else defer
    ) -> Script[list[int | Deferred | Refused | None]]:
        """Store notifications; return the id of each, None for one that was accepted before."""
        since = seconds()
        firsts: dict[tuple[str, str], Candidate] = {}
        for each in candidates:
            each.begin_anew()
            firsts.setdefault(each.key, each)
        # One at a time per task: ids grow in the order of commits, and each `seq` is compared.
        ours, now = yield from self._database.hold(list(firsts.values()), _names, wait=wait)
        queues, locked = yield from INBOX.hold([each.queue_id for each in ours], wait=wait)
        there = set(queues)
        ours = [each for each in ours if each.queue_id not in locked]
        for each in set(firsts.values()).difference(ours):
            each.result = DEFERRED
        before = yield from accepted_before([each.key for each in ours])
        fresh = [each for each in ours if not _is_known(each, before)]
        registered = yield from read_secrets(
            [(each.sender, each.secret) for each in fresh if each.secret], now
        )
        yield from self._capacity.count({each.sender for each in fresh}, now)
        sequences = Sequences()
        yield from sequences.read(each.sequence for each in fresh if each.sequence is not None)
        stored: list[Candidate] = []
        for each in fresh:
            try:
                yield from self._take(each, registered, now)
            except InboundError as exc:
                each.result = Refused(exc)
                continue
            self._append(each, queues, sequences, now)
            stored.append(each)
        if stored:
            ids = yield from store_rows([each.stored for each in stored if each.stored is not None])
            if len(ids) < len(stored):  # then each is stored alone, and that one is refused
                raise BeingStoredError("another notification with this id is being stored")
            for each in stored:
                each.result = ids[each.key]
            changed = {each.queue_id for each in stored}
            yield from INBOX.write([queues[queue_id] for queue_id in changed & there])
            yield from INBOX.add([queues[queue_id] for queue_id in changed - there])
            yield from sequences.write(now)
            if any(each.handed is None for each in stored):
                yield from self._database.wake()
            else:
                yield from self._database.announce()  # another process may wait for the task
        if len(firsts) < len(candidates):
            yield from self._decide_on_copies(candidates, firsts, wait=wait)
        seen_at = seconds()
        for each in stored:
            each.since, each.seen_at = since, seen_at
        return [each.result for each in candidates]

    def _append(
        self, each: Candidate, queues: dict[str, Queue], sequences: Sequences, now: datetime
    ) -> None:
        """Add a notification to its queue, and hand it to the dispatcher if that has room."""
        said, body, received = each.notification, each.body, to_micros(now)
        queue = queues.get(each.queue_id) or new_queue(each.queue_id, each.sender, received)
        has_room = self._dispatcher.has_room(each.queue_id, len(body), each.sender)
        queue, each.handed = appended(
            queue,
            self._dispatcher.name if has_room else None,
            now=received,
            until=self._dispatcher.lease_until(now),
            probation_from=1,
        )
        queues[each.queue_id] = queue
        compared = PlaceInSequence()
        if each.sequence is not None:
            compared = sequences.compare(each.sequence, said.seq, said.update.generation)
        each.stored_at = now
        each.stored = NewNotification(
            queue_id=each.queue_id,
            place=queue.last_seq,
            sender=each.sender,
            delivery_id=each.id,
            task_id=said.task_id,
            config_id=said.config_id,
            seq=said.seq,
            missing=compared.missing,
            late=int(compared.late),
            version=str(said.update.origin),
            generation_before=compared.generation_before,
            kid=said.kid or "",
            issued_at=to_micros(said.issued_at or now),
            received_at=received,
            body=body,
            body_bytes=len(body),
            body_sha256=said.body_sha256,
            traceparent=each.traceparent,
            not_before=received,
            scheduled_at=received,
        )

    def _take(self, each: Candidate, registered: RegisteredSecrets, now: datetime) -> Script[None]:
        """Do step 8, and check the capacity of step 9.

        Raises:
            InboundError: It is refused.
        """
        sender, secret, bind = each.sender, each.secret, False
        task_id = each.notification.task_id
        each.trail.begun.append(Step.TASK)  # 8
        if secret is None or not registered.is_bound(sender, secret, task_id):
            bind = yield from check_expected(
                each.tasks,
                sender=sender,
                secret=secret,
                task_id=task_id,
                now=now,
                registered=registered,
            )
        each.trail.begun.append(Step.STORED)  # 9
        self._capacity.take(sender)
        if bind and secret is not None and task_id is not None:
            each.trail.begun.pop()  # 8 again
            yield from bind_secret(sender, secret, task_id, now, registered)
            each.trail.begun.append(Step.STORED)

    def _decide_on_copies(
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
            elif _hash_of(each) != _hash_of(first):
                each.result = Refused(_conflict())
        again = [each for each in copies if isinstance(each.result, Refused)]
        if again:
            yield from self.store(again, wait=wait)


def _is_known(each: Candidate, before: Mapping[tuple[str, str], str]) -> bool:
    """Return whether an id was accepted before; refuse it if its body was another one."""
    known = before.get(each.key)
    if known is not None and known != _hash_of(each):
        each.result = Refused(_conflict())
    return known is not None


def _hash_of(each: Candidate) -> str:
    return each.notification.body_sha256


def _conflict() -> ConflictError:
    return ConflictError("this id was accepted before with another body")


def _names(each: Candidate) -> list[str]:
    names = [f"queue {each.queue_id}"]
    if each.secret is not None and each.tasks is TaskPolicy.BIND:
        # Two tasks may arrive at once with one token: only one of them binds it.
        names.insert(0, f"token {each.sender} {each.secret.sha256}")
    return names
