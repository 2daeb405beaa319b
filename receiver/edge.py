"""`Edge`: answers every request, without a web framework, given its head and a reader of its body.

aiohttp and ASGI are thin adapters over it, so that both answer alike. For a notification it runs
`verification.verify` (steps 1 to 6) with keys, database and socket, and submits the result to
`accepting` (steps 7 to 9). Every request gets an answer, and none is a 500: refusals are problem
details (RFC 9457) with a stable `code`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from pushkit.errors import InboundError, StorageError
from pushkit.events.listeners import Listeners
from pushkit.events.receiver import NotificationAccepted, NotificationRepeated
from pushkit.logs import printable
from pushkit.scheduling.locks import LoopLock
from pushkit.traceparent import TRACEPARENT, read_traceparent, trace_id_of
from pushkit.webhook import Headers
from receiver.accepting import Acceptance
from receiver.answers import PROBES, Answer, Probes, echo, problem
from receiver.limits import Limits
from receiver.peers import Peers
from receiver.refusals import Refusals, Verdict
from receiver.selection import Endpoint, KeysOf
from receiver.service_state import (
    LARGE_BODY,
    BodyTimeoutError,
    IncompleteBodyError,
    ServiceState,
    body_too_large,
    turn_to_decode,
)
from receiver.steps import Trail
from receiver.trust import Trust, keys_of
from receiver.verification import (
    BodyProof,
    Head,
    Question,
    Repetition,
    Verified,
    WholeBody,
    verify,
)

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing
    from receiver.runtime import Runtime

_log = logging.getLogger("receiver")

_DUPLICATE = Verdict(status=200, code="duplicate")
_THANKS = {
    status: Answer(status=status, code=code)
    for status, code in ((200, "duplicate"), (202, "accepted"))
}
_HOW_TO_START = (
    "the receiver is not started: lifespan=receiver.lifespan, or `async with receiver`,"
    " in the application that it is mounted in"
)
_READS = ("GET", "HEAD")
_SHOWN_PATHS = 5

T = TypeVar("T")
ReadBody: TypeAlias = Callable[[int], Awaitable[bytes | None]]
"""Reads a body of at most so many bytes; None if it is longer. May raise `BrokenBodyError`."""
Reply: TypeAlias = Callable[[Answer], None]
Rest: TypeAlias = Coroutine[Any, Any, None]
Turns: TypeAlias = Generator[None, None, Rest | None]
"""Begins to answer a request, part by part: `in_turn` runs it, beside others.

