"""`RequestHandler`: answers every request, without a web framework.

The service's server, aiohttp and ASGI are thin adapters over it, so that all answer alike. Every
request gets an answer, and none is a 500: refusals are problem details (RFC 9457) with a stable
`code`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from pushkit.clock import utc_now
from pushkit.errors import InboundError, StorageError
from pushkit.events import (
    GenerationGap,
    Listeners,
    NotificationAccepted,
    NotificationRepeated,
)
from pushkit.logs import RepeatedLog, printable
from pushkit.peers import Peers
from pushkit.scheduling.renewing import CachedValue, Renewing
from pushkit.webhook import TRACEPARENT, read_traceparent, trace_id_of
from receiver.accepting import Acceptance
from receiver.limits import Limits
from receiver.mailbox.service import Mailboxes
from receiver.notification import Accepted, Verified
from receiver.refusals import Refusals, problem
from receiver.request import Answer, Request
from receiver.selection import ReceiverPath
from receiver.service_state import ServiceState
from receiver.steps import Trail
from receiver.verification import Verification

if TYPE_CHECKING:
    from receiver.runtime import Runtime

_log = logging.getLogger("receiver")

_ACCEPTED: Final = Answer(status=202, code="accepted")
_DUPLICATE: Final = Answer(status=200, code="duplicate")
_HOW_TO_START = (
    "the receiver is not started: lifespan=receiver.lifespan, or `async with receiver`,"
    " in the application that it is mounted in"
)
# The first A2A samples send a random name. Anything a browser could read as markup is refused.
_VALIDATION_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")
_TEXT: Final = (
    ("Content-Type", "text/plain; charset=utf-8"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)
_LIVENESS, _READINESS = "/healthz", "/readyz"
_PROBES: Final = (_LIVENESS, _READINESS)
_READINESS_HOLDS = timedelta(seconds=1)
_READS = ("GET", "HEAD")
_SHOWN_PATHS = 5


class RequestHandler:
    """Answers requests: notifications, probes, and all others."""

    def __init__(
        self,
        acceptance: Acceptance,
        mailboxes: Mailboxes,
        *,
        peers: Peers,
        runtime: Runtime,
        validation_echo: bool,  # whether `GET ?validationToken=` is answered with the token
        limits: Limits,
        clock: Callable[[], datetime],
        events: Listeners,
        ids_kept: timedelta,  # how long ids are remembered in the database
    ) -> None:
        self.peers = peers
        self.limits = limits
        self.refusals: Refusals = Refusals(events, clock)
        self._runtime = runtime
        self._probes = _Probes(runtime)
        self._validation_echo = validation_echo
        self._clock = clock
        self._events = events
        self._gaps = RepeatedLog(_log, interval=timedelta(hours=1))
        self._state = ServiceState(
            limits, clock, ids_kept=ids_kept, registered=acceptance.handed_out
        )
        self._acceptance = acceptance
        self._mailboxes = mailboxes
        self._verification = Verification(self._state, clock)

    async def handle(self, request: Request) -> Answer:
        """Answer one request; its body is read only once the head is proven."""
        peer, trail = request.peer, None
        try:
            peer = self.peers.of(request.peer, request.headers)
            endpoint = self._runtime.trust.endpoints.get(request.path)
            # Probes are never rate-limited: a flood must not make an orchestrator restart us.
            if request.method in _READS and request.path in _PROBES:
                return await self._probes.answer(request.path)
            if endpoint is None or request.method != "POST":
                self._state.count_peer(peer, self._clock())
                if endpoint is not None or request.path not in self._mailboxes:
                    return self._neither(request, endpoint, peer)
            if not self._runtime.is_open:
                return self.refusals.refuse("not_started", _HOW_TO_START, peer=peer)
            if endpoint is None:
                return await self._mailboxes.answer(request)
            trail, traceparent = request.trail, None
            if TRACEPARENT in request.headers.values():
                traceparent = read_traceparent(request.headers.all(TRACEPARENT))
                trail.trace_id = trace_id_of(traceparent)
            verifying = self._verification.verify(request, endpoint, peer=peer)
            # What is verified is freed before it is stored: a full house of requests stays small.
            del request
            return await self._notification(verifying, trail, traceparent)
        except Exception as exc:  # noqa: BLE001  # never a 500: the sender will retry
            return self._refused(exc, peer, trail)

    def refuse(self, code: str, reason: str, peer: str) -> Answer:
        """Report bytes that are no request, by the code of the refusal; return the answer."""
        return self.refusals.refuse(code, reason, peer=peer)

    def answers(self, path: str) -> bool:
        """Return whether a path is a sender's, or a mailbox's."""
        return path in self._runtime.trust.endpoints or path in self._mailboxes

    async def _notification(
        self,
        verifying: Coroutine[None, None, Verified | Accepted],
        trail: Trail,
        traceparent: str | None,  # the trace that it states to belong to
    ) -> Answer:
        result = await verifying  # steps 1 to 6
        if isinstance(result, Verified):
            now = self._clock()
            result = await self._acceptance.accept(result, trail, traceparent)  # 7, 8, 9
            if result.id is not None:
                self._state.remember_accepted(result, now)
        self._report(result, trail.trace_id)
        return _DUPLICATE if result.id is None else _ACCEPTED

    def _refused(self, error: Exception, peer: str, trail: Trail | None) -> Answer:
        """Refuse a request by an error, or by a fault of this process."""
        with contextlib.suppress(Exception):  # a log filter of the application may raise
            if isinstance(error, InboundError):
                return self.refusals.refuse(error, peer=peer, trail=trail)
            code = "storage" if isinstance(error, StorageError) else "internal"
            return self.refusals.refuse(code, peer=peer, error=error, trail=trail)
        return problem("internal")

    def _neither(self, request: Request, endpoint: ReceiverPath | None, peer: str) -> Answer:
        """Answer a request that is no notification, no probe, and not for a mailbox."""
        if request.method in _READS and endpoint is not None and self._validation_echo:
            return _echo(request.target)
        if endpoint is not None:
            reason = f"method {printable(request.method)}, expected POST"
            return self.refusals.refuse("method_not_allowed", reason, peer=peer)
        paths = list(dict.fromkeys(each.path for each in self._runtime.trust.endpoints.values()))
        expected = " or ".join(paths[:_SHOWN_PATHS]) + (" …" if paths[_SHOWN_PATHS:] else "")
        reason = f"no sender posts to {request.path[:200]!a}, expected {expected}"
        return self.refusals.refuse("not_found", reason, peer=peer)

    def _report(self, accepted: Accepted, trace_id: str | None) -> None:
        sender, said = accepted.sender, accepted.said
        kind = NotificationRepeated if accepted.id is None else NotificationAccepted
        if self._events.wants(kind.usual_level):
            self._events.emit(
                kind(
                    at=self._clock(),
                    sender=sender.name,
                    task_id=said.task_id,
                    delivery_id=accepted.delivery_id,
                    trace_id=trace_id,
                )
            )
        if accepted.gap is not None:
            self._report_gap(accepted, *accepted.gap, trace_id)
        if not _log.isEnabledFor(logging.INFO):
            return
        profile = sender.profile.value
        _log.info(
            "%s sender=%s profile=%s task=%s id=%s seq=%s kind=%s%s",
            accepted.code,
            sender.name,
            profile,
            printable(said.task_id),
            printable(accepted.delivery_id),
            said.seq,
            said.kind,
            f" trace_id={trace_id}" if trace_id else "",
            extra={
                "status": 200 if accepted.id is None else 202,
                "code": accepted.code,
                "sender": sender.name,
                "profile": profile,
                "task": said.task_id,
                "delivery_id": accepted.delivery_id,
                "seq": said.seq,
                "kind": said.kind,
                **({"trace_id": trace_id} if trace_id else {}),
            },
        )

    def _report_gap(
        self, accepted: Accepted, before: int, generation: int, trace_id: str | None
    ) -> None:
        """Report a generation that does not follow on the one before it."""
        sender, said = accepted.sender, accepted.said
        event = GenerationGap(
            at=self._clock(),
            sender=sender.name,
            task_id=said.task_id,
            delivery_id=accepted.delivery_id,
            trace_id=trace_id,
            before=before,
            generation=generation,
        )
        self._events.emit(event)
        self._gaps.log(
            (sender.name, event.restarts),
            logging.WARNING,
            "sender=%s task=%s id=%s: found generation %d after %d: %s; GetTask returns it",
            sender.name,
            printable(said.task_id),
            printable(accepted.delivery_id),
            generation,
            before,
            "the agent counts anew" if event.restarts else "changes between them did not arrive",
            extra={
                "code": event.kind.value,
                "sender": sender.name,
                "task": said.task_id,
                "delivery_id": accepted.delivery_id,
            },
        )


def _echo(target: str) -> Answer:
    """Answer the ownership check of the first A2A samples (wire profile §5)."""
    query = parse_qsl(target.partition("?")[2], keep_blank_values=True)
    tokens = [value for name, value in query if name == "validationToken"]
    if len(tokens) != 1 or not _VALIDATION_TOKEN.fullmatch(tokens[0]):
        return problem("invalid_validation_token")
    return Answer(status=200, headers=_TEXT, body=tokens[0].encode("ascii"))


class _Probes:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._log = RepeatedLog(_log)
        self._readiness = Renewing(self._look, clock=utc_now)

    async def answer(self, path: str) -> Answer:
        if path == _LIVENESS:
            return _state(200, "alive")
        return await self._readiness.get() or _state(503, "not ready")

    async def _look(self, _held: CachedValue[Answer] | None) -> CachedValue[Answer]:
        """Return the answer to a readiness probe, to be used for a second."""
        since = utc_now()
        unready, degraded = await self._runtime.unready(), self._runtime.degraded()
        for parts, says in ((unready, "not ready: %s"), (degraded, "degraded: %s")):
            if parts:
                reasons = "; ".join(parts.values())
                self._log.log((says, *parts), logging.WARNING, says, reasons)
        # The answer names the parts alone; the log also says whose keys are missing.
        more = {"degraded": sorted(degraded)} if degraded else {}
        if unready:
            answer = _state(503, "not ready", failed=sorted(unready), **more)
        else:
            answer = _state(200, "ready", **more)
        until = utc_now() + _READINESS_HOLDS
        return CachedValue(value=answer, since=since, fresh_until=until, good_until=until)


def _state(status: int, state: str, **more: list[str]) -> Answer:
    headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"))
    document = {"status": state, **more}
    return Answer(status=status, headers=headers, body=json.dumps(document).encode())
