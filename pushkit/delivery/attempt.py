"""One attempt, at the pace of its origin: sign for the current time, post, judge the answer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from pushkit.delivery.answers import (
    REFUSED,
    SUBSCRIPTION_MISSING,
    TOO_OLD,
    KeepAnswers,
    classify_response,
    kept_answer,
)
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.ownership import Ownership
from pushkit.delivery.route import Route, Routes
from pushkit.delivery.signatures import BatchSigner, signed_headers, signing_of
from pushkit.errors import (
    AddressRefusedError,
    AnswerTimeoutError,
    DestinationRefusedError,
    EgressProxyError,
    InvalidUrlError,
    OAuthError,
    OwnershipError,
    PushkitError,
    ResourcesExhaustedError,
    SigningError,
    TransportError,
)
from pushkit.events import Listeners, SigningKeyChanged
from pushkit.keys.files import KeySource
from pushkit.keys.jwk import Algorithm, RemoteKey, SigningKey
from pushkit.logs import RepeatedLog
from pushkit.net.authorization import ReadyCredentials
from pushkit.net.connection import HttpAnswer
from pushkit.net.destination import DestinationPolicy, local_advice
from pushkit.net.transport import Transport
from pushkit.outbox.model import AttemptResult, Delivery
from pushkit.outbox.states import Outcome
from pushkit.record import field, record
from pushkit.scheduling import stop_after_attempt
from pushkit.scheduling.retry import (
    RetryPolicy,
    after_faults,
    gives_up,
    next_attempt,
    wait_schedule,
)
from pushkit.secrets.vault import Vault
from pushkit.subscriptions.model import StoredSubscription
from pushkit.url import Url
from pushkit.webhook import TRACEPARENT

if TYPE_CHECKING:
    from pushkit.delivery.route import DeliveryJob
    from pushkit.telemetry.tracing import Tracing

T = TypeVar("T")

_log = logging.getLogger("pushkit.delivery")

_MAX_REMEMBERED = 10_000  # origins
_BODY_WITHIN = timedelta(seconds=1)
# At once, after 1 h, and 2 h later: a name that leads to a forbidden address rarely changes.
_REFUSED_WAITS = (3600, 7200)
_AFTER_REFUSALS = RetryPolicy(
    wait=wait_schedule(_REFUSED_WAITS), stop=stop_after_attempt(len(_REFUSED_WAITS) + 1)
)
_UNAUTHORIZED = 401
_UNEXPECTED = "unexpected_error"


class OriginRateLimiter:
    """Limits the requests a second of this process to one origin, over all owners.

    Origins that the operator named in `allow` are not third parties, and have no limit.
    """

    def __init__(
        self,
        policy: DestinationPolicy,
        # The rate; a burst of one second's requests is allowed. None for no limit.
        per_second: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,  # seconds, never going back
    ) -> None:
        # Cached: the policy does not change, and the same few origins recur at every attempt.
        self._is_named = functools.lru_cache(maxsize=_MAX_REMEMBERED)(
            functools.partial(_is_named, policy)
        )
        self._interval = None if per_second is None else 1 / per_second
        self._clock = clock
        self._due: dict[str, float] = {}

    def take(self, origin: str) -> float:
        """Take the next turn of an origin and return 0, or return how many seconds away it is."""
        if self._interval is None or self._is_named(origin):
            return 0
        now = self._clock()
        wait = self._due.get(origin, now) - now - 1
        if wait > 0:
            return wait
        if len(self._due) >= _MAX_REMEMBERED:
            self._due = {each: until for each, until in self._due.items() if until > now}
        # GCRA: when this request would be due if all before it were spread evenly at the rate.
        self._due[origin] = max(self._due.get(origin, now), now) + self._interval
        return 0


@record(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Makes attempts."""

    options: SenderOptions
    routes: Routes  # the routes of subscriptions
    keys: KeySource  # supplies the active key
    client: Transport  # posts, under the destination policy
    vault: Vault  # opens sealed bodies
    # Asks destinations for proof that they want notifications; None to ask for none.
    ownership: Ownership | None
    rate_limiter: OriginRateLimiter  # the rate limit of each origin
    # Returns the current time, aware, in UTC: read to sign, and again after the answer.
    clock: Callable[[], datetime]
    events: Listeners  # where a change of the signing key is emitted
    tracing: Tracing | None  # makes a span of each attempt; None for no spans
    # Logs faults of this side, once a minute for each kind.
    faults: RepeatedLog = field(default_factory=lambda: RepeatedLog(_log))
    signer: BatchSigner = field(default_factory=BatchSigner)
    # The `kid` of the key that signed last, by algorithm.
    signed_with: dict[Algorithm, str] = field(default_factory=dict)

    async def make(self, job: DeliveryJob) -> AttemptResult:
        """Make an attempt. Faults of the network, the webhook or the signer are never raised."""
        delivery, to, refusals = job.delivery, job.to, job.refusals
        if to is None:
            return AttemptResult(outcome=Outcome.DEAD, error=SUBSCRIPTION_MISSING)
        if delivery.attempts > 0:
            # Refusals by this sender's own policy follow a schedule of their own.
            attempts = delivery.attempts - refusals
            since, now = delivery.age_from, self.clock()
            if gives_up(self.options.retry, attempts=attempts, since=since, now=now):
                # It became too old while it waited.
                return AttemptResult(
                    outcome=Outcome.DEAD, error=TOO_OLD, status=delivery.last_status
                )
        try:
            if self.tracing is None:
                return await self._make(delivery, to, refusals)
            return await self._make_traced(self.tracing, delivery, to, refusals)
        except Exception as exc:  # noqa: BLE001  # a fault of this side, not of the webhook
            code = exc.code if isinstance(exc, PushkitError) else _UNEXPECTED
            self.faults.log(
                (code, type(exc)),
                logging.ERROR,
                "delivery %s: not sent, because of a fault of this side (%s); it is retried%s",
                delivery.id,
                code,
                _explained(exc),
                extra={"code": code, "delivery_id": delivery.id},
            )
            next_at = self.clock() + after_faults(delivery.faults + 1)
            return AttemptResult(outcome=Outcome.LOCAL_FAULT, error=code, retry_at=next_at)

    async def _make_traced(
        self, tracing: Tracing, delivery: Delivery, to: StoredSubscription | Route, refusals: int
    ) -> AttemptResult:
        with tracing.attempting(
            delivery.traceparent,
            delivery_id=delivery.id,
            task=delivery.task_id,
            origin=delivery.origin,
            attempt=delivery.attempts + 1,
        ) as span:
            # The webhook gets this attempt's span, which is part of the delivery's trace.
            within = replace(delivery, traceparent=span.traceparent)
            result = await self._make(within, to, refusals)
            span.note(outcome=result.outcome.value, status=result.status)
            if result.error is not None:
                span.fail(result.error)
            return result

    async def _make(
        self, delivery: Delivery, to: StoredSubscription | Route, refusals: int
    ) -> AttemptResult:
        """Open, sign, post and judge. A fault of this side is raised."""
        started_at, begun = self.clock(), time.perf_counter()
        ends = begun + self.options.timeout.total_seconds()
        try:
            # A secret that cannot be opened raises: nothing is sent without it.
            route = to if isinstance(to, Route) else self.routes.of(to)
            destination = route.destination
            body = self.vault.open_body(delivery.id, delivery.body)
            if route.access.certificate is not None:
                self._check_certificate(route.access, started_at)
            if self.ownership and not self.ownership.has_proof(route.owner, destination):
                # Within the attempt's deadline, because the lease lasts no longer.
                proof = self.ownership.require(route.owner, destination, tls=route.access.tls)
                late = AnswerTimeoutError(f"no proof from {destination.origin} in time")
                await _before(ends, proof, late)
            tokens = route.access.tokens
            token = await tokens.token(timeout=_until(ends)) if tokens else None
            answer = await (await self._sign(delivery, body, route, token, ends))
            if answer.status == _UNAUTHORIZED and tokens and token:
                # The webhook answered: if this side fails now, that answer is the result.
                with contextlib.suppress(OAuthError, SigningError):
                    other = await tokens.replace(token, timeout=_until(ends))
                    answer = await (await self._sign(delivery, body, route, other, ends))
                    token = other  # the one that this answer may repeat
        except (EgressProxyError, ResourcesExhaustedError):
            raise  # faults of this side
        except (AddressRefusedError, DestinationRefusedError) as exc:
            says = f"{exc}{local_advice(exc)}"
            _log.warning(
                "delivery %s: not sent: %s", delivery.id, says, extra=_facts(delivery, exc)
            )
            result = self._failed(delivery, refusals, error=exc.code)
            result.timing = getattr(exc, "timing", None)
        except OwnershipError as exc:
            _log.warning("delivery %s: not sent: %s", delivery.id, exc, extra=_facts(delivery, exc))
            result = self._failed(delivery, refusals, error=exc.code, status=exc.status)
        except TransportError as exc:
            _log.warning(
                "delivery %s: no answer: %s", delivery.id, exc, extra=_facts(delivery, exc)
            )
            result = self._failed(delivery, refusals, error=exc.code)
            result.timing = exc.timing
        else:
            outcome, error, wait = classify_response(answer.status, answer.headers, self.clock())
            if outcome is Outcome.RETRY:
                result = self._failed(
                    delivery, refusals, error=error, status=answer.status, wait=wait
                )
            else:
                error = error or answer.defect
                result = AttemptResult(outcome=outcome, status=answer.status, error=error)
            result.timing = answer.timing
            if KeepAnswers(self.options.keep_answers).includes(result.outcome):
                kept = kept_answer(answer.body, route, token)
                result.answer = self.vault.seal_answer(delivery.id, kept)
        result.started_at = started_at
        result.duration = timedelta(0, time.perf_counter() - begun)
        return result

    async def _sign(
        self, delivery: Delivery, body: bytes, route: Route, token: str | None, ends: float
    ) -> Coroutine[None, None, HttpAnswer]:
        """Sign a request for the current time; return the coroutine that posts it."""
        now = self.clock()
        key = self.keys.ring().active_key(now, route.algorithm)
        if self.signed_with.get(key.algorithm) != key.kid:
            self._note_key(key, now)
        signing = signing_of(self.options.signing, route.subscription)
        signed = signed_headers(
            route,
            delivery,
            body,
            token=token,
            signing=signing,
            key=key,
            now=now,
            sign=self.signer.sign,
        )
        if not isinstance(key, SigningKey):
            signed = _before(
                ends, signed, SigningError(f"no signature within {self.options.timeout}")
            )
        traced = () if delivery.traceparent is None else ((TRACEPARENT, delivery.traceparent),)
        return self.client.post(
            route.destination,
            (*await signed, *traced),
            body,
            timeout=_until(ends),
            tls=route.access.tls,
            body_within=_BODY_WITHIN,
        )

    def _check_certificate(self, access: ReadyCredentials, now: datetime) -> None:
        """Log that the client certificate has expired: its refusal can look like any failure."""
        expired_at = access.certificate_expires_at
        if expired_at is not None and expired_at <= now:
            self.faults.log(
                (access.certificate, expired_at),
                logging.WARNING,
                "the client certificate %s expired at %s, and webhooks may refuse it: replace the"
                " file, and restart",
                access.certificate,
                expired_at.isoformat(),
            )

    def _note_key(self, key: SigningKey | RemoteKey, now: datetime) -> None:
        before = self.signed_with.get(key.algorithm)
        self.signed_with[key.algorithm] = key.kid
        if self.events.wants(SigningKeyChanged.usual_level):
            self.events.emit(
                SigningKeyChanged(at=now, kid=key.kid, algorithm=key.algorithm.value, before=before)
            )

    def _failed(
        self,
        delivery: Delivery,
        refusals: int,
        *,
        error: str | None,
        status: int | None = None,
        wait: timedelta | None = None,
    ) -> AttemptResult:
        """Return the result of a failure of the webhook, or a refusal of this sender's own policy.

        Waits begin at the answer: a webhook may take as long to answer as it asks to wait.

        Args:
            delivery: The delivery.
            refusals: How often the policy refused it before.
            error: The code of the failure.
            status: The status of the answer, if there was one.
            wait: How long the destination asks to wait.
        """
        now = self.clock()
        policy, attempts = self.options.retry, delivery.attempts - refusals
        if error in REFUSED:
            policy, attempts = _AFTER_REFUSALS, refusals
        retry_at = next_attempt(policy, attempts=attempts + 1, since=delivery.age_from, now=now)
        wait_until = now + wait if wait else None
        return AttemptResult(
            outcome=Outcome.DEAD if retry_at is None else Outcome.RETRY,
            status=status,
            error=error,
            retry_at=retry_at and max(retry_at, wait_until or retry_at),
            wait_until=wait_until,
        )


