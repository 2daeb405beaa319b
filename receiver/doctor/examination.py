"""The examination of a receiver: the checks of the test kit, then three of difficult bodies.

Those bodies are broken, too large or too slow. They are genuinely signed, so that a receiver cannot
refuse them by the head alone. The docstring of a check is the promise, as the report prints it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pushkit.errors import TransportError
from pushkit.net.tls import tls_context
from pushkit.net.transport import closing
from pushkit.url import Url
from pushkit.webhook import WebhookRequest
from receiver.doctor.report import Outcome, Result
from receiver.doctor.subject import Examined, check_only
from receiver.testing import CHECKS, SigningAgent, check_receiver
from receiver.testing.checks import why_unseen

_LARGE_BYTES = 32 * 1024 * 1024
_LARGE_TIMEOUT = timedelta(seconds=60)
_DRIP_SECONDS = 0.5

BodyCheck = Callable[[Examined, SigningAgent, timedelta], Awaitable[list[str]]]


async def _malformed_json(
    subject: Examined, agent: SigningAgent, _patience: timedelta
) -> list[str]:
    """A signed body that is no notification is refused with a 4xx: not JSON, too deep, not A2A."""
    bodies = {
        "a body that is not JSON": b'{"statusUpdate": ',
        "an empty body": b"",
        "JSON nested 100,000 levels deep": b"[" * 100_000 + b"]" * 100_000,
        "a body that is not UTF-8": b'{"a": "\xff\xfe"}',
        "JSON of no A2A version": b'{"hello": "world"}',
    }
    found = []
    for name, body in bodies.items():
        answer = await subject.post(replace(agent.draft("doctor"), body=body).request())
        found += _unless_refused(name, answer.status if answer else None)
    return found


async def _oversized_body(
    subject: Examined, agent: SigningAgent, _patience: timedelta
) -> list[str]:
    """A body of 32 MiB is refused with a 4xx, or by closing the connection."""
    draft = agent.draft("doctor")
    large = draft.body[:-1] + b" " * (_LARGE_BYTES - len(draft.body)) + b"}"
    request = replace(draft, body=large).request()
    async with closing(subject.client()) as client:
        to = client.policy.check(subject.url)
        try:
            answer = await client.post(to, [*request.headers], large, timeout=_LARGE_TIMEOUT)
        except TransportError:
            return []  # it closed the connection
    return _unless_refused("32 MiB", answer.status)


async def _slow_body(subject: Examined, agent: SigningAgent, patience: timedelta) -> list[str]:
    """A body that arrives very slowly has a deadline, and does not delay other requests."""
    request = agent.draft("doctor").request()
    dripping = asyncio.create_task(_drip(subject, request, patience))
    await asyncio.sleep(_DRIP_SECONDS)
    answer = await subject.post(agent.draft("doctor").request())
    found = []
    if answer is None or not answer.accepted:
        status = answer.status if answer else "nothing"
        found.append(f"a genuine notification at the same time was answered {status}, expected 2xx")
    if not await dripping:
        seconds = patience.total_seconds()
        found.append(
            f"a body of one byte every {_DRIP_SECONDS:g} s was still read after {seconds:g} s,"
            " expected an answer or the end of the connection (--patience)"
        )
    return found


async def _drip(subject: Examined, request: WebhookRequest, patience: timedelta) -> bool:
    """Send a body byte by byte; return whether it was answered or cut off within that time."""
    parsed = Url.parse(subject.url)
    roots = subject.connections.ca_file
    tls = tls_context(ca_file=roots) if parsed.scheme == "https" else None
    reader, writer = await asyncio.open_connection(parsed.host.strip("[]"), parsed.port, ssl=tls)
    lines = [f"POST {parsed.target} HTTP/1.1", f"Host: {parsed.authority}"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    lines += [f"Content-Length: {len(request.body) + 100_000}", "", ""]
    answered = asyncio.create_task(reader.read(1))
    loop = asyncio.get_running_loop()
    until = loop.time() + patience.total_seconds()
    try:
        writer.write("\r\n".join(lines).encode("latin-1"))
        while not answered.done() and loop.time() < until:
            writer.write(b" ")
            await writer.drain()
            await asyncio.wait([answered], timeout=_DRIP_SECONDS)
        return answered.done()
    except OSError:
        return True  # cut off
    finally:
        answered.cancel()
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await answered
            await writer.wait_closed()


def _unless_refused(name: str, status: int | None) -> list[str]:
    if status is not None and 400 <= status < 500:
        return []
    found = "no answer" if status is None else f"answered {status}"
    return [f"{name}: {found}, expected a 4xx"]


BODY_CHECKS: Final[Mapping[str, BodyCheck]] = {
    "malformed_json": _malformed_json,
    "oversized_body": _oversized_body,
    "slow_body": _slow_body,
}


NAMES: Final = (*CHECKS, *BODY_CHECKS)
_NEED_RESTART: Final = frozenset(
    {"crash_after_answer", "crash_before_answer", "retry_after_restart"}
)
# Their answers may all be right although a callback was called twice, or never.
_NEED_OBSERVER: Final = frozenset({"concurrent_copies", "retry"}) | _NEED_RESTART
_UNOBSERVED = "the answers are right; callbacks cannot be seen over HTTP: add --observe"


async def examine(
    subject: Examined,
    agent: SigningAgent,
    *,
    only: Collection[str] = (),  # names of checks; all of them by default
    deadline: timedelta,  # how long a callback may take
    patience: timedelta,  # how long a receiver may wait for a slow body
    rounds: int,  # how often each check of crashes tries
) -> AsyncIterator[Result]:
    """Yield the result of each check as it ends. Raises ConfigError: no such check or command."""
    check_only(only, NAMES)
    for name, check in CHECKS.items():
        if only and name not in only:
            continue
        if missing := _missing(subject, agent, name):
            yield _result(name, check, Outcome.UNSEEN, missing)
            continue
        findings = await check_receiver(
            subject, agent, only=[name], deadline=deadline, rounds=rounds
        )
        if findings:
            yield _result(name, check, Outcome.FAILED, [each.detail for each in findings])
        elif name in _NEED_OBSERVER and not subject.commands["--observe"]:
            yield _result(name, check, Outcome.UNSEEN, [_UNOBSERVED])
        else:
            yield _result(name, check, Outcome.PASSED)
        if name == "genuine" and findings:
            return  # a receiver that accepts nothing would pass the other checks
    for name, body_check in BODY_CHECKS.items():
        if only and name not in only:
            continue
        if body_check is _slow_body and not subject.is_reached_directly:
            yield _result(name, body_check, Outcome.UNSEEN, ["not through a --proxy"])
        else:
            faults = await body_check(subject, agent, patience)
            yield _result(name, body_check, Outcome.FAILED if faults else Outcome.PASSED, faults)


def _missing(subject: Examined, agent: SigningAgent, name: str) -> list[str]:
    """Return why a check cannot be made; nothing if it can."""
    if unseen := why_unseen(agent, name):
        return [unseen]
    if name not in _NEED_RESTART:
        return []
    needed = [option for option, words in subject.commands.items() if not words]
    return [f"needs {' and '.join(needed)}"] if needed else []


def _result(name: str, check: object, outcome: Outcome, details: Sequence[str] = ()) -> Result:
    promise = (check.__doc__ or "").strip().partition("\n")[0]
    return Result(check=name, promise=promise, outcome=outcome, details=tuple(details))
