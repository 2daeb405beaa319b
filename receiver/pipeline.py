"""`Pipeline`: the ten steps from a request to an answer (wire profile §4). No web framework.

The steps are numbered as on that page. The edge calls `admit` and `select` with the head, so that a
stranger's body is never read, then reads the body within the limits, and calls `receive`; all three
end in a verdict, never in an exception. Step 10, the callbacks, begins where the notification is
committed.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from pushkit.errors import InboundError, MalformedRequestError, StorageError
from pushkit.storage import Database, Script
from pushkit.webhook import Headers, WebhookRequest
from receiver.credentials import HandedOut, ProvenSecret, check_presented, presented
from receiver.expected import ExpectedStore
from receiver.inbox import Inbox, task_lock
from receiver.limits import RateLimit, RateLimitedError, RateLimiter
from receiver.peers import rate_key
from receiver.replay import (
    BeingStoredError,
    ConflictError,
    Replay,
    ReplayMemory,
    Reservation,
    Seen,
)
from receiver.selection import Selected, printable
from receiver.trust import TaskPolicy, TrustedSender
from receiver.trusted_keys import Trust
from receiver.verify import (
    VerifiedHead,
    VerifiedNotification,
    read_notification,
    verify_body,
    verify_head,
)

__all__ = ["Limits", "Pipeline", "ProvenHead", "Verdict"]

_log = logging.getLogger("receiver")

T = TypeVar("T")

_MAX_ID_BYTES = 512
_CONTENT_TYPES = frozenset({"application/json", "application/a2a+json", ""})
# About what one process can verify: a flood is cut, a busy agent is not.
_PEER_RATE = RateLimit(per_second=1000, burst=2000)
_SENDER_RATE = RateLimit(per_second=1000, burst=2000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What step 1 and step 6 allow.

    Attributes:
        max_body_bytes: The largest body.
        max_header_bytes: The largest header section.
        request_timeout: The deadline for reading one request.
        peer_rate: Per peer address, before the signature: strangers.
        sender_rate: Per sender, after the signature: a stranger cannot use up its share.
    """

    max_body_bytes: int = 1024 * 1024
    max_header_bytes: int = 16 * 1024
    request_timeout: timedelta = timedelta(seconds=10)
    peer_rate: RateLimit = _PEER_RATE
    sender_rate: RateLimit = _SENDER_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to one request.

    Attributes:
        status: The HTTP status.
        code: `accepted`, `duplicate`, or the stable code of the refusal.
        retry_after: For 429 and 503.
        notification_id: Of a notification that was accepted now; None otherwise.
    """

    status: int
    code: str
    retry_after: timedelta | None = None
    notification_id: int | None = None

    @property
    def refused(self) -> bool:
        """Whether the sender gets a problem instead of a thank-you."""
        return self.status >= 400


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


class _BodyTooLargeError(InboundError):
    code = "body_too_large"
    status = 413


class _BodyTimeoutError(InboundError):
    code = "body_timeout"
    status = 408


class _IncompleteBodyError(InboundError):
    code = "incomplete_body"


class _HeadersTooLargeError(InboundError):
    code = "headers_too_large"
    status = 431


class _MediaTypeError(InboundError):
    code = "unsupported_media_type"
    status = 415


class Pipeline:
    """Takes requests to verdicts.

    Args:
        trust: The trusted senders and their keys. May be replaced at any time: a request is held
            against the one that it met.
        database: Where inbox and expected tasks live.
        replay: The memory of ids, in the same database or elsewhere.
        limits: Sizes and rates.
        clock: Returns now, aware, in UTC.
    """

    def __init__(
        self,
        trust: Trust,
        database: Database,
        replay: ReplayMemory,
        *,
        limits: Limits,
        clock: Callable[[], datetime],
    ) -> None:
        self.trust = trust
        self.limits = limits
        self._database = database
        self._clock = clock
        self._peers = RateLimiter(limits.peer_rate)
        self._senders = RateLimiter(limits.sender_rate)
        self._own_rates: dict[tuple[str, RateLimit], RateLimiter] = {}
        self._replay = replay
        self._expected = ExpectedStore()
        self._inbox = Inbox()

    # --- the calls of the edge ------------------------------------------------------------------

    def admit(self, headers: Headers, declared_length: int | None, *, peer: str) -> Verdict | None:
        """Do step 1 before the body is read; None to go on."""
        limited = self.admit_peer(peer)
        if limited is not None:
            return limited
        try:
            self._check_head(headers, declared_length)
        except InboundError as exc:
            return self._refuse(exc, peer=peer)
        return None

    def admit_peer(self, peer: str) -> Verdict | None:
        """Count one request of an address; None to go on."""
        try:
            self._peers.take(rate_key(peer), self._clock())
        except InboundError as exc:
            return self._refuse(exc, peer=peer)
        return None

    def body_too_slow(self, *, peer: str) -> Verdict:
        """Return the verdict on a body that was not there at the deadline."""
        limit = self.limits.request_timeout.total_seconds()
        return self._refuse(_BodyTimeoutError(f"not whole within {limit:g} s"), peer=peer)

    def body_broken(self, *, peer: str) -> Verdict:
        """Return the verdict on a body that ended early: nobody to answer, no fault here."""
        error = _IncompleteBodyError("the peer went away, or its framing is broken")
        return self._refuse(error, peer=peer)

    async def select(
        self, headers: Headers, *, target: str, path: str, peer: str
    ) -> ProvenHead | Verdict:
        """Do steps 2 to 5 before the body is read: what the head proves, or the refusal.

        Args:
            headers: The request's headers.
            target: Its path and query as received.
            path: The sender's path at which it arrived, without any prefix of a mount.
            peer: The address that it came from, for the log.
        """
        return await self._answer(self._prove_head(headers, target, path), peer=peer)

    def body_too_large(self, *, peer: str) -> Verdict:
        """Return the verdict on a body that turned out to be over the limit."""
        return self._refuse(
            _BodyTooLargeError(f"more than {self.limits.max_body_bytes} bytes"), peer=peer
        )

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
        return await self._answer(self._steps(request, path, proven), peer=peer)

    async def _answer(self, steps: Awaitable[T], *, peer: str) -> T | Verdict:
        """Turn every refusal into its verdict."""
        try:
            return await steps
        except StorageError:
            _log.exception("refused 503 storage peer=%s", peer)
            return Verdict(status=503, code="storage", retry_after=timedelta(seconds=1))
        except InboundError as exc:
            return self._refuse(exc, peer=peer)

    # --- the steps --------------------------------------------------------------------------------

    async def _prove_head(self, headers: Headers, target: str, path: str) -> ProvenHead:
        trust = self.trust
        selected = await trust.select(path, headers)  # 2
        head = verify_head(  # 3, 4
            selected, headers, target, own_url=f"{trust.url}{path}", now=self._clock()
        )
        secret = await self._check_secrets(headers, selected)  # 5
        limit = self.limits.max_body_bytes
        return ProvenHead(
            head=head,
            secret=secret,
            max_body_bytes=min(limit, selected.sender.max_body_bytes or limit),
        )

    async def _steps(
        self, request: WebhookRequest, path: str, proven: ProvenHead | None
    ) -> Verdict:
        if proven is None:
            proven = await self._prove_head(request.headers, request.target, path)
        sender, size = proven.head.sender, len(request.body)
        self._check_body_size(size, proven.max_body_bytes)
        verify_body(proven.head, request.body)  # 3, the body's part
        self._rate_of(sender).take(sender.name, self._clock())  # 6
        verified = read_notification(proven.head, request)
        _check_ids(verified.delivery_id, verified.config_id, verified.task_id)
        verdict = await self._store(sender, verified, proven.secret, request.body)  # 7, 8, 9
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

    def _check_head(self, headers: Headers, declared_length: int | None) -> None:
        """Step 1: sizes and media type, from the head alone."""
        size = headers.size()
        if size > self.limits.max_header_bytes:
            raise _HeadersTooLargeError(f"{size} bytes of headers")
        self._check_body_size(declared_length or 0, self.limits.max_body_bytes)
        media_type = (headers.one("Content-Type") or "").partition(";")[0].strip().lower()
        if media_type not in _CONTENT_TYPES:
            raise _MediaTypeError("expected application/json or application/a2a+json")
        # RFC 9110 §8.4: what is signed is what is sent; a coding would also let a bomb in.
        if (headers.one("Content-Encoding") or "identity").lower() != "identity":
            raise _MediaTypeError("the body is compressed, expected Content-Encoding identity")

    def _check_body_size(self, size: int, limit: int) -> None:
        if size > limit:
            raise _BodyTooLargeError(f"a body of {size} bytes, expected at most {limit}")

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

    def _refuse(self, error: InboundError, *, peer: str) -> Verdict:
        # The reason is for the log; the answer tells an outsider nothing about keys and tokens.
        facts = {"status": error.status, "code": error.code, "peer": peer, "reason": str(error)}
        _log.warning(
            "refused %d %s peer=%s: %s", error.status, error.code, peer, error, extra=facts
        )
        retry_after = None
        if isinstance(error, RateLimitedError | BeingStoredError):
            retry_after = error.retry_after
        elif error.status == 503:
            retry_after = timedelta(seconds=5)
        return Verdict(status=error.status, code=error.code, retry_after=retry_after)


def _check_ids(*ids: str | None) -> None:
    """Refuse what cannot be a key in every database: an index has its limits, PostgreSQL no NUL."""
    for found in ids:
        if found is not None and ("\0" in found or len(found.encode()) > _MAX_ID_BYTES):
            raise MalformedRequestError(
                f"an id has a NUL, or more than {_MAX_ID_BYTES} bytes: {printable(found)}"
            )
