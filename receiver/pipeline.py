"""`Pipeline`: the ten steps from a request to an answer (wire profile §4). No web framework.

The steps are numbered as on that page. The edge calls `admission.admit` and `select` with the head,
so that a stranger's body is never read, then reads the body within the limits, and calls `receive`;
all three end in a verdict, never in an exception. Step 10, the callbacks, begins where the
notification is committed.
"""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias, TypeVar

from pushkit.errors import InboundError, MalformedRequestError, StorageError
from pushkit.events import Listeners, NotificationAccepted, NotificationRepeated
from pushkit.logs import RepeatedLog, printable
from pushkit.storage import Database, Script
from pushkit.webhook import Headers, WebhookRequest
from receiver.admission import Admission, Limits
from receiver.credentials import HandedOut, ProvenSecret, check_presented, presented
from receiver.expected import ExpectedStore
from receiver.inbox import BacklogFullError, Capacity, Inbox, InboxFullError, task_lock
from receiver.limits import RateLimit, RateLimiter
from receiver.replay import (
    ConflictError,
    Replay,
    ReplayMemory,
    Reservation,
    Seen,
)
from receiver.selection import Selected
from receiver.trust import TaskPolicy, TrustedSender
from receiver.trusted_keys import Trust
from receiver.verdicts import Refusals, Verdict
from receiver.verify import (
    VerifiedHead,
    VerifiedNotification,
    check_method,
    read_notification,
    verify_body,
    verify_head,
)

__all__ = ["Pipeline", "ProvenHead"]

_log = logging.getLogger("receiver")

T = TypeVar("T")
_Facts: TypeAlias = dict[str, str | None]

_MAX_ID_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenHead:
    """What `select` found out from the head of a request, for `receive`.

    Attributes:
        head: Sender and signature.
        secret: The token or the credentials that the notification stands on, if any.
        max_body_bytes: How much of a body this sender may send.
    """

    head: VerifiedHead
    secret: ProvenSecret | None
    max_body_bytes: int


_DUPLICATE = Verdict(status=200, code="duplicate")


