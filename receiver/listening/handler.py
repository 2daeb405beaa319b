"""The edge of `listen`: it keeps each request whole, lets the receiver answer, and shows both."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from pushkit.a2a import TaskUpdate, decode_update
from pushkit.clock import utc_now
from pushkit.errors import InboundError
from pushkit.peers import rate_key
from pushkit.signing.scheme import Scheme
from pushkit.webhook import A2A_VERSION, WebhookRequest
from receiver.diagnosis.words import Unproven, in_words, unproven_by, unstated
from receiver.listening.trusting import AcceptedSignatures, Trusting
from receiver.receiver import Receiver
from receiver.refusals import REFUSALS
from receiver.request import Answer, BrokenBodyError, ReadBody, Request
from receiver.selection import ReceiverPath, read_signatures
from receiver.steps import CheckResult, Result, Step, Trail, results_of

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
        headers = await self._trusting.prepare(asked.headers)
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
        await self._show(self._arrival(request, seen, answer, number=number, now=now))
        return answer

    def _arrival(
        self, request: WebhookRequest, seen: Request, answer: Answer, *, number: int, now: datetime
    ) -> Arrival:
        code, proven = answer.code, _proven(request, seen.trail)
        return Arrival(
            number=number,
            at=now,
            peer=seen.peer,
            request=request,
            status=answer.status,
            code=code,
            reason=seen.trail.reason or (REFUSALS[code].means if code in REFUSALS else ""),
            steps=tuple(
                steps_of(
                    request,
                    seen.trail,
                    None if proven is None else proven.update,
                    code=code,
                    possible=self._possible(seen),
                    source=self._trusting.source,
                    now=now,
                )
            ),
            proven=proven,
        )

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
    stated = unproven_by(Scheme.JWT, request.headers)
    claims = None if stated is None else stated.claims
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
    jwt = unproven_by(Scheme.JWT, request.headers) if signed else None
    source = source.for_issuer(jwt.jwt.issuer if jwt and jwt.jwt else None)
    facts = {
        Step.REQUEST: ", ".join(request.headers.all("Content-Type")) or "no media type",
        Step.SENDER: trail.sender or possible,
        Step.TOKEN: "the token of the push config",
        Step.SIZE: f"{len(request.body)} bytes",
        Step.REPLAY: f"new: {trail.delivery_id or 'without an id'}",
        Step.TASK: trail.task_id or "none",
        Step.STORED: "in the inbox",
    }
    unchecked = _unchecked(source, jwt)
    if update is not None:
        facts[Step.CONTENT] = update.summary
    if code == "duplicate":
        facts[Step.REPLAY] = "same id and body: a retry of a notification that was accepted"
        again = (one.step for one in results if one.result is Result.NOT_CHECKED)
        unchecked |= dict.fromkeys(again, "a notification that was accepted before") | unchecked
    for scheme in source.schemes.names if signed else ():
        if (stated := unproven_by(scheme, request.headers)) is not None:
            facts = stated.facts(request, now) | facts
    if trail.step is Step.SIGNATURE and Step.SENDER not in trail.begun:
        # A signature that cannot be read may be of any of the possible senders.
        unknown = CheckResult(Step.SENDER, Result.UNKNOWN)
        results = [unknown if one.step is Step.SENDER else one for one in results]
    return in_words(results, facts, unchecked)


def _unchecked(source: AcceptedSignatures, jwt: Unproven | None) -> dict[Step, str]:
    """Return the steps that these options leave out, each with the reason."""
    unchecked = unstated(source.schemes.names, source.profile)
    claims = jwt and jwt.claims
    if source.any_key:
        unchecked[Step.SIGNATURE] = f"--any-key was given; found kid {jwt and jwt.kid}"
    if source.issuer is None:
        says = f"--issuer was not given; found {claims.issuer if claims else None}"
        unchecked.setdefault(Step.ISSUER, says)
    return unchecked
