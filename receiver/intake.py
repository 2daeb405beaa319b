"""`Intake`: runs the steps of the verification on one request, up to its verdict.

It drives `verification.verify` (steps 1 to 6) with keys, database and socket, and submits a
verified notification to `accepting` (steps 7 to 9). The result is a verdict, never an exception.
Step 10, the callbacks, begins once the notification is committed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from pushkit.errors import InboundError, StorageError
from pushkit.events.listeners import Listeners
from pushkit.events.receiver import NotificationAccepted, NotificationRepeated
from pushkit.logs import printable
from pushkit.storage.database import Database
from pushkit.traceparent import TRACEPARENT, read_traceparent, trace_id_of
from receiver.accepting import Acceptance, CallbackSlots, Candidate
from receiver.inbox.model import ClaimedNotification
from receiver.limits import Limits
from receiver.refusals import Refusals, Verdict
from receiver.registrations import RegistrationStore
from receiver.replay.memory import ReplayMemory, Seen
from receiver.selection import KeysOf, Place
from receiver.service_state import (
    BodyTimeoutError,
    IncompleteBodyError,
    ServiceState,
    body_too_large,
)
from receiver.trust import Trust, keys_of
from receiver.verification import Facts, Head, Question, Repetition, Verified, WholeBody, verify

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import TracedSpan, Tracing

_log = logging.getLogger("receiver")

_DUPLICATE = Verdict(status=200, code="duplicate")

ReadBody: TypeAlias = Callable[[int], Awaitable[bytes | None]]
"""Reads a body of at most so many bytes; None if it is longer. May raise `BrokenBodyError`."""


T = TypeVar("T")
Reply: TypeAlias = Callable[[Verdict], None]
Rest: TypeAlias = Coroutine[Any, Any, None]
Steps: TypeAlias = Generator[Question, Any, Verified | Repetition]


class BrokenBodyError(Exception):
    """The peer disconnected within the body, or its framing is broken. Raised by an adapter."""


class _Asked(NamedTuple):
    """A request that is being verified."""

    head: Head
    peer: str
    reply: Reply
    now: datetime
    facts: Facts  # what is proven so far


class Intake:
    """Verifies and stores notifications, and replies with a verdict on each."""

    def __init__(
        self,
        # The trusted senders and their keys. May be replaced at any time: each request is verified
        # against the trust that was in force when it arrived.
        trust: Trust,
        database: Database,
        replay: ReplayMemory,  # the memory of ids, in the same database or in Redis
        *,
        limits: Limits,
        clock: Callable[[], datetime],
        slots: CallbackSlots,
        # Called with the sender and the task of each accepted notification that has a task.
        accepted: Callable[[str, str], None],
        events: Listeners,
        ids_kept: timedelta,  # how long ids are remembered in the database
        tracing: Tracing | None = None,
    ) -> None:
        self.trust = trust
        self.limits = limits
        self.events = events
        self._tracing = tracing
        self.refusals: Refusals = Refusals(events, clock)
        self._service = ServiceState(limits, clock, ids_kept=ids_kept)
        self._database = database
        self._clock = clock
        self._announce = accepted
        self._replay = replay
        self._registrations = RegistrationStore()
        self._acceptance = Acceptance(database, replay, self._registrations, limits, slots)
        self._slots = slots

    def count_peer(self, peer: str) -> Verdict | None:
        """Count a request that is no notification; return the refusal if its address is limited."""
        try:
            self._service.count_peer(peer, self._clock())
        except InboundError as exc:
            return self.refusals.verdict(exc, peer=peer)
        return None

    async def take(self, head: Head, place: Place, read: ReadBody, *, peer: str) -> Verdict:
        """Do all steps on one request.

        Args:
            place: Its path, as the trust in force when it arrived has it.
            read: Reads its body; called only once the head is proven.
            peer: The address that it came from.
        """
        return await replied(functools.partial(self.begin, head, place, read, peer=peer))

    def begin(
        self, head: Head, place: Place, read: ReadBody, reply: Reply, *, peer: str
    ) -> Rest | None:
        """Do the steps on one request; the arguments are as above.

        Args:
            reply: Called with the verdict: before this returns, or when the notification is stored.

        Returns:
            A coroutine to run in a task, where a step has to wait for keys, for tokens in the
            database, for the body, or for a memory of ids outside of it; None if there is none.
        """
        service, now = self._service, self._clock()
        facts: Facts = {}
        asked = _Asked(head, peer, reply, now, facts)
        try:
            service.count_peer(peer, now)  # 1
            steps = verify(head, place, now=now, service=service, facts=facts)
            question = next(steps)
        except StopIteration as done:
            found: Verified | Repetition = done.value
        except InboundError as exc:
            self._refuse(asked, exc)
            return None
        else:
            return self._go_on(asked, steps, question, read)
        # Outside of the try: the traceback of a fault would show what was found, with its body.
        return self._proven(asked, found)

    async def _go_on(self, asked: _Asked, steps: Steps, question: Question, read: ReadBody) -> None:
        """Do the remaining steps, and wait where one has to."""
        try:
            while True:
                question = steps.send(await self._answer(question, read))
        except StopIteration as done:
            found: Verified | Repetition = done.value
        except StorageError as exc:
            self._fail(asked, exc)
            return
        except InboundError as exc:
            self._refuse(asked, exc)
            return
        rest = self._proven(asked, found)  # outside of the try, as above
        if rest is not None:
            await rest

    async def _answer(self, question: Question, read: ReadBody) -> object:
        """Fetch or read what `verify` asks for: it asks only for what is not in memory."""
        if isinstance(question, KeysOf):
            return await keys_of(question)
        if isinstance(question, WholeBody):
            return await self._body(question, read)
        found = await self._database.read(
            self._registrations.handed_out(question.sender.name, question.secret)
        )
        if found:
            self._service.remember_handed_out(question, found)
        return found

    async def _body(self, asked: WholeBody, read: ReadBody) -> bytes:
        seconds = self.limits.request_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                body = await read(asked.limit)
        except TimeoutError as exc:
            raise BodyTimeoutError(f"not whole within {seconds:g} s") from exc
        except BrokenBodyError as exc:
            raise IncompleteBodyError("the peer disconnected, or its framing is broken") from exc
        if body is None:
            raise body_too_large("more", asked.limit, asked.sender)
        return body

    def _proven(self, asked: _Asked, found: Verified | Repetition) -> Rest | None:
        """Steps 7, 8 and 9: reserve the id, then store, then remember the id for good."""
        if isinstance(found, Repetition):
            self._end(asked, _DUPLICATE, found)
            return None
        if self._tracing is not None:
            return self._traced(asked, found)
        traceparent = _traceparent_of(asked.head)
        if self._replay.is_elsewhere:
            return self._store_patiently(asked, found, traceparent)
        candidate = Candidate(found, _seen(found), traceparent)
        try:
            # Nobody awaits the future: `_accepted` receives the error.
            self._acceptance.submit(candidate, functools.partial(self._accepted, asked, candidate))
        except StorageError as exc:
            self._fail(asked, exc)
        return None

    def _accepted(
        self, asked: _Asked, candidate: Candidate, result: int | BaseException | None
    ) -> None:
        """Reply once a notification is stored, refused, or has failed."""
        try:
            self._stored(candidate, result)
            if isinstance(result, InboundError):
                self._refuse(asked, result)
            elif isinstance(result, BaseException):
                self._fail(asked, result)
            else:
                self._end(asked, self._verdict(candidate, result, asked.now), candidate.verified)
        except Exception as exc:  # noqa: BLE001  # never a 500: the sender comes again
            self._fail(asked, exc)

    async def _traced(self, asked: _Asked, verified: Verified) -> None:
        """Store a notification within a span of the trace that its sender states."""
        said = verified.notification
        assert self._tracing is not None  # noqa: S101  # else `_proven` does not call this
        with self._tracing.accepting(
            _traceparent_of(asked.head),
            sender=said.sender,
            task=said.task_id,
            delivery_id=said.delivery_id,
        ) as span:
            asked = asked._replace(reply=_noting(span, asked.reply))
            await self._store_patiently(asked, verified, span.traceparent)

    async def _store_patiently(
        self, asked: _Asked, verified: Verified, traceparent: str | None
    ) -> None:
        """Store a notification and reply, awaiting the memory of ids."""
        try:
            verdict = await self._remember_and_store(verified, traceparent, asked.now)
        except InboundError as exc:
            self._refuse(asked, exc)
        except Exception as exc:  # noqa: BLE001  # a fault of ours
            self._fail(asked, exc)
        else:
            self._end(asked, verdict, verified)

    async def _remember_and_store(
        self, verified: Verified, traceparent: str | None, now: datetime
    ) -> Verdict:
        reserved = await self._replay.reserve(_seen(verified))
        if reserved is None:
            return _DUPLICATE
        candidate = Candidate(verified, reserved, traceparent)
        try:
            # `_stored` is called even if the request is cancelled: its callbacks must begin.
            stored = await self._acceptance.submit(
                candidate, functools.partial(self._stored, candidate)
            )
        except Exception:
            await self._replay.release(reserved)
            raise
        await self._replay.commit(reserved)
        return self._verdict(candidate, stored, now)

    def _verdict(self, candidate: Candidate, stored: int | None, now: datetime) -> Verdict:
        """Return the verdict on a notification that is stored now (its id) or was before (None)."""
        if stored is None:
            return _DUPLICATE
        self._service.remember_accepted(candidate.key, candidate.verified, now)
        return Verdict(status=202, code="accepted", notification_id=stored)

    def _stored(self, candidate: Candidate, notification_id: int | BaseException | None) -> None:
        """Dispatch a notification that was stored in a slot; give the slot back if it was not."""
        if isinstance(notification_id, BaseException):
            self._acceptance.cancel([candidate])
            return
        if notification_id is None or candidate.stored is None:
            return  # it was stored before
        notification = candidate.accepted(notification_id)
        if candidate.lease is not None:
            self._slots.begin(
                ClaimedNotification(
                    stored=notification,
                    attempts=1,
                    since=notification.received_at,
                    broken_off=False,
                    callbacks={},
                    leased_at=candidate.lease.taken,
                )
            )
        else:
            self._slots.keep(notification)
            if candidate.waits:
                self._slots.wake()  # one that is not the head of its task waits for the head
        if notification.task_id is not None:
            self._announce(notification.sender, notification.task_id)

    # --- answers -------------------------------------------------------------------------------

    def _refuse(self, asked: _Asked, error: InboundError) -> None:
        proven = _within_trace(asked.facts, asked.head)
        asked.reply(self.refusals.verdict(error, peer=asked.peer, proven=proven))

    def _fail(self, asked: _Asked, error: BaseException) -> None:
        """Answer a fault of our own."""
        code = "storage" if isinstance(error, StorageError) else "internal"
        proven = _within_trace(asked.facts, asked.head)
        asked.reply(self.refusals.fault(code, peer=asked.peer, error=error, proven=proven))

    def _end(self, asked: _Asked, verdict: Verdict, found: Verified | Repetition) -> None:
        """Report a notification that was accepted, now or before, and reply."""
        self._tell(asked, verdict, found)
        asked.reply(verdict)

    def _tell(self, asked: _Asked, verdict: Verdict, found: Verified | Repetition) -> None:
        repeated = verdict.notification_id is None
        happened = NotificationRepeated if repeated else NotificationAccepted
        is_told, is_said = self.events.wants(happened.usual_level), _log.isEnabledFor(logging.INFO)
        if not (is_told or is_said):
            return
        trace_id = trace_id_of(_traceparent_of(asked.head))
        if isinstance(found, Verified):
            found = found.repeated()
        if is_told:
            self.events.emit(
                happened(
                    at=self._clock(),
                    sender=found.sender.name,
                    task_id=found.task_id,
                    delivery_id=found.delivery_id,
                    trace_id=trace_id,
                )
            )
        if is_said:
            _say(verdict, found, trace_id)


def _seen(verified: Verified) -> Seen:
    said = verified.notification
    return Seen(
        sender=said.sender,
        # A sender without ids: repetitions cannot be recognised, so each one is stored.
        delivery_id=said.delivery_id or f"none_{uuid.uuid4().hex}",
        body_sha256=said.body_sha256,
    )


async def replied(begin: Callable[[Callable[[T], None]], Rest | None]) -> T:
    """Call `begin` with a callback, run the rest that it returns, and return the reply."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def reply(found: T) -> None:
        if not answer.done():  # the caller may have been cancelled
            answer.set_result(found)

    rest = begin(reply)
    if rest is not None:
        await rest
    return await answer


