"""The edge of `listen`: whom it trusts, and the receiver that answers and shows each request."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from pushkit.a2a import TaskUpdate, decode_update
from pushkit.clock import utc_now
from pushkit.errors import InboundError
from pushkit.keys.jwk import Algorithm, SigningKey, VerificationKey, generate_key
from pushkit.peers import rate_key
from pushkit.signing.notification_jwt import find_jwt, read_unverified
from pushkit.signing.scheme import Scheme
from pushkit.url import is_http_url
from pushkit.webhook import A2A_VERSION, Headers, WebhookRequest
from receiver.diagnosis.report import Unproven, in_words, signed_again, unstated
from receiver.options import Schemes
from receiver.receiver import Receiver
from receiver.refusals import REFUSALS
from receiver.request import Answer, BrokenBodyError, ReadBody, Request
from receiver.selection import ReceiverPath, read_signatures
from receiver.senders import SenderProfile, TaskPolicy, TrustedSender
from receiver.steps import CheckResult, Result, Step, Trail, results_of

TRIAL_ISSUER = "urn:pushkit:trigger"

_NOBODY_YET = "urn:pushkit:nobody-yet"
_MOST_ISSUERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedSignatures:
    """Which signatures are accepted."""

    jwks: str | None = None  # a JWK Set: a URL or a file; None for none
    any_key: bool = False  # whether any key is accepted: signatures are not checked
    issuer: str | None = None  # the `iss` to expect; None for any
    profile: SenderProfile = SenderProfile.STANDARD  # how senders sign
    schemes: Schemes = field(default_factory=Schemes)  # which signatures must be valid

    def for_issuer(self, issuer: str | None) -> AcceptedSignatures:
        """Return what is accepted of an issuer: only the JWT of `pushkit trigger`."""
        if issuer == TRIAL_ISSUER:
            return AcceptedSignatures(any_key=self.any_key, issuer=issuer)
        return self

    @property
    def names_keys(self) -> bool:
        """Whether there are keys to trust, besides the one to try it with."""
        return self.any_key or self.jwks is not None

    @property
    def can_be_tried(self) -> bool:
        """Whether a key to try it with can be trusted: not beside senders without keys."""
        return self.profile.signed and self.schemes.by_key

    @property
    def states_issuer(self) -> bool:
        """Whether `iss` distinguishes the senders, as it does with the JWT."""
        return self.profile is SenderProfile.STANDARD and Scheme.JWT in self.schemes.names

    @property
    def is_url(self) -> bool:
        """Whether the JWK Set is fetched."""
        return is_http_url(self.jwks or "")


@dataclass(slots=True)
class Trusting:
    """The trusted senders of `listen`, which may change with each request."""

    source: AcceptedSignatures  # which signatures are accepted
    path: str  # of the webhook
    token: str = field(repr=False)  # of the push config
    trial_key: VerificationKey  # a key of this machine, to try it with
    _any: SigningKey = field(default_factory=lambda: generate_key(Algorithm.ES256), repr=False)
    _issuers: list[str] = field(default_factory=list)

    def senders(self) -> list[TrustedSender]:
        """Return the trusted senders at this moment."""
        source = self.source
        if not source.can_be_tried:
            return [self._agent("agent", None)]
        trial_key = self._any.to_verification_key() if source.any_key else self.trial_key
        trial = TrustedSender(
            name="trigger",
            issuer=TRIAL_ISSUER,
            keys=[trial_key],
            path=self.path,
            tokens=[self.token],
            tasks=TaskPolicy.ANY,
        )
        if not source.names_keys:
            return [trial]
        if not source.states_issuer:
            return [trial, self._agent("agent", None)]
        # Until an issuer has arrived, a placeholder: so that the keys are loaded at the start.
        issuers = [source.issuer] if source.issuer else self._issuers or [_NOBODY_YET]
        names = ["agent", *(f"agent-{number}" for number in range(2, len(issuers) + 1))]
        return [trial, *map(self._agent, names, issuers)]

    async def prepare(self, headers: Headers, receiver: Receiver) -> Headers:
        """Let a receiver trust a new issuer, if any is accepted; return the headers to verify.

        If any key is accepted, their JWT is signed again with a key of our own: the claims stay,
        and are checked.
        """
        source = self.source
        with contextlib.suppress(InboundError):
            token = find_jwt(headers) if source.profile.signed else None
            if token is None:
                return headers
            jwt = read_unverified(token)
            # `pushkit trigger --keys` states the same issuer, with a key of the JWK Set.
            if jwt.issuer != TRIAL_ISSUER or (source.jwks and jwt.kid != self.trial_key.kid):
                await self._trust(jwt.issuer, receiver)
            if source.any_key:
                return signed_again(headers, self._any)
        return headers

    async def _trust(self, issuer: str | None, receiver: Receiver) -> None:
        source = self.source
        by_issuer = source.names_keys and source.states_issuer
        if not by_issuer or source.issuer or issuer is None or issuer in self._issuers:
            return
        self._issuers = [*self._issuers, issuer][-_MOST_ISSUERS:]
        await receiver.reload_senders(self.senders())

    def _agent(self, name: str, issuer: str | None) -> TrustedSender:
        source, own = self.source, self._any.to_verification_key()
        return TrustedSender(
            name=name,
            issuer=issuer,
            profile=source.profile,
            jwks_url=source.jwks if source.is_url else None,
            jwks_file=Path(source.jwks) if source.jwks and not source.is_url else None,
            keys=[own] if source.any_key else None,
            path=self.path,
            schemes=source.schemes.names,
            webhook_secrets=source.schemes.webhook_secrets,
            tokens=[self.token],
            tasks=TaskPolicy.ANY,
        )


# --- requests -------------------------------------------------------------------------------------


# Bodies of unproven requests that are read at once, for the screen alone.
_MOST_UNPROVEN = 8
_MOST_UNPROVEN_PER_PEER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """What a proven body and its signature say."""

    update: TaskUpdate
    sender: str | None
    delivery_id: str | None
    task_id: str | None
    seq: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request that arrived, and the receiver's answer."""

    number: int  # 1, 2, 3…
    at: datetime  # when it arrived
    peer: str  # the address that it came from
    request: WebhookRequest = field(repr=False)  # the whole request
    status: int  # of the answer
    code: str  # `accepted`, `duplicate`, or the code of the refusal
    reason: str  # why it was refused; empty if it was not
    steps: tuple[CheckResult, ...]  # every step of the verification with its result
    proven: Proven | None  # what it says; None unless its body is proven


