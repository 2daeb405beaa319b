"""The edge without a web framework: from the head of a request and its chunks to an answer.

aiohttp and ASGI are thin adapters over it, so that both answer alike. Refusals are problem details
(RFC 9457) with a stable `code`; nothing here ends in a 500.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from pushkit.clock import utc_now
from pushkit.logs import RepeatedLog
from pushkit.webhook import Headers, WebhookRequest
from pushkit.work import Held, Renewing
from receiver.peers import Peers
from receiver.verdicts import Verdict

if TYPE_CHECKING:
    from receiver.pipeline import ProvenHead
    from receiver.receiver import Receiver

__all__ = ["Answer", "BrokenBodyError", "Edge", "Head", "problem"]

_log = logging.getLogger("receiver")

# What the first A2A samples send is a random name; nothing that a browser would read as markup.
_VALIDATION_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")
_DIGITS = re.compile(r"[0-9]+")
_LONGEST_LENGTH = 18  # digits: far over any limit, and quickly read
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


class BrokenBodyError(Exception):
    """The peer went away within the body, or its framing is broken. Raised by an adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a request.

    Attributes:
        method: The method.
        path: The path, percent-decoded, without the prefix of a mount.
        target: Path and query as received.
        headers: The header fields, repeated ones as often as they came.
        socket_peer: The address of the socket's other end.
    """

    method: str
    path: str
    target: str
    headers: Headers
    socket_peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes back.

    Attributes:
        status: The status.
        headers: The header fields, without `Content-Length` and those of the connection.
        body: The body.
        close: The connection ends with it: the rest of the request was not read.
    """

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)
    close: bool = False


