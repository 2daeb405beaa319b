"""`Intake`: from the head of a request to its verdict. No web framework.

It drives `verification.verify` (steps 1 to 6) with keys, database and socket, hands what is proven
to `accepting` (steps 7 to 9), and ends in a verdict, never in an exception. Step 10, the callbacks,
begins where the notification is committed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from pushkit.errors import InboundError, StorageError
from pushkit.events.listeners import Listeners
from pushkit.events.receiver import NotificationAccepted, NotificationRepeated
from pushkit.logs import printable
from pushkit.storage.database import Database
from pushkit.traceparent import TRACEPARENT, read_traceparent, trace_id_of
from receiver.accepting import Acceptance, Candidate, Hands
from receiver.credentials import HandedOut
from receiver.expected import ExpectedStore
from receiver.inbox.model import ClaimedNotification
from receiver.limits import Limits
from receiver.refusals import Refusals, Verdict
from receiver.replay.memory import ReplayMemory, Seen
from receiver.selection import KeysOf
from receiver.trusted_keys import Trust
from receiver.verification import (
    BodyTimeoutError,
    Facts,
    HandedOutTo,
    Head,
    House,
    IncompleteBodyError,
    Verified,
    WholeBody,
    body_too_large,
    verify,
)

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing

_log = logging.getLogger("receiver")

_MOST_KNOWN_SECRETS = 10_000

_DUPLICATE = Verdict(status=200, code="duplicate")
_MOST_RECENT = 10_000
_RECENT = timedelta(minutes=10)

ReadBody: TypeAlias = Callable[[int], Awaitable[bytes | None]]
"""Reads a body of so many bytes at most; None if it is longer. May raise `BrokenBodyError`."""


class BrokenBodyError(Exception):
    """The peer went away within the body, or its framing is broken. Raised by an adapter."""


class Intake:
    """Takes requests to verdicts."""

    def __init__(
        self,
        # The trusted senders and their keys. May be replaced at any time: a request is held against
        # the one that it met.
        trust: Trust,
        database: Database,
        replay: ReplayMemory,  # the memory of ids, in the same database or elsewhere
        *,
        limits: Limits,
        clock: Callable[[], datetime],
        hands: Hands,
        # Called with the sender and the task of what was accepted, where it has one.
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
        self._house = House(limits, clock)
        self._database = database
        self._clock = clock
        self._accepted = accepted
        self._replay = replay
        self._expected = ExpectedStore()
        self._recent: dict[tuple[str, str], tuple[str, datetime]] = {}
        self._recent_for = min(_RECENT, ids_kept / 2)
        self._known_secrets: dict[tuple[str, str | None, tuple[str, ...]], list[HandedOut]] = {}
        self._acceptance = Acceptance(database, replay, self._expected, limits, hands)
        self._hands = hands

    def admit_peer(self, peer: str) -> Verdict | None:
        """Count one request of an address that is no notification; None to go on."""
        try:
            self._house.admit_peer(peer, self._clock())
        except InboundError as exc:
            return self.refusals.verdict(exc, peer=peer)
        return None

    async def take(self, head: Head, path: str, read: ReadBody, *, peer: str) -> Verdict:
        """Do all steps on one request.

        Args:
            path: The sender's path at which it arrived, without any prefix of a mount.
            read: Reads its body; called only once the head is proven.
            peer: The address that it came from.
        """
        facts: Facts = {}
        now = self._clock()
        try:
            self._house.admit_peer(peer, now)  # 1
            verified = await self._verified(head, path, read, now, facts)  # 1 to 6
            store = self._store if self._tracing is None else self._traced
            verdict = await store(verified, _traceparent_of(head), now)  # 7, 8, 9
        except StorageError as exc:
            proven = _within_trace(facts, head)
            return self.refusals.fault("storage", peer=peer, error=exc, proven=proven)
        except InboundError as exc:
            return self.refusals.verdict(exc, peer=peer, proven=_within_trace(facts, head))
        self._tell(verdict, verified, head)
        return verdict

    async def _verified(
        self, head: Head, path: str, read: ReadBody, now: datetime, facts: Facts
    ) -> Verified:
        trust = self.trust
        steps = verify(
            head,
            trust.at(path),
            own_url=f"{trust.url}{path}",
            now=now,
            house=self._house,
            facts=facts,
        )
        answer: Any = None
        try:
            while True:
                question = steps.send(answer)
                match question:
                    case KeysOf():
                        answer = await trust.keys_of(question)
                    case HandedOutTo():
                        answer = await self._handed_out(question)
                    case WholeBody():
                        answer = head.body
                        if answer is None:
                            answer = await self._body(question, read)
        except StopIteration as done:
            found: Verified = done.value
            return found

    async def _handed_out(self, asked: HandedOutTo) -> Sequence[HandedOut]:
        """Say what was handed out; what was found once is not read again.

        Tokens and credentials never change what they are, and whether they are good still is said
        by step 8, in the transaction that stores.
        """
        secret = asked.secret
        key = (asked.sender.name, secret.token, secret.credentials)
        found = self._known_secrets.get(key)
        if found is None:
            script = self._expected.handed_out(asked.sender.name, secret)
            found = await self._database.read(script)
            if found:
                if len(self._known_secrets) >= _MOST_KNOWN_SECRETS:
                    del self._known_secrets[next(iter(self._known_secrets))]
                self._known_secrets[key] = found
        return found

    async def _body(self, asked: WholeBody, read: ReadBody) -> bytes:
        seconds = self.limits.request_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                body = await read(asked.limit)
        except TimeoutError as exc:
            raise BodyTimeoutError(f"not whole within {seconds:g} s") from exc
        except BrokenBodyError as exc:  # nobody to answer, no fault here
            raise IncompleteBodyError("the peer went away, or its framing is broken") from exc
        if body is None:
            raise body_too_large("more", asked.limit, asked.sender)
        return body

    async def _traced(self, verified: Verified, traceparent: str | None, now: datetime) -> Verdict:
        """Store a notification within the trace that its sender says it belongs to."""
        said = verified.notification
        assert self._tracing is not None  # noqa: S101  # else there is no trace
        with self._tracing.accepting(
            traceparent, sender=said.sender, task=said.task_id, delivery_id=said.delivery_id
        ) as span:
            verdict = await self._store(verified, span.traceparent, now)
            span.note(code=verdict.code)
            return verdict

    async def _store(self, verified: Verified, traceparent: str | None, began: datetime) -> Verdict:
        """Steps 7, 8 and 9: reserve the id, then store, then remember the id for good."""
        notification = verified.notification
        seen = Seen(
            sender=notification.sender,
            # Without an id a repetition cannot be told from a new one: each is stored.
            delivery_id=notification.delivery_id or f"none_{uuid.uuid4().hex}",
            body_sha256=notification.body_sha256,
        )
        if self._was_just_accepted(seen, began):
            return _DUPLICATE
        reservation = await self._replay.reserve(seen)
        if reservation is None:
            return _DUPLICATE
        candidate = Candidate(verified=verified, reservation=reservation, traceparent=traceparent)
        try:
            # Also where the request is cancelled, what is stored in hand is begun.
            ended = functools.partial(self._stored, candidate)
            self._hands.settle()
            notification_id = await self._database.write_together(
                self._acceptance.accept, candidate, ended
            )
        except Exception:
            await self._replay.release(reservation)
            raise
        await self._replay.commit(reservation)
        if notification_id is None:
            return _DUPLICATE
        if len(self._recent) >= _MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        self._recent[seen.sender, seen.delivery_id] = seen.body_sha256, began
        return Verdict(status=202, code="accepted", notification_id=notification_id)

    def _was_just_accepted(self, seen: Seen, now: datetime) -> bool:
        """Say whether this process stored the same a moment ago: the database need not be asked.

        It still remembers the id then. Another body is for the transaction to refuse.
        """
        body_sha256, at = self._recent.get((seen.sender, seen.delivery_id), ("", None))
        if at is None or body_sha256 != seen.body_sha256:
            return False
        return timedelta(0) <= now - at < self._recent_for

    def _stored(self, candidate: Candidate, notification_id: int | BaseException | None) -> None:
        """Hand over what was stored in hand, or let go of what was not stored."""
        if isinstance(notification_id, BaseException):
            self._acceptance.cancel([candidate])
            return
        if notification_id is None:
            return
        if candidate.stored is None:
            return  # it was there
        notification = candidate.accepted(notification_id)
        if candidate.lease is not None:
            self._hands.begin(
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
            self._hands.keep(notification)
            if candidate.stored.head:
                self._hands.wake()  # what stands behind others of its task waits for them
        if notification.task_id is not None:
            self._accepted(notification.sender, notification.task_id)

    def _tell(self, verdict: Verdict, verified: Verified, head: Head) -> None:
        said = verified.notification
        repeated = verdict.notification_id is None
        happened = NotificationRepeated if repeated else NotificationAccepted
        if self.events.wants(happened.usual_level):
            self.events.tell(
                happened(
                    at=self._clock(),
                    sender=said.sender,
                    task_id=said.task_id,
                    delivery_id=said.delivery_id,
                    trace_id=trace_id_of(_traceparent_of(head)),
                )
            )
        if _log.isEnabledFor(logging.INFO):
            _say(verdict, verified, trace_id_of(_traceparent_of(head)))


def _traceparent_of(head: Head) -> str | None:
    return read_traceparent(head.headers.all(TRACEPARENT))


def _within_trace(facts: Facts, head: Head) -> Facts:
    """Return what a signature has shown, and the trace; a trace of whom nobody knows is none."""
    trace_id = trace_id_of(_traceparent_of(head)) if facts else None
    return facts | {"trace_id": trace_id} if trace_id else facts


def _say(verdict: Verdict, verified: Verified, trace_id: str | None) -> None:
    said, profile = verified.notification, verified.sender.profile.value
    _log.info(
        "%s sender=%s profile=%s task=%s id=%s seq=%s kind=%s%s",
        verdict.code,
        said.sender,
        profile,
        printable(said.task_id),
        printable(said.delivery_id),
        said.seq,
        said.update.kind.value,
        f" trace_id={trace_id}" if trace_id else "",
        extra={
            "status": verdict.status,
            "code": verdict.code,
            "sender": said.sender,
            "profile": profile,
            "task": said.task_id,
            "delivery_id": said.delivery_id,
            "seq": said.seq,
            "kind": said.update.kind.value,
            **({"trace_id": trace_id} if trace_id else {}),
        },
    )