class ListeningHandler:
    """Answers as the receiver does, and shows each request."""

    def __init__(
        self,
        receiver: Receiver,
        trusting: Trusting,
        # Called with each arrival, before it is answered.
        show: Callable[[Arrival], Awaitable[None]],
    ) -> None:
        self._receiver = receiver
        self._trusting = trusting
        self._show = show
        self._arrived = 0
        self._reading: Counter[str] = Counter()  # unproven bodies, by the address of their peer

    async def handle(self, asked: Request) -> Answer:
        """Answer one request as the receiver does, and show it."""
        if asked.method != "POST":
            return await self._receiver.handler.handle(asked)
        self._arrived += 1
        number, now = self._arrived, utc_now()
        trail = Trail()
        headers = await self._trusting.prepare(asked.headers, self._receiver)
        body: bytes | None = None
        is_read = False

        async def proven(limit: int) -> bytes | None:
            nonlocal body, is_read
            is_read = True
            body = await asked.read(limit)
            return body

        seen = replace(asked, headers=headers, body=None, read=proven, trail=trail)
        answer = await self._receiver.handler.handle(seen)
        if not is_read:  # its head is refused; it is shown all the same
            body = await self._unproven(rate_key(asked.peer), asked.read)
        request = WebhookRequest(
            method=asked.method, target=asked.target, headers=asked.headers, body=body or b""
        )
        code, said = answer.code, _proven(request, trail)
        steps = steps_of(
            request,
            trail,
            None if said is None else said.update,
            code=code,
            possible=self._possible(seen),
            source=self._trusting.source,
            now=now,
        )
        arrival = Arrival(
            number=number,
            at=now,
            peer=asked.peer,
            request=request,
            status=answer.status,
            code=code,
            reason=trail.reason or (REFUSALS[code].means if code in REFUSALS else ""),
            steps=tuple(steps),
            proven=said,
        )
        await self._show(arrival)
        return answer

    def _possible(self, seen: Request) -> str:
        """Return the names of the senders that a request may be from, by its headers."""
        trust = self._receiver.trust
        endpoint = trust.endpoints.get(seen.path) or ReceiverPath(seen.path, "")
        entries = endpoint.entries
        with contextlib.suppress(InboundError):
            entries = read_signatures(endpoint, seen.headers, Trail()).entries
        return " or ".join(entry.sender.name for entry in entries)

    async def _unproven(self, peer: str, read: ReadBody) -> bytes | None:
        """Return the body of anybody; None if it is incomplete, or too many are read already."""
        reading, limits = self._reading, self._receiver.handler.limits
        if reading.total() >= _MOST_UNPROVEN or reading[peer] >= _MOST_UNPROVEN_PER_PEER:
            return None
        reading[peer] += 1
        try:
            async with asyncio.timeout(limits.request_timeout.total_seconds()):
                return await read(limits.max_body_bytes)
        except (TimeoutError, BrokenBodyError):
            return None
        finally:
            reading[peer] -= 1
            reading += Counter()  # forgets who has none