def _noting(span: TracedSpan, reply: Reply) -> Reply:
    """Return a callback that notes the verdict in a span, and replies."""

    def note(verdict: Verdict) -> None:
        span.note(code=verdict.code)
        reply(verdict)

    return note


def _traceparent_of(head: Head) -> str | None:
    values = head.headers.values().get(TRACEPARENT)
    return read_traceparent(values) if values else None


def _within_trace(facts: Facts, head: Head) -> Facts:
    """Return the facts with the trace id; a stranger's trace is not believed."""
    trace_id = trace_id_of(_traceparent_of(head)) if facts else None
    return facts | {"trace_id": trace_id} if trace_id else facts


def _say(verdict: Verdict, found: Repetition, trace_id: str | None) -> None:
    profile = found.sender.profile.value
    _log.info(
        "%s sender=%s profile=%s task=%s id=%s seq=%s kind=%s%s",
        verdict.code,
        found.sender.name,
        profile,
        printable(found.task_id),
        printable(found.delivery_id),
        found.seq,
        found.kind.value,
        f" trace_id={trace_id}" if trace_id else "",
        extra={
            "status": verdict.status,
            "code": verdict.code,
            "sender": found.sender.name,
            "profile": profile,
            "task": found.task_id,
            "delivery_id": found.delivery_id,
            "seq": found.seq,
            "kind": found.kind.value,
            **({"trace_id": trace_id} if trace_id else {}),
        },
    )