Returns a coroutine that has to run, in a task, before the reply; None if there is none.
"""
Begin: TypeAlias = Callable[[Head, ReadBody, Reply], Turns]
"""`Edge.begin`, or a substitute."""
Steps: TypeAlias = Generator[Question, Any, Verified | Repetition]


class BrokenBodyError(Exception):
    """The peer disconnected within the body, or its framing is broken. Raised by an adapter."""


class _Asked(NamedTuple):
    """A notification that arrived, until it is answered; without its head, which is freed soon."""

    peer: str
    traceparent: str | None  # the trace that it states to belong to
    reply: Callable[[Verdict], None]
    now: datetime
    trail: Trail


class Edge:
    """Answers requests: notifications, probes, and all others."""

    def __init__(
        self,
        # The trusted senders and their keys. May be replaced at any time: each request is verified
        # against the trust that was in force when it arrived.
        trust: Trust,
        acceptance: Acceptance,
        *,
        peers: Peers,
        runtime: Runtime,
        validation_echo: bool,  # whether `GET ?validationToken=` is answered with the token
        limits: Limits,
        clock: Callable[[], datetime],
        events: Listeners,
        ids_kept: timedelta,  # how long ids are remembered in the database
        tracing: Tracing | None,
    ) -> None:
        self.trust = trust
        self.peers = peers
        self.limits = limits
        self.refusals: Refusals = Refusals(events, clock)
        self._acceptance = acceptance
        self._runtime = runtime
        self._probes = Probes(runtime)
        self._validation_echo = validation_echo
        self._clock = clock
        self._events = events
        self._service = ServiceState(limits, clock, ids_kept=ids_kept)
        self._tracing = tracing
        self._decoding = LoopLock()

    # --- any request ---------------------------------------------------------------------------

    async def answer(self, head: Head, read: ReadBody) -> Answer:
        """Answer one request; its body is read only once the head is proven."""
        return await replied(lambda reply: alone(self.begin(head, read, reply)))

    def begin(self, head: Head, read: ReadBody, reply: Reply) -> Turns:
        """Answer one request, in its last part or as soon as its notification is stored."""
        rest: Rest | None
        trail: Trail | None = None  # of a notification
        try:
            peer = self.peers.of(head.socket_peer, head.headers)
            endpoint = self.trust.endpoints.get(head.path)
            # Probes are never rate-limited: a flood must not make an orchestrator restart us.
            if head.method in _READS and head.path in PROBES:
                rest = self._probes.answer(head.path, reply)
            elif endpoint is None or head.method != "POST":
                reply(self._neither(head, endpoint, peer))
                return None
            elif not self._runtime.is_open:
                reply(problem(self.refusals.fault("not_started", _HOW_TO_START, peer=peer)))
                return None
            else:
                answer, trail = functools.partial(_answer, reply), head.trail
                rest = yield from self._begin(head, endpoint, read, answer, peer=peer)
        except Exception as exc:  # noqa: BLE001  # never a 500: the sender will retry
            reply(self._fault(head.socket_peer, trail, exc))
            return None
        return None if rest is None else self._guarded(rest, head.socket_peer, trail, reply)

    async def _guarded(self, rest: Rest, peer: str, trail: Trail | None, reply: Reply) -> None:
        try:
            await rest
        except Exception as exc:  # noqa: BLE001  # as above
            reply(self._fault(peer, trail, exc))

    def _fault(self, peer: str, trail: Trail | None, error: Exception) -> Answer:
        with contextlib.suppress(Exception):  # a log filter of the application may raise
            return problem(self.refusals.fault("internal", peer=peer, error=error, trail=trail))
        return problem(Verdict.of("internal"))

    def _neither(self, head: Head, endpoint: Endpoint | None, peer: str) -> Answer:
        """Answer a request that is neither a notification nor a probe."""
        try:
            self._service.count_peer(peer, self._clock())
        except InboundError as exc:
            return problem(self.refusals.verdict(exc, peer=peer))
        if head.method in _READS and endpoint is not None and self._validation_echo:
            return echo(head.target)
        verdict = Verdict.of("not_found" if endpoint is None else "method_not_allowed")
        reason = f"method {printable(head.method)}, expected POST"
        if endpoint is None:
            paths = list(dict.fromkeys(each.path for each in self.trust.endpoints.values()))
            expected = " or ".join(paths[:_SHOWN_PATHS]) + (" …" if paths[_SHOWN_PATHS:] else "")
            reason = f"no sender posts to {head.path[:200]!a}, expected {expected}"
        self.refusals.note(verdict, peer=peer, reason=reason)
        return problem(verdict, allow=None if endpoint is None else "POST")

    # --- notifications -------------------------------------------------------------------------

    def _begin(
        self,
        head: Head,
        endpoint: Endpoint,
        read: ReadBody,
        reply: Callable[[Verdict], None],
        *,
        peer: str,
    ) -> Turns:
        """Verify and store one notification; call `reply` with the verdict, now or later.

        A step may have to wait in a task: for keys, for tokens in the database, for the body, or
        for a memory of ids outside of it.
        """
        service, now = self._service, self._clock()
        asked = _Asked(peer, _traceparent_of(head.headers), reply, now, head.trail)
        try:
            service.count_peer(peer, now)  # 1
            steps = verify(head, endpoint, now=now, service=service)
            while (question := next(steps)) is None:
                yield
        except StopIteration as done:
            found: Verified | Repetition = done.value
        except InboundError as exc:
            yield  # answers are written together: each write wakes the peer
            reply(self._refusal(asked, exc))
            return None
        else:
            return self._continue(asked, steps, question, read)
        yield
        # Outside of the try: the traceback of a fault would show what was found, with its body.
        return self._proven(asked, found)

    async def _continue(
        self, asked: _Asked, steps: Steps, question: Question, read: ReadBody
    ) -> None:
        """Do the remaining steps, and wait where one has to."""
        try:
            while True:
                question = steps.send(await self._find(question, read))
        except StopIteration as done:
            found: Verified | Repetition = done.value
        except (InboundError, StorageError) as exc:
            asked.reply(self._refusal(asked, exc))
            return
        rest = self._proven(asked, found)  # outside of the try, as above
        if rest is not None:
            await rest

    async def _find(self, question: Question, read: ReadBody) -> object:
        """Fetch or read what `verify` asks for: it asks only for what is not in memory."""
        if question is None:
            return None
        if isinstance(question, KeysOf):
            return await keys_of(question)
        if isinstance(question, WholeBody):
            return await self._body(question, read)
        if isinstance(question, BodyProof):
            async with self._decoding.here:  # one at a time: strangers may send many
                return await asyncio.to_thread(question.prove)
        found = await self._acceptance.handed_out(question)
        if found:
            self._service.remember_handed_out(question, found)
        return found

    async def _body(self, asked: WholeBody, read: ReadBody) -> bytes:
        seconds = self.limits.request_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                body = await read(asked.limit)
        except TimeoutError as exc:
            raise BodyTimeoutError(f"not whole within {seconds:g} s") from exc
        except BrokenBodyError as exc:
            raise IncompleteBodyError("the peer disconnected, or its framing is broken") from exc
        if body is None:
            raise body_too_large(f"more than {asked.limit} bytes", asked.limit, asked.sender)
        if len(body) > LARGE_BODY:
            await turn_to_decode(self._decoding)
        return body

    def _proven(self, asked: _Asked, found: Verified | Repetition) -> Rest | None:
        """Do steps 7 to 9, and reply."""
        if isinstance(found, Repetition):
            asked.reply(self._report(asked, _DUPLICATE, found))
            return None
        if self._tracing is not None:
            return self._traced(asked, found, self._tracing)
        ended = functools.partial(self._conclude, asked, found)
        self._acceptance.begin(found, asked.traceparent, asked.trail, ended)
        return None

    def _conclude(
        self, asked: _Asked, verified: Verified, result: int | BaseException | None
    ) -> None:
        try:
            verdict = self._judged(asked, verified, result)
        except Exception:  # noqa: BLE001  # as in `_fault`
            verdict = Verdict.of("internal")
        asked.reply(verdict)

    async def _traced(self, asked: _Asked, verified: Verified, tracing: Tracing) -> None:
        """Store a notification within a span of the trace that its sender states."""
        said = verified.notification
        with tracing.accepting(
            asked.traceparent,
            sender=said.sender,
            task=said.task_id,
            delivery_id=said.delivery_id,
        ) as span:
            begin = functools.partial(
                self._acceptance.begin, verified, span.traceparent, asked.trail
            )
            verdict = self._judged(asked, verified, await replied(begin))
            span.note(code=verdict.code)
            asked.reply(verdict)

    def _judged(
        self, asked: _Asked, verified: Verified, result: int | BaseException | None
    ) -> Verdict:
        """Return the verdict on a notification: its id, None for a duplicate, or the error."""
        said = verified.notification
        try:
            if result is None:
                return self._report(asked, _DUPLICATE, verified)
            if not isinstance(result, BaseException):
                self._service.remember_accepted(said, asked.now)
                verdict = Verdict(202, "accepted", None, result)
                return self._report(asked, verdict, verified)
        except Exception as exc:  # noqa: BLE001  # never a 500: the sender will retry
            result = exc
        return self._refusal(asked, result)

    # --- verdicts, reported --------------------------------------------------------------------

    def _refusal(self, asked: _Asked, error: BaseException) -> Verdict:
        """Report a refusal, or a fault of our own; return the verdict."""
        trail = asked.trail
        trail.trace_id = trace_id_of(asked.traceparent)
        if isinstance(error, InboundError):
            return self.refusals.verdict(error, peer=asked.peer, trail=trail)
        code = "storage" if isinstance(error, StorageError) else "internal"
        return self.refusals.fault(code, peer=asked.peer, error=error, trail=trail)

    def _report(self, asked: _Asked, verdict: Verdict, found: Verified | Repetition) -> Verdict:
        """Report a notification that was accepted, now or before; return the verdict."""
        kind = NotificationRepeated if verdict is _DUPLICATE else NotificationAccepted
        emits, logs = self._events.wants(kind.usual_level), _log.isEnabledFor(logging.INFO)
        if not (emits or logs):
            return verdict
        trace_id = trace_id_of(asked.traceparent)
        if isinstance(found, Verified):
            found = found.repeated()
        if emits:
            self._events.emit(
                kind(
                    at=self._clock(),
                    sender=found.sender.name,
                    task_id=found.task_id,
                    delivery_id=found.delivery_id,
                    trace_id=trace_id,
                )
            )
        if logs:
            _log_accepted(verdict, found, trace_id)
        return verdict


def in_turn(begun: Sequence[Turns]) -> list[Rest | None]:
    """Begin to answer requests, the same part of each in turn; return their coroutines.

    A part's code and data are then in the processor's caches for all requests but the first.
    Request by request, each part would find the caches full of the parts before it.
    """
    rests: list[Rest | None] = [None] * len(begun)
    unfinished = list(enumerate(begun))
    while unfinished:
        left = []
        for each in unfinished:
            number, turns = each
            try:
                next(turns)
                left.append(each)
            except StopIteration as done:
                rests[number] = done.value
            except Exception as exc:  # noqa: BLE001  # as in a callback of the loop: others go on
                context = {"message": "a request failed", "exception": exc}
                asyncio.get_running_loop().call_exception_handler(context)
        unfinished = left
    return rests


def alone(begun: Turns) -> Rest | None:
    """Begin to answer one request; return its coroutine."""
    try:
        while True:
            next(begun)
    except StopIteration as done:
        rest: Rest | None = done.value
        return rest


async def replied(begin: Callable[[Callable[[T], None]], Rest | None]) -> T:
    """Call `begin` with a callback, run the rest that it returns, and return the reply."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def reply(found: T) -> None:
        if not answer.done():  # the caller may have been cancelled
            answer.set_result(found)

    rest = begin(reply)
    if rest is not None:
        await rest
    return await answer


