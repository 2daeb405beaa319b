"""Checks beside the promises of the kit: bodies that are broken, too large or too slow.

Each is genuinely signed: no receiver can refuse it by its head.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pushkit.errors import TransportError
from pushkit.net.destination import DestinationPolicy
from pushkit.net.posting import closing
from pushkit.net.transport import Transport
from pushkit.url import Url
from pushkit.webhook import WebhookRequest
from receiver.doctor.subject import Examined
from receiver.testing import Answer, SigningAgent

_LARGE_BYTES = 32 * 1024 * 1024
_LARGE_TIMEOUT = timedelta(seconds=60)
_DRIP_SECONDS = 0.5

Strain = Callable[[Examined, SigningAgent, timedelta], Awaitable[list[str]]]


async def _malformed_json(
    subject: Examined, agent: SigningAgent, _patience: timedelta
) -> list[str]:
    """What is signed and is no notification is refused with a 4xx: no JSON, too deep, not A2A."""
    bodies = {
        "a body that is no JSON": b'{"statusUpdate": ',
        "no body": b"",
        "JSON a hundred thousand deep": b"[" * 100_000 + b"]" * 100_000,
        "bytes that are no text": b'{"a": "\xff\xfe"}',
        "JSON of no A2A version": b'{"hello": "world"}',
    }
    found = []
    for name, body in bodies.items():
        answer = await subject.post(replace(agent.draft("doctor"), body=body).request())
        found += _unless_refused(name, answer)
    return found


async def _oversized_body(
    subject: Examined, agent: SigningAgent, _patience: timedelta
) -> list[str]:
    """A body of 32 MiB is refused with a 4xx, or the connection ends before it is read."""
    draft = agent.draft("doctor")
    large = draft.body[:-1] + b" " * (_LARGE_BYTES - len(draft.body)) + b"}"
    request = replace(draft, body=large).request()
    async with closing(Transport(DestinationPolicy.naming(subject.url))) as client:
        to = client.policy.check(subject.url)
        try:
            answer = await client.post(to, [*request.headers], large, timeout=_LARGE_TIMEOUT)
        except TransportError:
            return []  # it ended the connection
    if 400 <= answer.status < 500:
        return []
    return [f"32 MiB: answered {answer.status}, expected a 4xx"]


async def _slow_body(subject: Examined, agent: SigningAgent, patience: timedelta) -> list[str]:
    """A body that drips in has a deadline, and holds up nobody else."""
    request = agent.draft("doctor").request()
    dripping = asyncio.create_task(_drip(subject.url, request, patience))
    await asyncio.sleep(_DRIP_SECONDS)
    answer = await subject.post(agent.draft("doctor").request())
    found = []
    if answer is None or not answer.accepted:
        said = answer.status if answer else "nothing"
        found.append(f"a genuine one beside it was answered {said}, expected 2xx")
    if not await dripping:
        seconds = patience.total_seconds()
        found.append(f"a byte every {_DRIP_SECONDS:g} s is still waited for after {seconds:g} s")
    return found


async def _drip(url: str, request: WebhookRequest, patience: timedelta) -> bool:
    """Send a body byte by byte; say whether it was answered or cut off within that time."""
    parsed = Url.parse(url)
    tls = ssl.create_default_context() if parsed.scheme == "https" else None
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


def _unless_refused(name: str, answer: Answer | None) -> list[str]:
    if answer is None:
        return [f"{name}: no answer, expected a 4xx"]
    if 400 <= answer.status < 500:
        return []
    return [f"{name}: answered {answer.status}, expected a 4xx"]


STRAINS: Final[Mapping[str, Strain]] = {
    "malformed_json": _malformed_json,
    "oversized_body": _oversized_body,
    "slow_body": _slow_body,
}
