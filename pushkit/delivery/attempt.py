"""One attempt: sign now, post, judge the answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

from pushkit.delivery.answers import judge
from pushkit.delivery.breaker import SUBSCRIPTION_MISSING, TOO_OLD
from pushkit.delivery.faults import LocalFaults, code_of
from pushkit.delivery.limits import Pace
from pushkit.delivery.ownership import Ownership
from pushkit.delivery.route import Route, Routes
from pushkit.delivery.signatures import Signing, SigningChoice, signed_headers, signing_of
from pushkit.errors import (
    AddressRefusedError,
    AnswerTimeoutError,
    DestinationRefusedError,
    EgressProxyError,
    OAuthError,
    OwnershipError,
    PushkitError,
    ResourcesExhaustedError,
    SigningError,
    TransportError,
)
from pushkit.events.listeners import Listeners
from pushkit.events.sender import SigningKeyChanged
from pushkit.keys.jwk import Algorithm, SigningKey
from pushkit.keys.remote import RemoteKey
from pushkit.keys.source import KeySource
from pushkit.net.connection import Answer
from pushkit.net.transport import Transport
from pushkit.outbox.model import Delivery, Result
from pushkit.outbox.states import Outcome
from pushkit.record import field, record
from pushkit.scheduling import stop_after_attempt
from pushkit.scheduling.retry import (
    RetryPolicy,
    after_fruitless_claims,
    gives_up,
    next_attempt,
    wait_schedule,
)
from pushkit.secrets.vault import Vault
from pushkit.subscriptions.secrets import StoredSubscription
from pushkit.traceparent import TRACEPARENT

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing

T = TypeVar("T")

_log = logging.getLogger("pushkit.delivery")

_KEPT_BYTES = 1024
_NO_SECRETS = ("User-Agent", "Accept-Encoding")
_BODY_WITHIN = timedelta(seconds=1)
# At once, after 1 h, after 2 h more: a name that leads to a forbidden address seldom changes.
_REFUSED_WAITS = (3600, 7200)
_AFTER_REFUSALS = RetryPolicy(
    wait=wait_schedule(_REFUSED_WAITS), stop=stop_after_attempt(len(_REFUSED_WAITS) + 1)
)
_UNAUTHORIZED = 401
_DEFAULT_SIGNING = Signing()


@record(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Makes attempts: everything that they have in common."""

    routes: Routes  # what is known of each subscription
    keys: KeySource  # where the key that is active now is found
    client: Transport  # how destinations are reached, under which policy
    vault: Vault  # opens bodies
    # Asks destinations for proof that they want notifications; None to ask for none.
    ownership: Ownership | None
    pace: Pace  # how fast one destination is written to
    retry: RetryPolicy  # when to try again, and when to give up
    timeout: timedelta  # the deadline of one attempt in total
    # Returns now, aware, in UTC: read to sign, and again when the answer is there.
    clock: Callable[[], datetime]
    keep_answers: bool = False  # write down the first KiB of what a webhook answers
    # Which schemes are on, for all subscriptions or by subscription.
    signing: SigningChoice = _DEFAULT_SIGNING
    # Hears of what fails on this side.
    faults: LocalFaults = field(default_factory=lambda: LocalFaults(_log))
    # Who hears of a key that signs from now on.
    events: Listeners = field(default_factory=lambda: Listeners(_log))
    # The key that signed last, by algorithm.
    signed_with: dict[Algorithm, str] = field(default_factory=dict)
    tracing: Tracing | None = None  # makes a span of each attempt; None for none

    @property
    def longest(self) -> timedelta:
        """How long an attempt may take, its wait for its turn included."""
        return self.pace.longest + self.timeout

    async def make(
        self, delivery: Delivery, to: StoredSubscription | Route | None, *, refusals: int = 0
    ) -> Result:
        """Make an attempt; never raises for what network, webhook or signer do.

        Args:
            to: Its subscription, or the route of that; None if there is none any more.
            refusals: How often its destination was refused by our own policy before.
        """
        if to is None:
            return Result(outcome=Outcome.DEAD, error=SUBSCRIPTION_MISSING)
        if delivery.attempts > 0:
            # What our own policy refused has a schedule of its own, which did not give up.
            attempts = delivery.attempts - refusals
            since, now = delivery.age_from, self.clock()
            if gives_up(self.retry, attempts=attempts, since=since, now=now):
                # Overtaken by its age while it waited.
                return Result(outcome=Outcome.DEAD, error=TOO_OLD, status=delivery.last_status)
        wait = self.pace.take(delivery.origin)
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            if self.tracing is None:
                return await self._make(delivery, to, refusals)
            return await self._make_traced(self.tracing, delivery, to, refusals)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is not the webhook's
            self.faults.tell(delivery.id, exc)
            again_at = self.clock() + after_fruitless_claims(delivery.fruitless_claims)
            return Result(outcome=Outcome.LOCAL_FAULT, error=code_of(exc), retry_at=again_at)

    async def _make_traced(
        self, tracing: Tracing, delivery: Delivery, to: StoredSubscription | Route, refusals: int
    ) -> Result:
        with tracing.attempting(
            delivery.traceparent,
            delivery_id=delivery.id,
            task=delivery.task_id,
            origin=delivery.origin,
            attempt=delivery.attempts + 1,
        ) as span:
            # What the webhook gets to see is this attempt, within the delivery's trace.
            within = replace(delivery, traceparent=span.traceparent)
            result = await self._make(within, to, refusals)
            span.note(outcome=result.outcome.value, status=result.status)
            if result.error is not None:
                span.fail(result.error)
            return result

    async def _make(
        self, delivery: Delivery, to: StoredSubscription | Route, refusals: int
    ) -> Result:
        """Open, sign, post and judge; raise what kept the request from being made."""
        started_at, begun = self.clock(), time.perf_counter()
        ends = begun + self.timeout.total_seconds()
        try:
            # What is sealed and cannot be opened stops it: nothing goes without.
            route = to if isinstance(to, Route) else self.routes.of(to)
            destination = route.destination
            body = self.vault.open_body(delivery.id, delivery.body)
            if self.ownership and not self.ownership.has_proof(route.owner, destination):
                # Part of the attempt: the lease lasts no longer than that.
                proof = self.ownership.require(route.owner, destination, tls=route.access.tls)
                late = AnswerTimeoutError(f"no proof from {destination.origin} in time")
                await _before(ends, proof, late)
            tokens = route.access.tokens
            token = await tokens.token(timeout=_until(ends)) if tokens else None
            answer = await (await self._sign(delivery, body, route, token, ends))
            if answer.status == _UNAUTHORIZED and tokens and token:
                tokens.reject(token)
                # It was asked: what fails on this side from here on leaves what it answered.
                with contextlib.suppress(OAuthError, SigningError):
                    token = await tokens.token(timeout=_until(ends))
                    answer = await (await self._sign(delivery, body, route, token, ends))
        except (EgressProxyError, ResourcesExhaustedError):
            raise  # as whatever else fails on this side
        except (AddressRefusedError, DestinationRefusedError) as exc:
            _log.warning("delivery %s: not sent: %s", delivery.id, exc, extra=_facts(delivery, exc))
            result = self._failed(delivery, error=exc.code, refusals=refusals)
            result.timing = getattr(exc, "timing", None)
        except OwnershipError as exc:
            _log.warning("delivery %s: not sent: %s", delivery.id, exc, extra=_facts(delivery, exc))
            result = self._failed(delivery, error=exc.code, status=exc.status)
        except TransportError as exc:
            _log.warning(
                "delivery %s: no answer: %s", delivery.id, exc, extra=_facts(delivery, exc)
            )
            result = self._failed(delivery, error=exc.code)
            result.timing = exc.timing
        else:
            result = self._judged(delivery, answer)
            result.timing = answer.timing
            if self.keep_answers:
                result.answer = _kept(answer.body, route, token)
        result.started_at = started_at
        result.duration = timedelta(0, time.perf_counter() - begun)
        return result

    def _judged(self, delivery: Delivery, answer: Answer) -> Result:
        outcome, error, hold = judge(answer.status, answer.headers, self.clock())
        if outcome is Outcome.RETRY:
            return self._failed(delivery, error=error, status=answer.status, hold=hold)
        return Result(outcome=outcome, status=answer.status, error=error)

    async def _sign(
        self, delivery: Delivery, body: bytes, route: Route, token: str | None, ends: float
    ) -> Coroutine[None, None, Answer]:
        """Sign a request for now; return what posts it."""
        now = self.clock()
        key = self.keys.ring().active_key(now, route.algorithm)
        if self.signed_with.get(key.algorithm) != key.kid:
            self._note_key(key, now)
        signing = signing_of(self.signing, route.subscription)
        signed = signed_headers(
            route, delivery, body, token=token, signing=signing, key=key, now=now
        )
        if not isinstance(key, SigningKey):
            signed = _before(ends, signed, SigningError(f"no signature within {self.timeout}"))
        traced = () if delivery.traceparent is None else ((TRACEPARENT, delivery.traceparent),)
        return self.client.post(
            route.destination,
            (*await signed, *traced),
            body,
            timeout=_until(ends),
            tls=route.access.tls,
            body_within=_BODY_WITHIN,
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
        *,
        error: str | None,
        status: int | None = None,
        hold: timedelta | None = None,
        refusals: int | None = None,
    ) -> Result:
        """Return the result of a failure: the webhook's, or (`refusals`) our own policy's.

        Waits count from the answer: a webhook may take as long to answer as it asks to wait.
        """
        now = self.clock()
        policy, attempts = self.retry, delivery.attempts
        if refusals is not None:
            policy, attempts = _AFTER_REFUSALS, refusals
        retry_at = next_attempt(policy, attempts=attempts + 1, since=delivery.age_from, now=now)
        hold_until = now + hold if hold else None
        return Result(
            outcome=Outcome.DEAD if retry_at is None else Outcome.RETRY,
            status=status,
            error=error,
            retry_at=retry_at and max(retry_at, hold_until or retry_at),
            hold_until=hold_until,
        )


def _kept(answer: bytes, route: Route, token: str | None) -> bytes:
    """Return what is kept of an answer: its beginning, without the secrets that it may repeat."""
    sent = [value for name, value in route.headers if name not in _NO_SECRETS]
    for value in (*sent, token or ""):
        for secret in (value, value.partition(" ")[2]):  # credentials follow their scheme
            if secret:
                answer = answer.replace(secret.encode("ascii"), b"***")
    return answer[:_KEPT_BYTES]


def _facts(delivery: Delivery, error: PushkitError) -> dict[str, str]:
    """Return what a log of objects has of a line."""
    return {"code": error.code, "delivery_id": delivery.id, "task": delivery.task_id}


async def _before(ends: float, doing: Coroutine[None, None, T], late: PushkitError) -> T:
    """Await what has to be done by then; raise what it means if it is not."""
    try:
        async with asyncio.timeout(_until(ends).total_seconds()):
            return await doing
    except TimeoutError as exc:
        raise late from exc


def _until(ends: float) -> timedelta:
    """Return what is left until then; the one deadline is over all requests of an attempt."""
    return timedelta(0, max(ends - time.perf_counter(), 0))
