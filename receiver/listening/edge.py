"""The edge of `listen`: it keeps each request whole, lets the receiver answer, and shows both."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from pushkit.clock import utc_now
from pushkit.errors import InboundError
from pushkit.webhook import Headers, WebhookRequest
from receiver.listening.steps import ShownStep, steps_of
from receiver.listening.trusting import Trusting
from receiver.notification import VerifiedNotification
from receiver.peers import rate_key
from receiver.receiver import Receiver
from receiver.refusals import REFUSALS
from receiver.request import Answer, BrokenBodyError, ReadBody, Request
from receiver.selection import Endpoint, read_signatures
from receiver.steps import Trail
from receiver.verification import verify_notification

# Bodies of unproven requests that are read at once, for the screen alone.
_MOST_UNPROVEN = 8
_MOST_UNPROVEN_PER_PEER = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request that arrived, and the receiver's answer."""

    number: int  # 1, 2, 3…
    at: datetime  # when it arrived
    peer: str  # the address that it came from
    request: WebhookRequest = field(repr=False)  # the whole request
    status: int  # of the answer
    code: str  # `accepted`, `duplicate`, or the code of the refusal
    steps: tuple[ShownStep, ...]  # every step of the verification with its result
    # The verified notification; None if it fails a step from 2 to 6.
    verified: VerifiedNotification | None


class ListeningEdge:
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
        trust = self._receiver.trust
        # By its path as it is configured: that of a head is decoded.
        endpoint = trust.endpoints.get(asked.path) or trust.at(asked.path)
        found = await self._verified(replace(request, headers=seen.headers), endpoint.path, now)
        code = _code_of(answer)
        await self._show(
            Arrival(
                number=number,
                at=now,
                peer=asked.peer,
                request=request,
                status=answer.status,
                code=code,
                steps=tuple(
                    steps_of(
                        request,
                        trail,
                        found if isinstance(found, VerifiedNotification) else None,
                        code=code,
                        reason=_reason_of(found, code),
                        possible=_possible(endpoint, seen.headers),
                        source=self._trusting.source,
                        now=now,
                    )
                ),
                verified=found if isinstance(found, VerifiedNotification) else None,
            )
        )
        return answer

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

    async def _verified(
        self, request: WebhookRequest, path: str, now: datetime
    ) -> VerifiedNotification | InboundError:
        snapshot = await self._receiver.trust.snapshot()
        try:
            return verify_notification(
                request, snapshot, now=now, path=path, tokens=[self._trusting.token]
            )
        except InboundError as exc:
            return exc


def _possible(endpoint: Endpoint, headers: Headers) -> list[str]:
    """Return the names of the senders that a request may be from, by its headers."""
    entries = endpoint.entries
    with contextlib.suppress(InboundError):
        entries = read_signatures(endpoint, headers, Trail()).entries
    return [entry.sender.name for entry in entries]


def _reason_of(found: VerifiedNotification | InboundError, code: str) -> str:
    """Return why a request was refused, as it was found here, or as the code says."""
    same = isinstance(found, InboundError) and found.code == code
    return str(found) if same or code not in REFUSALS else REFUSALS[code].means


def _code_of(answer: Answer) -> str:
    accepted = {202: "accepted", 200: "duplicate"}
    return accepted.get(answer.status) or str(json.loads(answer.body)["code"])