class Pipeline:
    """Takes requests to verdicts.

    Args:
        trust: The trusted senders and their keys. May be replaced at any time: a request is held
            against the one that it met.
        database: Where inbox and expected tasks live.
        replay: The memory of ids, in the same database or elsewhere.
        limits: Sizes and rates.
        clock: Returns now, aware, in UTC.
        accepted: Called with the sender and the task of what was accepted, if it has one.
        events: Who hears of every verdict.
    """

    def __init__(
        self,
        trust: Trust,
        database: Database,
        replay: ReplayMemory,
        *,
        limits: Limits,
        clock: Callable[[], datetime],
        accepted: Callable[[str, str | None], None],
        events: Listeners,
    ) -> None:
        self.trust = trust
        self.limits = limits
        self.events = events
        self.refusals = Refusals(events, clock)
        self.admission = Admission(limits, clock, self.refusals)
        self._faults = RepeatedLog(_log)
        self._database = database
        self._clock = clock
        self._accepted = accepted
        self._senders = RateLimiter(limits.sender_rate)
        self._own_rates: dict[tuple[str, RateLimit], RateLimiter] = {}
        self._replay = replay
        self._expected = ExpectedStore()
        self._inbox = Inbox()
        self._capacity = Capacity(
            per_sender=limits.max_backlog_per_sender, in_all=limits.max_backlog
        )

    # --- the calls of the edge ------------------------------------------------------------------

    async def select(
        self, headers: Headers, *, method: str, target: str, path: str, peer: str
    ) -> ProvenHead | Verdict:
        """Do steps 2 to 5 before the body is read: what the head proves, or the refusal.

        Args:
            headers: The request's headers.
            method: Its method.
            target: Its path and query as received.
            path: The sender's path at which it arrived, without any prefix of a mount.
            peer: The address that it came from, for the log.
        """
        proves = functools.partial(self._prove_head, headers, method, target, path)
        return await self._answer(proves, peer=peer)

    async def receive(
        self, request: WebhookRequest, *, path: str, peer: str, proven: ProvenHead | None = None
    ) -> Verdict:
        """Do steps 2 to 9 and answer.

        Args:
            request: The request, whole.
            path: The sender's path at which it arrived, without any prefix of a mount.
            peer: The address that it came from, for the log.
            proven: What `select` said of its head; without it, that is done here.
        """
        return await self._answer(functools.partial(self._steps, request, path, proven), peer=peer)

    async def _answer(self, steps: Callable[[_Facts], Awaitable[T]], *, peer: str) -> T | Verdict:
        """Turn every refusal into its verdict; what was proven until then goes into the log."""
        facts: _Facts = {}
        try:
            return await steps(facts)
        except StorageError:
            fault = "refused 503 storage peer=%s"
            self._faults.say("storage", logging.ERROR, fault, peer, exc_info=True)
            self.refusals.tell(503, "storage", peer=peer, proven=facts)
            return Verdict(status=503, code="storage", retry_after=timedelta(seconds=1))
        except InboundError as exc:
            return self.refusals.verdict(exc, peer=peer, proven=facts)

    # --- the steps --------------------------------------------------------------------------------

    async def _prove_head(
        self, headers: Headers, method: str, target: str, path: str, facts: _Facts
    ) -> ProvenHead:
        check_method(method)
        trust = self.trust
        selected = await trust.select(path, headers)  # 2
        head = verify_head(  # 3, 4
            selected,
            headers,
            target,
            own_url=f"{trust.url}{path}",
            now=self._clock(),
            method=method,
        )
        facts["sender"] = selected.sender.name
        secret = await self._check_secrets(headers, selected)  # 5
        limit = self.admission.max_body_bytes(selected.sender)
        return ProvenHead(head=head, secret=secret, max_body_bytes=limit)

    async def _steps(
        self, request: WebhookRequest, path: str, proven: ProvenHead | None, facts: _Facts
    ) -> Verdict:
        if proven is None:
            proven = await self._prove_head(
                request.headers, request.method, request.target, path, facts
            )
        sender = proven.head.sender
        facts["sender"] = sender.name
        self.admission.check_body_size(len(request.body), sender)
        verify_body(proven.head, request.body)  # 3, the body's part
        self._rate_of(sender).take(sender.name, self._clock())  # 6
        verified = read_notification(proven.head, request)
        facts.update(task=verified.task_id, delivery_id=verified.delivery_id)
        _check_ids(verified.delivery_id, verified.config_id, verified.task_id)
        verdict = await self._store(sender, verified, proven.secret, request.body)  # 7, 8, 9
        self._tell(verdict, verified, sender)
        _log.info(
            "%s sender=%s profile=%s task=%s id=%s seq=%s kind=%s",
            verdict.code,
            sender.name,
            sender.profile.value,
            printable(verified.task_id),
            printable(verified.delivery_id),
            verified.seq,
            verified.update.kind.value,
            extra={
                "status": verdict.status,
                "code": verdict.code,
                "sender": sender.name,
                "profile": sender.profile.value,
                "task": verified.task_id,
                "delivery_id": verified.delivery_id,
                "seq": verified.seq,
                "kind": verified.update.kind.value,
            },
        )
        return verdict

    def _tell(
        self, verdict: Verdict, verified: VerifiedNotification, sender: TrustedSender
    ) -> None:
        repeated = verdict.notification_id is None
        happened = NotificationRepeated if repeated else NotificationAccepted
        if self.events.wants(happened.usual_level):
            self.events.tell(
                happened(
                    at=self._clock(),
                    sender=sender.name,
                    task_id=verified.task_id,
                    delivery_id=verified.delivery_id,
                )
            )

    def _rate_of(self, sender: TrustedSender) -> RateLimiter:
        if sender.rate is None:
            return self._senders
        return self._own_rates.setdefault((sender.name, sender.rate), RateLimiter(sender.rate))

    async def _check_secrets(self, headers: Headers, selected: Selected) -> ProvenSecret | None:
        """Step 5: the token, and any static credentials, among what this sender was given."""
        sender = selected.sender
        secret = presented(headers, sender, selected.jwt)
        handed_out: list[HandedOut] = []
        if not secret.settled:
            handed_out = await self._database.read(self._expected.handed_out(sender.name, secret))
        return check_presented(sender, secret, handed_out)

    async def _store(
        self,
        sender: TrustedSender,
        verified: VerifiedNotification,
        secret: ProvenSecret | None,
        body: bytes,
    ) -> Verdict:
        """Steps 7, 8 and 9: reserve the id, then store, then remember the id for good."""
        seen = Seen(
            sender=sender.name,
            # Without an id a repetition cannot be told from a new one: each is stored.
            delivery_id=verified.delivery_id or f"none_{uuid.uuid4().hex}",
            body_sha256=verified.body_sha256,
        )
        reservation = await self._replay.reserve(seen)
        if reservation is None:
            return _DUPLICATE
        try:
            verdict = await self._database.write(
                self._accept(sender, verified, reservation, secret=secret, body=body)
            )
        except Exception:
            await self._replay.release(reservation)
            raise
        if verdict.notification_id is not None:
            self._accepted(sender.name, verified.task_id)
        await self._replay.commit(reservation)
        return verdict

    def _accept(
        self,
        sender: TrustedSender,
        verified: VerifiedNotification,
        reservation: Reservation,
        *,
        secret: ProvenSecret | None,
        body: bytes,
    ) -> Script[Verdict]:
        """What of steps 7, 8 and 9 is one transaction."""
        delivery_id, task_id = reservation.seen.delivery_id, verified.task_id
        if secret is not None and sender.tasks is TaskPolicy.BIND:
            # Of two tasks that come at once with one token, one binds it.
            yield from self._database.exclusively(f"token {sender.name} {secret.sha256}")
        if task_id is not None:
            # One at a time: its ids grow in the order of commits, and each `seq` is compared.
            yield from self._database.exclusively(task_lock(sender.name, task_id))
        now = yield from self._database.now()
        if (yield from self._replay.remember(reservation, now)) is Replay.DUPLICATE:
            return _DUPLICATE
        yield from self._expected.admit(
            sender.tasks, sender=sender.name, secret=secret, task_id=task_id, now=now
        )
        try:
            yield from self._capacity.take(sender.name, now)
        except (BacklogFullError, InboxFullError):
            # The memory of ids may be elsewhere, and may have lost what the inbox still has.
            if (yield from self._inbox.has(sender.name, delivery_id, body)):
                return _DUPLICATE
            raise
        notification_id = yield from self._inbox.store(
            sender=sender.name,
            delivery_id=delivery_id,
            kid=verified.kid or "",
            issued_at=verified.issued_at or now,
            task_id=task_id,
            config_id=verified.config_id,
            seq=verified.seq,
            body=body,
            now=now,
        )
        if notification_id is None:
            # Not in the memory of ids, but still in the inbox: an update is called back once.
            if not (yield from self._inbox.has(sender.name, delivery_id, body)):
                raise ConflictError("this id is in the inbox with another body")
            return _DUPLICATE
        yield from self._database.wake()
        return Verdict(status=202, code="accepted", notification_id=notification_id)


def _check_ids(*ids: str | None) -> None:
    """Refuse what cannot be a key in every database: an index has its limits, PostgreSQL no NUL."""
    for found in ids:
        if found is not None and ("\0" in found or len(found.encode()) > _MAX_ID_BYTES):
            raise MalformedRequestError(
                f"an id has a NUL, or more than {_MAX_ID_BYTES} bytes: {printable(found)}"
            )
