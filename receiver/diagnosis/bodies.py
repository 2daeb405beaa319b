"""Checks of difficult bodies: broken, too large or too slow.

They are genuinely signed, so that a receiver cannot refuse them by the head alone. The docstring of
a check is the promise, as reports print it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pushkit.errors import TransportError
from pushkit.net.tls import tls_context
from pushkit.net.transport import closing
from pushkit.url import Url
from pushkit.webhook import WebhookRequest
from receiver.diagnosis.subject import ReceiverAtUrl
from receiver.diagnosis.trial import Check, Trial, accepted, described

_LARGE_BYTES = 32 * 1024 * 1024
_LARGE_TIMEOUT = timedelta(seconds=60)
_DRIP_SECONDS = 0.5
_4XX: Final = range(400, 500)


async def _malformed_json(trial: Trial) -> list[str]:
    """A signed body that is no notification is refused with a 4xx: not JSON, too deep, not A2A."""
    bodies = {
        "a body that is not JSON": b'{"statusUpdate": ',
        "an empty body": b"",
        "JSON nested 100,000 levels deep": b"[" * 100_000 + b"]" * 100_000,
        "a body that is not UTF-8": b'{"a": "\xff\xfe"}',
        "JSON of no A2A version": b'{"hello": "world"}',
    }
    drafts = {name: replace(trial.draft(), body=body) for name, body in bodies.items()}
    return await trial.refused(drafts, among=_4XX, says="a 4xx")


async def _oversized_body(at: ReceiverAtUrl, trial: Trial) -> list[str]:
    """A body of 32 MiB is refused with a 4xx, or by closing the connection."""
    draft = trial.draft()
    large = draft.body[:-1] + b" " * (_LARGE_BYTES - len(draft.body)) + b"}"
    request = replace(draft, body=large).request()
    fault = ""
    async with closing(at.client()) as client:
        to = client.policy.check(at.url)
        try:
            answer = await client.post(to, [*request.headers], large, timeout=_LARGE_TIMEOUT)
        except TransportError as exc:
            # A connection that was closed is the error itself; its kinds are other failures.
            fault = "" if type(exc) is TransportError else str(exc)
        else:
            if answer.status not in _4XX:
                fault = f"answered {answer.status}"
    faults = [f"32 MiB: {fault}, expected a 4xx, or the end of the connection"] if fault else []
    return [*faults, *await trial.settled()]


async def _slow_body(at: ReceiverAtUrl, patience: timedelta, trial: Trial) -> list[str]:
    """A body that arrives very slowly has a deadline, and does not delay other requests."""
    dripping = asyncio.create_task(_drip(at, trial.draft().request(), patience))
    await asyncio.sleep(_DRIP_SECONDS)
    answer = await trial.post(trial.draft())
    found = []
    if not accepted(answer):
        found.append(f"a genuine notification at the same time: {described(answer)}, expected 2xx")
    try:
        if not await dripping:
            seconds = patience.total_seconds()
            found.append(
                f"a body of one byte every {_DRIP_SECONDS:g} s was still read after {seconds:g} s,"
                " expected an answer or the end of the connection (--patience)"
            )
    except OSError as exc:
        found.append(f"no connection for a slow body: {exc.strerror or exc}")
    return found


async def _drip(at: ReceiverAtUrl, request: WebhookRequest, patience: timedelta) -> bool:
    """Send a body byte by byte; return whether it was answered or cut off within that time.

    Raises:
        OSError: There is no connection.
    """
    parsed = Url.parse(at.url)
    roots = at.connections.ca_file
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


def body_checks(at: ReceiverAtUrl, patience: timedelta) -> Mapping[str, Check]:
    """Return the checks of a receiver that may wait for a slow body as long as `patience`."""
    oversized = functools.partial(_oversized_body, at)
    slow = functools.partial(_slow_body, at, patience)
    return {
        "malformed_json": Check(run=_malformed_json),
        "oversized_body": Check(run=functools.update_wrapper(oversized, _oversized_body)),
        "slow_body": Check(run=functools.update_wrapper(slow, _slow_body), directly=True),
    }