def _proven(request: WebhookRequest, trail: Trail) -> Proven | None:
    if Step.RATE not in trail.begun:  # the first step behind the proof of the body
        return None
    try:
        update = decode_update(request.body, request.headers.one(A2A_VERSION))
    except InboundError:
        return None
    claims = Unproven.by(Scheme.JWT, request.headers).claims
    stated_id = claims.delivery_id if claims else ", ".join(request.headers.all("webhook-id"))
    return Proven(
        update=update,
        sender=trail.sender,
        delivery_id=trail.delivery_id or stated_id or None,
        task_id=update.task_id or (claims.task_id if claims else None),
        seq=claims.seq if claims else None,
    )


def steps_of(
    request: WebhookRequest,
    trail: Trail,  # the steps that the request came to
    update: TaskUpdate | None,  # what its body says, if that is proven
    *,
    code: str,  # of the receiver's answer
    possible: str,  # the names of the senders that it may be from, by its headers
    source: AcceptedSignatures,  # which signatures are accepted: what it leaves open is not checked
    now: datetime,
) -> list[CheckResult]:
    """Return every step with its result, in words."""
    signed = source.profile.signed
    results = results_of(trail.words, code if trail.reason else None, trail.reason)
    if code in REFUSALS and not trail.reason:  # no step: nobody posts to this path, say
        results = [CheckResult(step, Result.NOT_REACHED) for step in Step]
    stated = Unproven.by(Scheme.JWT, request.headers) if signed else Unproven()
    source = source.for_issuer(stated.jwt.issuer if stated.jwt else None)
    facts = {
        Step.REQUEST: ", ".join(request.headers.all("Content-Type")) or "no media type",
        Step.SENDER: trail.sender or possible,
        Step.TOKEN: "the token of the push config",
        Step.SIZE: f"{len(request.body)} bytes",
        Step.REPLAY: f"new: {trail.delivery_id or 'without an id'}",
        Step.TASK: trail.task_id or "none",
        Step.STORED: "in the inbox",
    }
    unchecked = _unchecked(source, stated)
    if update is not None:
        facts[Step.CONTENT] = update.summary
    if code == "duplicate":
        facts[Step.REPLAY] = "same id and body: a retry of a notification that was accepted"
        again = (one.step for one in results if one.result is Result.NOT_CHECKED)
        unchecked |= dict.fromkeys(again, "a notification that was accepted before") | unchecked
    for scheme in source.schemes.names if signed else ():
        facts = Unproven.by(scheme, request.headers).facts(request, now) | facts
    if trail.step is Step.SIGNATURE and Step.SENDER not in trail.begun:
        # A signature that cannot be read may be of any of the possible senders.
        unknown = CheckResult(Step.SENDER, Result.UNKNOWN)
        results = [unknown if one.step is Step.SENDER else one for one in results]
    return in_words(results, facts, unchecked)


def _unchecked(source: AcceptedSignatures, stated: Unproven) -> dict[Step, str]:
    """Return the steps that these options leave out, each with the reason."""
    unchecked = unstated(source.schemes.names, source.profile)
    if source.any_key:
        unchecked[Step.SIGNATURE] = f"--any-key was given; found kid {stated.kid}"
    if source.issuer is None:
        issuer = stated.claims.issuer if stated.claims else None
        says = f"--issuer was not given; found {issuer}"
        unchecked.setdefault(Step.ISSUER, says)
    return unchecked
