"""The responses to all kinds of requests, and the state of a receiver for its probes."""

from __future__ import annotations

import functools
import json
import logging
import math
import re
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from pushkit.clock import utc_now
from pushkit.logs import RepeatedLog
from pushkit.scheduling.renewing import CachedValue, Renewing
from receiver.refusals import RefusalVerdict, refusal_of
from receiver.request import Answer

if TYPE_CHECKING:
    from receiver.runtime import Runtime

_log = logging.getLogger("receiver")

# The first A2A samples send a random name. Anything a browser could read as markup is refused.
_VALIDATION_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")
_TEXT: Final = (
    ("Content-Type", "text/plain; charset=utf-8"),
    ("X-Content-Type-Options", "nosniff"),
    ("Cache-Control", "no-store"),
)
_LIVENESS, _READINESS = "/healthz", "/readyz"
PROBES: Final = (_LIVENESS, _READINESS)
_READINESS_HOLDS = timedelta(seconds=1)


@functools.lru_cache(maxsize=256)
def problem(verdict: RefusalVerdict, *, allow: str | None = None) -> Answer:
    """Return the problem details of a refusal; they tell an outsider no more than its code."""
    status, code, retry_after, _ = verdict
    headers = [("Content-Type", "application/problem+json")]
    if retry_after is not None:
        headers.append(("Retry-After", str(math.ceil(retry_after.total_seconds()))))
    if code == "mailbox_unauthorized":
        headers.append(("WWW-Authenticate", "Bearer"))  # RFC 9110 §15.5.2
    if allow is not None:
        headers.append(("Allow", allow))
    title = HTTPStatus(status).phrase
    document = {"type": "about:blank", "title": title, "status": status, "code": code}
    body = json.dumps(document).encode()
    closes = refusal_of(code).closes
    return Answer(status=status, code=code, headers=tuple(headers), body=body, close=closes)


def echo(target: str) -> Answer:
    """Answer the ownership check of the first A2A samples (wire profile §5)."""
    query = parse_qsl(target.partition("?")[2], keep_blank_values=True)
    tokens = [value for name, value in query if name == "validationToken"]
    if len(tokens) != 1 or not _VALIDATION_TOKEN.fullmatch(tokens[0]):
        return problem(RefusalVerdict.of("invalid_validation_token"))
    return Answer(status=200, headers=_TEXT, body=tokens[0].encode("ascii"))


class Probes:
    """Answers liveness and readiness probes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._log = RepeatedLog(_log)
        self._readiness = Renewing(self._look, clock=utc_now)

    async def answer(self, path: str) -> Answer:
        """Answer a probe at one of the paths of `PROBES`."""
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
