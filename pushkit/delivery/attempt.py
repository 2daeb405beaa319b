"""One attempt: sign now, post, judge the answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from pushkit.delivery.answers import judge
from pushkit.delivery.faults import LocalFaults, code_of
from pushkit.delivery.limits import Pace
from pushkit.delivery.ownership import Ownership
from pushkit.delivery.signatures import (
    Signing,
    SigningChoice,
    signature_headers,
    signing_of,
)
from pushkit.errors import (
    AddressRefusedError,
    AnswerTimeoutError,
    DestinationRefusedError,
    OAuthError,
    OwnershipError,
    SigningError,
    TransportError,
)
from pushkit.keys.jwk import Algorithm, SigningKey
from pushkit.keys.remote import RemoteKey
from pushkit.keys.source import KeySource
from pushkit.net.authorization import Access, Credentials, credential_header
from pushkit.net.destination import Destination
from pushkit.net.timing import Timing
from pushkit.net.transport import Answer, Transport
from pushkit.outbox import Delivery, Made, Outcome, Result
from pushkit.secrets.vault import Vault
from pushkit.signing.notification_jwt import NotificationClaims, body_sha256
from pushkit.signing.token import token_headers
from pushkit.subscriptions import (
    Owner,
    Profile,
    StoredSubscription,
    Subscription,
    open_subscription,
)
from pushkit.version import USER_AGENT
from pushkit.work import (
    RetryPolicy,
    after_fruitless_claims,
    gives_up,
    next_attempt,
    stop_after_attempt,
    wait_schedule,
)

__all__ = ["Attempt", "OutgoingRequest", "build_request"]

_log = logging.getLogger("pushkit.delivery")

_KEPT_BYTES = 1024
_BODY_WITHIN = timedelta(seconds=1)
# At once, after 1 h, after 2 h more: a name that leads to a forbidden address seldom changes.
_REFUSED_WAITS = (3600, 7200)
_AFTER_REFUSALS = RetryPolicy(
    wait=wait_schedule(_REFUSED_WAITS), stop=stop_after_attempt(len(_REFUSED_WAITS) + 1)
)
_UNAUTHORIZED = 401
_DEFAULT_SIGNING = Signing()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRequest:
    """A signed request, ready to be posted."""

    destination: Destination
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    body: bytes = field(repr=False)


async def build_request(
    delivery: Delivery,
    subscription: Subscription,
    destination: Destination,
    *,
    issuer: str,
    key: SigningKey | RemoteKey,
    now: datetime,
    go_token_spelling: bool = False,
    operators: Sequence[tuple[str, str]] = (),
    signing: Signing = _DEFAULT_SIGNING,
) -> OutgoingRequest:
    """Return the request of one attempt (wire profile §2), signed for this moment.

    Args:
        delivery: The frozen body and the stable id.
        subscription: Token and credentials, as they are now.
        destination: The subscription's URL, checked.
        issuer: `iss`.
        key: The key that is active now.
        now: The moment of this attempt.
        go_token_spelling: Send `A2A-Notification-Token` too.
        operators: Credentials that the operator configured for the destination; the client's own
            go before them.
        signing: Which schemes are on.

    Raises:
        SigningError: A key outside this process did not sign.
    """
    samples = subscription.profile is Profile.A2A_SAMPLES
    audience = destination.url.audience
    claims = NotificationClaims(
        issuer=issuer,
        audience=None if samples else audience,
        issued_at=now,
        delivery_id=delivery.id,
        task_id=delivery.task_id,
        config_id=delivery.config_id,
        seq=delivery.seq,
        body_sha256=body_sha256(delivery.body),
    )
    clients = credential_header(subscription.config.authentication)
    credentials = dict([*operators, *([clients] if clients else [])])
    headers = [
        ("Content-Type", delivery.content_type),
        ("User-Agent", USER_AGENT),
        ("Accept-Encoding", "identity"),
        *token_headers(subscription.config.token, go_spelling=go_token_spelling),
        *credentials.items(),
    ]
    headers += await signature_headers(
        headers, delivery.body, claims=claims, target_uri=audience, signing=signing, key=key
    )
    return OutgoingRequest(destination=destination, headers=tuple(headers), body=delivery.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Makes attempts: everything that they have in common.

    Attributes:
        issuer: `iss` of every notification.
        keys: Where the key that is active now is found.
        transport: How destinations are reached, under which policy.
        vault: Opens tokens, credentials and bodies.
        credentials: What the operator configured for destinations.
        ownership: Asks destinations for proof that they want notifications; None to ask for none.
        pace: How fast one destination is written to.
        retry: When to try again, and when to give up.
        timeout: The deadline of one attempt in total.
        go_token_spelling: Send `A2A-Notification-Token` too.
        clock: Returns now, aware, in UTC: read to sign, and again when the answer is there.
        keep_answers: Write down the first KiB of what a webhook answers.
        signing: Which schemes are on, for all subscriptions or by subscription.
        faults: Hears of what fails on this side.
    """

    issuer: str
    keys: KeySource
    transport: Transport
    vault: Vault
    credentials: Credentials
    ownership: Ownership | None
    pace: Pace
    retry: RetryPolicy
    timeout: timedelta
    go_token_spelling: bool
    clock: Callable[[], datetime]
    keep_answers: bool = False
    signing: SigningChoice = _DEFAULT_SIGNING
    faults: LocalFaults = field(default_factory=lambda: LocalFaults(_log))

    @property
    def longest(self) -> timedelta:
        """How long an attempt may take, its wait for its turn included."""
        return self.pace.longest + self.timeout

    async def make(
        self, delivery: Delivery, stored: StoredSubscription, *, refusals: int = 0
    ) -> Result:
        """Open, sign, post and judge; never raises for what network, webhook or signer do.

        Args:
            delivery: What is to be delivered.
            stored: Its subscription.
            refusals: How often its destination was refused by our own policy before.
        """
        await self.pace.turn(delivery.origin)
        started_at, begun = self.clock(), time.perf_counter()
        try:
            result, timing, answer = await self._try(delivery, stored, refusals)
        except Exception as exc:  # noqa: BLE001  # whatever it is, it is not the webhook's
            return self._put_off(delivery, exc)
        made = Made(
            started_at=started_at,
            duration=timedelta(seconds=time.perf_counter() - begun),
            timing=timing,
            answer=answer[:_KEPT_BYTES] if answer is not None and self.keep_answers else None,
        )
        return replace(result, made=made)

    async def _try(
        self, delivery: Delivery, stored: StoredSubscription, refusals: int
    ) -> tuple[Result, Timing, bytes | None]:
        """Make the request; raise what kept it from being made."""
        try:
            answer = await self._exchange(delivery, stored)
        except (AddressRefusedError, DestinationRefusedError) as exc:
            _log.warning("delivery %s: not sent: %s", delivery.id, exc)
            again = next_attempt(
                _AFTER_REFUSALS,
                attempts=refusals + 1,
                since=delivery.age_from,
                now=self.clock(),
            )
            return _refused(exc.code, again), getattr(exc, "timing", None) or Timing(), None
        except TransportError as exc:
            _log.warning("delivery %s: no answer: %s", delivery.id, exc)
            failed = self._failed(delivery, self.clock(), error=exc.code)
            return failed, exc.timing or Timing(), None
        except OwnershipError as exc:
            _log.warning("delivery %s: not sent: %s", delivery.id, exc)
            failed = self._failed(delivery, self.clock(), error=exc.code, status=exc.status)
            return failed, Timing(), None
        # Waits count from the answer: a webhook may take as long to answer as it asks to wait.
        return self._judged(delivery, answer, self.clock()), answer.timing, answer.body

    def _put_off(self, delivery: Delivery, exc: Exception) -> Result:
        """Return the result where something on this side failed before there was a request."""
        self.faults.tell(delivery.id, exc)
        wait = after_fruitless_claims(delivery.fruitless_claims)
        return Result(outcome=Outcome.LOCAL_FAULT, error=code_of(exc), retry_at=self.clock() + wait)

    async def _exchange(self, delivery: Delivery, stored: StoredSubscription) -> Answer:
        """Post once; and once more with another token, where the first was refused.

        What is sealed and cannot be opened stops it: nothing goes without.
        """
        ends = time.perf_counter() + self.timeout.total_seconds()
        subscription = open_subscription(self.vault, stored)
        delivery = replace(delivery, body=self.vault.open_body(delivery.id, delivery.body))
        key = subscription.key
        destination = self.transport.policy.check(subscription.config.url)
        access = self.credentials.of(
            destination,
            tenant=key.tenant,
            owner=key.owner,
            clients=credential_header(subscription.config.authentication),
        )
        await self._require_proof(
            Owner(tenant=key.tenant, name=key.owner), destination, access, ends
        )
        answer = await self._post(delivery, subscription, destination, access, ends)
        if answer.status == _UNAUTHORIZED and access.reject_token():
            # It was asked: what fails on this side from here on leaves what it answered.
            with contextlib.suppress(OAuthError, SigningError):
                return await self._post(delivery, subscription, destination, access, ends)
        return answer

    async def _require_proof(
        self, owner: Owner, destination: Destination, access: Access, ends: float
    ) -> None:
        """Let the question be part of the attempt: the lease lasts no longer than that."""
        if self.ownership is None:
            return
        try:
            async with asyncio.timeout(_until(ends).total_seconds()):
                await self.ownership.require(owner, destination, tls=access.tls)
        except TimeoutError as exc:
            raise AnswerTimeoutError(f"no proof from {destination.origin} in time") from exc

    async def _post(
        self,
        delivery: Delivery,
        subscription: Subscription,
        destination: Destination,
        access: Access,
        ends: float,
    ) -> Answer:
        operators = await access.headers(timeout=_until(ends))
        try:
            async with asyncio.timeout(_until(ends).total_seconds()):
                request = await self._request(delivery, subscription, destination, operators)
        except TimeoutError as exc:
            raise SigningError(f"no signature within {self.timeout}") from exc
        return await self.transport.post(
            destination,
            request.headers,
            request.body,
            timeout=_until(ends),
            tls=access.tls,
            body_within=_BODY_WITHIN,
        )

    def _judged(self, delivery: Delivery, answer: Answer, answered_at: datetime) -> Result:
        judgement = judge(answer.status, answer.headers, answered_at)
        if judgement.outcome is Outcome.RETRY:
            return self._failed(
                delivery,
                answered_at,
                error=judgement.error or "failed",
                status=answer.status,
                hold=judgement.hold,
            )
        return Result(outcome=judgement.outcome, status=answer.status, error=judgement.error)

    def is_too_old(self, delivery: Delivery, now: datetime) -> bool:
        """Say whether a delivery was overtaken by its age while it waited."""
        return gives_up(self.retry, attempts=delivery.attempts, since=delivery.age_from, now=now)

    async def _request(
        self,
        delivery: Delivery,
        subscription: Subscription,
        destination: Destination,
        operators: Sequence[tuple[str, str]],
    ) -> OutgoingRequest:
        now = self.clock()
        samples = subscription.profile is Profile.A2A_SAMPLES
        algorithm = Algorithm.RS256 if samples else None
        return await build_request(
            delivery,
            subscription,
            destination,
            issuer=self.issuer,
            key=self.keys.ring().active_key(now, algorithm),
            now=now,
            go_token_spelling=self.go_token_spelling,
            operators=operators,
            signing=signing_of(self.signing, subscription),
        )

    def _failed(
        self,
        delivery: Delivery,
        now: datetime,
        *,
        error: str,
        status: int | None = None,
        hold: timedelta | None = None,
    ) -> Result:
        retry_at = next_attempt(
            self.retry, attempts=delivery.attempts + 1, since=delivery.age_from, now=now
        )
        hold_until = now + hold if hold else None
        if retry_at is None:
            return Result(outcome=Outcome.DEAD, status=status, error=error, hold_until=hold_until)
        return Result(
            outcome=Outcome.RETRY,
            status=status,
            error=error,
            retry_at=max(retry_at, hold_until or retry_at),
            hold_until=hold_until,
        )


def _refused(error: str, again_at: datetime | None) -> Result:
    if again_at is None:
        return Result(outcome=Outcome.DEAD, error=error)
    return Result(outcome=Outcome.RETRY, error=error, retry_at=again_at)


def _until(ends: float) -> timedelta:
    """Return what is left until then; the one deadline is over all requests of an attempt."""
    return timedelta(seconds=max(ends - time.perf_counter(), 0))