def _is_named(policy: DestinationPolicy, origin: str) -> bool:
    try:
        return policy.allows_by_name(Url.parse(origin))
    except InvalidUrlError:
        return False


def _facts(delivery: Delivery, error: PushkitError) -> dict[str, str]:
    """Return the members of a structured log line."""
    return {"code": error.code, "delivery_id": delivery.id, "task": delivery.task_id}


async def _before(ends: float, doing: Coroutine[None, None, T], late: PushkitError) -> T:
    """Await a coroutine; raise `late` if it is not done at `ends` (by `time.perf_counter`)."""
    try:
        async with asyncio.timeout(_until(ends).total_seconds()):
            return await doing
    except TimeoutError as exc:
        raise late from exc


def _until(ends: float) -> timedelta:
    """Return the time left: one deadline holds for all requests of an attempt."""
    return timedelta(0, max(ends - time.perf_counter(), 0))


def _explained(exc: Exception) -> str:
    """Return the end of the log line of a fault: the message, or the traceback if it says more."""
    # The cause of a `SigningError` is an error of the application's code, or of a key service.
    if isinstance(exc, PushkitError) and not isinstance(exc, SigningError):
        return f": {exc}"
    return f": {_traceback(exc)}"


def _traceback(exc: BaseException) -> str:
    """Return an exception, its causes and their frames on one line, without possible secrets.

    Those may be in lines of code, and in messages of exceptions other than pushkit's.
    """
    frames = ", ".join(
        f"{frame.filename}:{frame.lineno} in {frame.name}"
        for frame in traceback.extract_tb(exc.__traceback__)
    )
    message = f": {exc}" if isinstance(exc, PushkitError) else ""
    own = f"{type(exc).__name__}{message} ({frames})"
    cause = exc.__cause__ or exc.__context__
    return own if cause is None else f"{own}, because of {_traceback(cause)}"