async def read_bounded(chunks: AsyncGenerator[bytes, None], limit: int) -> bytes | None:
    """Return the body; None as soon as it exceeds the limit, in bytes."""
    body = bytearray()
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            body += chunk
            if len(body) > limit:
                return None
    return bytes(body)


def _answer(reply: Reply, verdict: Verdict) -> None:
    """Reply to the request of a notification."""
    reply(_THANKS.get(verdict.status) or problem(verdict))


def _traceparent_of(headers: Headers) -> str | None:
    if TRACEPARENT not in headers.values():
        return None
    return read_traceparent(headers.all(TRACEPARENT))


def _log_accepted(verdict: Verdict, found: Repetition, trace_id: str | None) -> None:
    profile = found.sender.profile.value
    _log.info(
        "%s sender=%s profile=%s task=%s id=%s seq=%s kind=%s%s",
        verdict.code,
        found.sender.name,
        profile,
        printable(found.task_id),
        printable(found.delivery_id),
        found.seq,
        found.kind,
        f" trace_id={trace_id}" if trace_id else "",
        extra={
            "status": verdict.status,
            "code": verdict.code,
            "sender": found.sender.name,
            "profile": profile,
            "task": found.task_id,
            "delivery_id": found.delivery_id,
            "seq": found.seq,
            "kind": found.kind,
            **({"trace_id": trace_id} if trace_id else {}),
        },
    )