class Edge:
    """Answers requests for a receiver.

    Args:
        receiver: Whose requests.
        peers: Tells where they come from.
        validation_echo: Whether `GET ?validationToken=` is answered with the token.
    """

    def __init__(self, receiver: Receiver, *, peers: Peers, validation_echo: bool) -> None:
        self.peers = peers
        self._receiver = receiver
        self._validation_echo = validation_echo
        self._log = RepeatedLog(_log)
        self._readiness = Renewing(self._look, clock=utc_now)

    def knows(self, path: str) -> bool:
        """Say whether notifications arrive at a path."""
        return self._receiver.trust.path(path) is not None

    async def answer(self, head: Head, read: Callable[[], AsyncGenerator[bytes, None]]) -> Answer:
        """Answer one request.

        Args:
            head: Its head.
            read: Begins to read its body; called only once the head is admitted. The iterator may
                raise `BrokenBodyError`.
        """
        try:
            return await self._answer(head, read)
        except Exception as exc:  # noqa: BLE001  # never a 500: the sender comes again
            fault = "refused 503 internal: an error of the receiver itself"
            self._log.say(("internal", type(exc)), logging.ERROR, fault, exc_info=exc)
            self._receiver.pipeline.refusals.tell(503, "internal", peer=head.socket_peer)
            return problem(Verdict(status=503, code="internal"), close=True)

    async def _answer(self, head: Head, read: Callable[[], AsyncGenerator[bytes, None]]) -> Answer:
        peer = self.peers.of(head.socket_peer, head.headers)
        # Never counted: a flood must not have the process restarted by those who probe it.
        if head.method in _READS and head.path in (_LIVENESS, _READINESS):
            return await self._probe(head.path)
        path = self._receiver.trust.path(head.path)
        if path is not None and head.method == "POST":
            return await self._receive(head, read, path, peer)
        limited = self._receiver.pipeline.admission.admit_peer(peer)
        if limited is not None:
            return problem(limited)
        if head.method in _READS and path is not None and self._validation_echo:
            return _echo(head.target)
        return self._not_here(head, path, peer)

    async def _probe(self, path: str) -> Answer:
        if path == _LIVENESS:
            return _state(200, "alive")
        return await self._readiness.get() or _state(503, "not ready")

    async def _receive(
        self, head: Head, read: Callable[[], AsyncGenerator[bytes, None]], path: str, peer: str
    ) -> Answer:
        if not self._receiver.is_open:
            said = "refused 503 not_started: %s"
            self._log.say("not_started", logging.ERROR, said, _HOW_TO_START)
            self._receiver.pipeline.refusals.tell(503, "not_started", peer=peer)
            return problem(Verdict(status=503, code="not_started"), close=True)
        pipeline = self._receiver.pipeline
        declared = _declared_length(head.headers)
        verdict = pipeline.admission.admit(head.headers, declared, peer=peer)
        if verdict is not None:
            return problem(verdict, close=verdict.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        # Who cannot prove to be somebody is refused here: a stranger's body is never read.
        proven = await pipeline.select(
            head.headers, method=head.method, target=head.target, path=path, peer=peer
        )
        if isinstance(proven, Verdict):
            return problem(proven)
        body = await self._read_body(read, proven, peer)
        if isinstance(body, Verdict):
            return problem(body, close=True)
        request = WebhookRequest(
            method=head.method, target=head.target, headers=head.headers, body=body
        )
        verdict = await self._receiver.receive_admitted(
            request, path=path, peer=peer, proven=proven
        )
        return problem(verdict) if verdict.refused else Answer(status=verdict.status)

    async def _read_body(
        self, read: Callable[[], AsyncGenerator[bytes, None]], proven: ProvenHead, peer: str
    ) -> bytes | Verdict:
        """Return the body, or what is wrong with it: large, slow or broken off."""
        pipeline, sender = self._receiver.pipeline, proven.head.sender
        try:
            async with asyncio.timeout(pipeline.limits.request_timeout.total_seconds()):
                body = await _read_bounded(read(), proven.max_body_bytes)
        except TimeoutError:
            return pipeline.admission.body_too_slow(peer=peer, sender=sender.name)
        except BrokenBodyError:
            return pipeline.admission.body_broken(peer=peer, sender=sender.name)
        return pipeline.admission.body_too_large(sender, peer=peer) if body is None else body

    async def _look(self, _held: Held[Answer] | None) -> Held[Answer]:
        """Answer whether this process can serve; that holds for a second."""
        since = utc_now()
        unready, degraded = await self._receiver.unready(), self._receiver.degraded()
        for parts, says in ((unready, "not ready: %s"), (degraded, "degraded: %s")):
            if parts:
                reasons = "; ".join(parts.values())
                self._log.say((says, *parts), logging.WARNING, says, reasons)
        # Which parts, for whoever reads a probe's answer; whose keys is for the log.
        more = {"degraded": sorted(degraded)} if degraded else {}
        if unready:
            answer = _state(503, "not ready", failed=sorted(unready), **more)
        else:
            answer = _state(200, "ready", **more)
        until = utc_now() + _READINESS_HOLDS
        return Held(value=answer, since=since, fresh_until=until, good_until=until)

    def _not_here(self, head: Head, path: str | None, peer: str) -> Answer:
        wrong_path = path is None
        status, code = (404, "not_found") if wrong_path else (405, "method_not_allowed")
        reason = "expected POST"
        if wrong_path:
            paths = self._receiver.trust.paths()
            expected = " or ".join(paths[:_SHOWN_PATHS]) + (" …" if paths[_SHOWN_PATHS:] else "")
            reason = f"no sender posts to {head.path[:200]!a}, expected {expected}"
        self._receiver.pipeline.refusals.note(status, code, peer=peer, reason=reason)
        return problem(Verdict(status=status, code=code), allow=None if wrong_path else "POST")


def problem(verdict: Verdict, *, close: bool = False, allow: str | None = None) -> Answer:
    """Return the problem details of a refusal: they tell an outsider nothing more than the code."""
    headers = [("Content-Type", "application/problem+json")]
    if verdict.retry_after is not None:
        headers.append(("Retry-After", str(math.ceil(verdict.retry_after.total_seconds()))))
    if allow is not None:
        headers.append(("Allow", allow))
    document = {
        "type": "about:blank",
        "title": HTTPStatus(verdict.status).phrase,
        "status": verdict.status,
        "code": verdict.code,
    }
    body = json.dumps(document).encode()
    return Answer(status=verdict.status, headers=tuple(headers), body=body, close=close)


def _state(status: int, state: str, **more: list[str]) -> Answer:
    headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
    document = {"status": state, **more}
    return Answer(status=status, headers=headers, body=json.dumps(document).encode())


def _echo(target: str) -> Answer:
    """Answer the check of who owns this URL, as the first A2A samples do it (wire profile §5)."""
    query = parse_qsl(target.partition("?")[2], keep_blank_values=True)
    tokens = [value for name, value in query if name == "validationToken"]
    if len(tokens) != 1 or not _VALIDATION_TOKEN.fullmatch(tokens[0]):
        return problem(Verdict(status=400, code="invalid_validation_token"))
    return Answer(status=200, headers=_TEXT, body=tokens[0].encode("ascii"))


def _declared_length(headers: Headers) -> int | None:
    # The server has refused what contradicts itself; here it only saves the reading.
    declared = [value for value in headers.all("Content-Length") if _DIGITS.fullmatch(value)]
    return max((int(value[:_LONGEST_LENGTH]) for value in declared), default=None)


async def _read_bounded(chunks: AsyncGenerator[bytes, None], limit: int) -> bytes | None:
    """Return the body, or None once it is longer than the limit."""
    body = bytearray()
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            body += chunk
            if len(body) > limit:
                return None
    return bytes(body)
