"""`Pipeline`: the ten steps from a request to an answer (wire profile §4). No web framework.

The steps are methods, named and numbered as on that page. The edge calls `admit` with the head,
reads the body within the limits, and calls `receive`; both end in a verdict, never in an exception.
Step 10, the callbacks, begins where the notification is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pushkit.a2a import TaskUpdate, decode_update
from pushkit.errors import (
    InboundError,
    InvalidSignatureError,
    MalformedRequestError,
    StorageError,
    TokenError,
)
from pushkit.net.jwks_client import VerificationKeys
from pushkit.signing.notification_jwt import UnverifiedJwt, find_jwt, read_unverified
from pushkit.storage import Database, Script
from pushkit.webhook import Headers, WebhookRequest
from receiver.expected import ExpectedStore
from receiver.inbox import Inbox, task_lock
from receiver.limits import RateLimit, RateLimitedError, RateLimiter
from receiver.replay import (
    BeingStoredError,
    ConflictError,
    Replay,
    ReplayMemory,
    Reservation,
    Seen,
)
from receiver.trust import PresentedToken, TaskPolicy, Trust, TrustedSender
from receiver.verify import Verified, presented_token, verify_credentials, verify_signed

__all__ = ["Limits", "Pipeline", "Verdict"]

_log = logging.getLogger("receiver")

_SHOWN_CHARACTERS = 128
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


_DUPLICATE = Verdict(status=200, code="duplicate")


class _BodyTooLargeError(InboundError):
    code = "body_too_large"
    status = 413


class _HeadersTooLargeError(InboundError):
    code = "headers_too_large"
    status = 431


class _MediaTypeError(InboundError):
    code = "unsupported_media_type"
    status = 415


class Pipeline:
    """Takes requests to verdicts.

    Args:
        trust: The trusted senders and their keys.
        database: Where inbox and expected tasks live.
        replay: The memory of ids, in the same database or elsewhere.
        own_url: Says this receiver's URL for a path, from the configuration.
        limits: Sizes and rates.
        clock: Returns now, aware, in UTC.
    """

    def __init__(
        self,
        trust: Trust,
        database: Database,
        replay: ReplayMemory,
        *,
        own_url: Callable[[str], str],
        limits: Limits,
        clock: Callable[[], datetime],
    ) -> None:
        self.trust = trust
        self.limits = limits
        self._database = database
        self._own_url = own_url
        self._clock = clock
        self._peers = RateLimiter(limits.peer_rate)
        self._senders = RateLimiter(limits.sender_rate)
        self._replay = replay
        self._expected = ExpectedStore()
        self._inbox = Inbox()

    # --- the two calls of the edge --------------------------------------------------------------

    def admit(self, headers: Headers, declared_length: int | None, *, peer: str) -> Verdict | None:
        """Do step 1 before the body is read; None to go on."""
        try:
            self._peers.take(peer, self._clock())
            self._check_head(headers, declared_length)
        except InboundError as exc:
            return self._refuse(exc, peer=peer)
        return None

    def body_too_large(self, *, peer: str) -> Verdict:
        """Return the verdict on a body that turned out to be over the limit."""
        return self._refuse(
            _BodyTooLargeError(f"more than {self.limits.max_body_bytes} bytes"), peer=peer
        )

    async def receive(self, request: WebhookRequest, *, path: str, peer: str) -> Verdict:
        """Do steps 2 to 9 and answer.

        Args:
            request: The request, whole.
            path: The sender's path at which it arrived, without any prefix of a mount.
            peer: The address that it came from, for the log.
        """
        try:
            self._check_body_size(len(request.body))
            return await self._steps(request, path)
        except StorageError:
            _log.exception("refused 503 storage peer=%s", peer)
            return Verdict(status=503, code="storage", retry_after=timedelta(seconds=1))
        except InboundError as exc:
            return self._refuse(exc, peer=peer)

    # --- the steps --------------------------------------------------------------------------------

    async def _steps(self, request: WebhookRequest, path: str) -> Verdict:
        token = self._read_jwt(request.headers)
        sender, keys = await self.trust.select(path, token)  # 2
        verified = await self._verify(request, token, sender, keys)  # 3, 4
        presented = await self._check_token(request.headers, sender)  # 5
        self._senders.take(sender.name, self._clock())  # 6
        update = decode_update(request.body)
        task_id = _agreed_task_id(update, verified)
        _check_ids(verified.delivery_id, verified.config_id, task_id)
        verdict = await self._store(  # 7, 8, 9
            sender, verified, token=presented, task_id=task_id, body=request.body
        )
        _log.info(
            "%s sender=%s task=%s id=%s seq=%s kind=%s",
            verdict.code,
            sender.name,
            _printable(task_id),
            _printable(verified.delivery_id),
            verified.seq,
            update.kind.value,
        )
        return verdict

    def _check_head(self, headers: Headers, declared_length: int | None) -> None:
        """Step 1: sizes and media type, from the head alone."""
        size = headers.size()
        if size > self.limits.max_header_bytes:
            raise _HeadersTooLargeError(f"{size} bytes of headers")
        self._check_body_size(declared_length or 0)
        media_type = (headers.one("Content-Type") or "").partition(";")[0].strip().lower()
        if media_type not in _CONTENT_TYPES:
            raise _MediaTypeError("expected application/json or application/a2a+json")
        # RFC 9110 §8.4: what is signed is what is sent; a coding would also let a bomb in.
        if (headers.one("Content-Encoding") or "identity").lower() != "identity":
            raise _MediaTypeError("the body is compressed, expected Content-Encoding identity")

    def _check_body_size(self, size: int) -> None:
        if size > self.limits.max_body_bytes:
            limit = self.limits.max_body_bytes
            raise _BodyTooLargeError(f"a body of {size} bytes, expected at most {limit}")

    def _read_jwt(self, headers: Headers) -> UnverifiedJwt | None:
        token = find_jwt(headers)
        return None if token is None else read_unverified(token)

    async def _verify(
        self,
        request: WebhookRequest,
        token: UnverifiedJwt | None,
        sender: TrustedSender,
        keys: VerificationKeys,
    ) -> Verified:
        """Steps 3 and 4: find the key among the sender's own, then hold everything against it."""
        if token is None:
            raise InvalidSignatureError(f"no JWT, expected one from sender {sender.name}")
        key = await keys.find(token.kid) if token.kid else None
        if key is None:
            kid = _printable(token.kid)
            raise InvalidSignatureError(f"kid {kid} is no key of sender {sender.name}")
        own_url = self._own_url(sender.path)
        return verify_signed(request, token, key, sender, own_url=own_url, now=self._clock())

    async def _check_token(self, headers: Headers, sender: TrustedSender) -> PresentedToken | None:
        """Step 5: the token, and any static credentials that the sender was given."""
        verify_credentials(headers, sender.credentials)
        token = presented_token(headers, sender)
        if token is None or token.static:
            return token
        # A token may be optional; one that is wrong is wrong all the same.
        if not await self._database.read(self._expected.knows_token(sender.name, token.sha256)):
            raise TokenError(f"the token is none that was handed to sender {sender.name}")
        return token

    async def _store(
        self,
        sender: TrustedSender,
        verified: Verified,
        *,
        token: PresentedToken | None,
        task_id: str | None,
        body: bytes,
    ) -> Verdict:
        """Steps 7, 8 and 9: reserve the id, then store, then remember the id for good."""
        seen = Seen(
            sender=sender.name,
            delivery_id=verified.delivery_id,
            body_sha256=verified.body_sha256,
        )
        reservation = await self._replay.reserve(seen)
        if reservation is None:
            return _DUPLICATE
        try:
            verdict = await self._database.write(
                self._accept(sender, verified, reservation, token=token, task_id=task_id, body=body)
            )
        except Exception:
            await self._replay.release(reservation)
            raise
        await self._replay.commit(reservation)
        return verdict

    def _accept(
        self,
        sender: TrustedSender,
        verified: Verified,
        reservation: Reservation,
        *,
        token: PresentedToken | None,
        task_id: str | None,
        body: bytes,
    ) -> Script[Verdict]:
        """What of steps 7, 8 and 9 is one transaction."""
        if token is not None and sender.tasks is TaskPolicy.BIND:
            # Of two tasks that come at once with one token, one binds it.
            yield from self._database.exclusively(f"token {sender.name} {token.sha256}")
        if task_id is not None:
            # One at a time: its ids grow in the order of commits, and each `seq` is compared.
            yield from self._database.exclusively(task_lock(sender.name, task_id))
        now = yield from self._database.now()
        if (yield from self._replay.remember(reservation, now)) is Replay.DUPLICATE:
            return _DUPLICATE
        yield from self._expected.admit(
            sender.tasks, sender=sender.name, token=token, task_id=task_id, now=now
        )
        notification_id = yield from self._inbox.store(
            sender=sender.name,
            delivery_id=verified.delivery_id,
            kid=verified.kid,
            issued_at=verified.issued_at,
            task_id=task_id,
            config_id=verified.config_id,
            seq=verified.seq,
            body=body,
            now=now,
        )
        if notification_id is None:
            # Not in the memory of ids, but still in the inbox: an update is called back once.
            if not (yield from self._inbox.has(sender.name, verified.delivery_id, body)):
                raise ConflictError("this id is in the inbox with another body")
            return _DUPLICATE
        yield from self._database.wake()
        return Verdict(status=202, code="accepted", notification_id=notification_id)

    def _refuse(self, error: InboundError, *, peer: str) -> Verdict:
        # The reason is for the log; the answer tells an outsider nothing about keys and tokens.
        _log.warning("refused %d %s peer=%s: %s", error.status, error.code, peer, error)
        retry_after = None
        if isinstance(error, RateLimitedError | BeingStoredError):
            retry_after = error.retry_after
        elif error.status == 503:
            retry_after = timedelta(seconds=5)
        return Verdict(status=error.status, code=error.code, retry_after=retry_after)


def _printable(text: str | None) -> str:
    """Return what a sender wrote as it may stand in a log: on one line, and not too long."""
    return "-" if text is None else ascii(text)[1:-1][:_SHOWN_CHARACTERS]


def _check_ids(*ids: str | None) -> None:
    """Refuse what cannot be a key in every database: an index has its limits, PostgreSQL no NUL."""
    for found in ids:
        if found is not None and ("\0" in found or len(found.encode()) > _MAX_ID_BYTES):
            raise MalformedRequestError(
                f"an id has a NUL, or more than {_MAX_ID_BYTES} bytes: {_printable(found)}"
            )


def _agreed_task_id(update: TaskUpdate, verified: Verified) -> str | None:
    """Return the task that body and signature speak of."""
    if update.task_id and verified.task_id and update.task_id != verified.task_id:
        raise MalformedRequestError("the signed `taskId` is another task than the body's")
    return update.task_id or verified.task_id
