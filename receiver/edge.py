"""`Edge`: answers every request, without a web framework, given its head and a reader of its body.

aiohttp and ASGI are thin adapters over it, so that both answer alike. Refusals are problem details
(RFC 9457) with a stable `code`; no request is answered 500.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import re
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Protocol, TypeAlias
from urllib.parse import parse_qsl

from pushkit.clock import utc_now
from pushkit.logs import RepeatedLog
from pushkit.record import field, record
from pushkit.scheduling.renewing import Held, Renewing
from receiver.intake import Intake, ReadBody, Rest, replied
from receiver.peers import Peers, shown
from receiver.refusals import Verdict, refusal_of
from receiver.selection import Place
from receiver.verification import Head

_log = logging.getLogger("receiver")

# The first A2A samples send a random name. Anything a browser could read as markup is refused.
_VALIDATION_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")
_TEXT = (
    ("Content-Type", "text/plain; charset=utf-8"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)
_HOW_TO_START = (
    "the receiver is not started: lifespan=receiver.lifespan, or `async with receiver`,"
    " in the application that it is mounted in"
)
_READS = ("GET", "HEAD")
_LIVENESS, _READINESS = "/healthz", "/readyz"
_READINESS_HOLDS = timedelta(seconds=1)
_SHOWN_PATHS = 5


@record(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response to one request.

    Attributes:
        status: The HTTP status.
        headers: The header fields, without `Content-Length` and those of the connection.
        body: The body.
        close: Whether the connection ends after it: the rest of the request was not read.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)
    close: bool = False


Reply: TypeAlias = Callable[[Answer], None]
Begin: TypeAlias = Callable[[Head, ReadBody, Reply], Rest | None]
"""`Edge.begin`, or a substitute."""

_THANKS = {status: Answer(status=status) for status in (200, 202)}


class Health(Protocol):
    """The health of a receiver, for its probes."""

    @property
    def is_open(self) -> bool:
        """Whether notifications can be accepted."""
        ...

    async def unready(self) -> dict[str, str]:
        """Return the failing parts without which nothing can be served, each with its reason."""
        ...

    def degraded(self) -> dict[str, str]:
        """Return the parts that fail for some senders or callbacks, each with its reason."""
        ...


class Edge:
    """Answers requests: notifications, probes, and all others.

    Args:
        validation_echo: Whether `GET ?validationToken=` is answered with the token.
    """

    def __init__(
        self, intake: Intake, health: Health, *, peers: Peers, validation_echo: bool
    ) -> None:
        self.peers = peers
        self._intake = intake
        self._health = health
        self._validation_echo = validation_echo
        self._log = RepeatedLog(_log)
        self._readiness = Renewing(self._look, clock=utc_now)

    def knows(self, path: str) -> bool:
        """Return whether a sender posts to this path."""
        return path in self._intake.trust.places

    async def answer(self, head: Head, read: ReadBody) -> Answer:
        """Answer one request.

        Args:
            read: Reads its body; called only once the head is proven.
        """
        return await replied(functools.partial(self.begin, head, read))

    def begin(self, head: Head, read: ReadBody, reply: Reply) -> Rest | None:
        """Answer one request, at once or as soon as its notification is stored.

        Returns:
            A coroutine that has to run, in a task, before `reply` is called; None if there is none.
        """
        rest: Rest | None
        try:
            if self.peers.are_direct:
                peer = shown(head.socket_peer)
            else:
                peer = self.peers.of(head.socket_peer, head.headers)
            place = self._intake.trust.places.get(head.path)
            # Probes are never rate-limited: a flood must not make an orchestrator restart us.
            if head.method in _READS and head.path in (_LIVENESS, _READINESS):
                rest = self._probe(head.path, reply)
            elif place is None or head.method != "POST":
                reply(self._neither(head, place, peer))
                return None
            elif not self._health.is_open:
                fault = self._intake.refusals.fault
                reply(problem(fault("not_started", _HOW_TO_START, peer=peer)))
                return None
            else:
                rest = self._intake.begin(
                    head,
                    place,
                    read,
                    lambda verdict: reply(_THANKS.get(verdict.status) or problem(verdict)),
                    peer=peer,
                )
        except Exception as exc:  # noqa: BLE001  # never a 500: the sender comes again
            reply(self._fault(head, exc))
            return None
        return None if rest is None else self._guarded(rest, head, reply)

    async def _guarded(self, rest: Rest, head: Head, reply: Reply) -> None:
        try:
            await rest
        except Exception as exc:  # noqa: BLE001  # as above
            reply(self._fault(head, exc))

    def _fault(self, head: Head, error: Exception) -> Answer:
        return problem(self._intake.refusals.fault("internal", peer=head.socket_peer, error=error))

    async def _probe(self, path: str, reply: Reply) -> None:
        alive = _state(200, "alive") if path == _LIVENESS else await self._readiness.get()
        reply(alive or _state(503, "not ready"))

    async def _look(self, _held: Held[Answer] | None) -> Held[Answer]:
        """Return the answer to a readiness probe, to be used for a second."""
        since = utc_now()
        unready, degraded = await self._health.unready(), self._health.degraded()
        for parts, says in ((unready, "not ready: %s"), (degraded, "degraded: %s")):
            if parts:
                reasons = "; ".join(parts.values())
                self._log.say((says, *parts), logging.WARNING, says, reasons)
        # The answer names the parts alone; the log also says whose keys are missing.
        more = {"degraded": sorted(degraded)} if degraded else {}
        if unready:
            answer = _state(503, "not ready", failed=sorted(unready), **more)
        else:
            answer = _state(200, "ready", **more)
        until = utc_now() + _READINESS_HOLDS
        return Held(value=answer, since=since, fresh_until=until, good_until=until)

    def _neither(self, head: Head, place: Place | None, peer: str) -> Answer:
        """Answer a request that is neither a notification nor a probe."""
        limited = self._intake.count_peer(peer)
        if limited is not None:
            return problem(limited)
        if head.method in _READS and place is not None and self._validation_echo:
            return _echo(head.target)
        verdict = Verdict.of("not_found" if place is None else "method_not_allowed")
        reason = "expected POST"
        if place is None:
            paths = [each.path for each in self._intake.trust.places.values()]
            expected = " or ".join(paths[:_SHOWN_PATHS]) + (" …" if paths[_SHOWN_PATHS:] else "")
            reason = f"no sender posts to {head.path[:200]!a}, expected {expected}"
        self._intake.refusals.note(verdict, peer=peer, reason=reason)
        return problem(verdict, allow=None if place is None else "POST")


@functools.lru_cache(maxsize=256)
def problem(verdict: Verdict, *, allow: str | None = None) -> Answer:
    """Return the problem details of a refusal; they tell an outsider no more than its code."""
    status, code, retry_after, _ = verdict
    headers = [("Content-Type", "application/problem+json")]
    if retry_after is not None:
        headers.append(("Retry-After", str(math.ceil(retry_after.total_seconds()))))
    if allow is not None:
        headers.append(("Allow", allow))
    title = HTTPStatus(status).phrase
    document = {"type": "about:blank", "title": title, "status": status, "code": code}
    body = json.dumps(document).encode()
    closes = refusal_of(code).closes
    return Answer(status=status, headers=tuple(headers), body=body, close=closes)


def _state(status: int, state: str, **more: list[str]) -> Answer:
    headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
    document = {"status": state, **more}
    return Answer(status=status, headers=headers, body=json.dumps(document).encode())


def _echo(target: str) -> Answer:
    """Answer the ownership check of the first A2A samples (wire profile §5)."""
    query = parse_qsl(target.partition("?")[2], keep_blank_values=True)
    tokens = [value for name, value in query if name == "validationToken"]
    if len(tokens) != 1 or not _VALIDATION_TOKEN.fullmatch(tokens[0]):
        return problem(Verdict.of("invalid_validation_token"))
    return Answer(status=200, headers=_TEXT, body=tokens[0].encode("ascii"))


async def read_bounded(chunks: AsyncGenerator[bytes, None], limit: int) -> bytes | None:
    """Return the body; None as soon as it exceeds the limit, in bytes."""
    body = bytearray()
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            body += chunk
            if len(body) > limit:
                return None
    return bytes(body)
