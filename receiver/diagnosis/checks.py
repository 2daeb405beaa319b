"""The promises of a receiver (wire profile §4): a check for each, which returns what it found.

The docstring of a check is the promise, as reports print it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import statistics
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from pushkit.bounded_json import JsonObject
from pushkit.clock import utc_now
from pushkit.errors import TransportError
from pushkit.keys.jwk import Algorithm, generate_key, public_jwk
from pushkit.net.tls import tls_context
from pushkit.net.transport import closing
from pushkit.signing.notification_jwt import body_sha256
from pushkit.signing.scheme import Scheme
from pushkit.url import Url
from receiver.diagnosis.sink import VisitConnection, sinking
from receiver.diagnosis.subject import Answer
from receiver.diagnosis.trial import Check, Trial, accepted, described

_COPIES = 100
_BY_KEY = frozenset({Scheme.JWT, Scheme.HTTP_MESSAGE_SIGNATURES})
_HOUR = timedelta(hours=1)
_LARGE_BYTES = 32 * 1024 * 1024
_LARGE_TIMEOUT = timedelta(seconds=60)
_DRIP_SECONDS = 0.5
_4XX: Final = range(400, 500)
_NAMES_WITH_DIGITS = re.compile(rb"[\w-]*\d[\w-]*")


# --- accepting, once ----------------------------------------------------------------------------


async def _genuine(trial: Trial) -> list[str]:
    """A genuine notification is accepted, and called back once."""
    draft = trial.draft()
    answer = await trial.post(draft)
    if not accepted(answer):
        return [f"{described(answer)}, expected 2xx"]
    if await trial.uncalled(draft):
        return ["it was never called back"]
    return await trial.once(draft)


async def _retry(trial: Trial) -> list[str]:
    """A retry of an accepted delivery is answered 2xx, and not called back again."""
    draft = trial.draft()
    request = draft.request()
    answers = [await trial.subject.post(request), await trial.subject.post(request)]
    later = replace(draft, issued_at=utc_now() + timedelta(seconds=2))  # signed afresh
    answers.append(await trial.post(later))
    return [*_all_accepted(answers), *await trial.once(draft)]


async def _retry_after_restart(trial: Trial) -> list[str]:
    """A retry after a restart of the receiver is answered 2xx, and not called back again."""
    draft = trial.draft()
    answers = [await trial.post(draft)]
    found = await trial.settled()  # so that the restart does not interrupt the callback
    await trial.subject.restart()
    answers.append(await trial.post(draft))
    return [*found, *_all_accepted(answers), *await trial.once(draft)]


async def _concurrent_copies(trial: Trial) -> list[str]:
    """Many copies at once are called back once; every answer is 2xx, 429 or 503."""
    draft = trial.draft()
    request = draft.request()
    answers = await asyncio.gather(*(trial.subject.post(request) for _ in range(_COPIES)))
    found = []
    busy = (429, 503)
    if not all(accepted(answer) or (answer and answer.status in busy) for answer in answers):
        found = [f"{_COPIES} copies at once: {described(answers)}, expected 2xx, 429 or 503"]
    if not await trial.delivered(draft):
        return [*found, "a retry after the copies was not accepted"]
    return [*found, *await trial.once(draft)]


async def _conflict(trial: Trial) -> list[str]:
    """Another body under the id of an accepted delivery is answered 409, and not called back."""
    draft = trial.draft()
    first = await trial.post(draft)
    other = replace(draft, body=draft.body.replace(b"_WORKING", b"_COMPLETED"))
    answer = await trial.post(other)
    found = _all_accepted([first])
    if answer is None or answer.status != 409:
        found.append(f"{described(answer)}, expected 409")
    return [*found, *await trial.once(draft)]


# --- crashes ------------------------------------------------------------------------------------


async def _crash_before_answer(trial: Trial) -> list[str]:
    """If the receiver dies while it takes a delivery, the retry of it is called back."""
    latency = await _latency(trial)
    drafts = [trial.agent.draft(f"{trial.task_id}-{n}") for n in range(trial.rounds)]
    for n, draft in enumerate(drafts):
        posting = asyncio.create_task(trial.post(draft))
        await asyncio.sleep(1.5 * latency * n / trial.rounds)
        await trial.subject.restart()
        await posting
        if not await trial.delivered(draft):
            return ["the retry after a restart was not accepted"]
    lost = await trial.uncalled(*drafts)
    if lost:
        return [f"{len(lost)} of {len(drafts)} retries were accepted, and never called back"]
    return []


async def _crash_after_answer(trial: Trial) -> list[str]:
    """A notification that was answered 2xx is called back, even if the receiver dies at once."""
    drafts = [trial.agent.draft(f"{trial.task_id}-{n}") for n in range(trial.rounds)]
    answers = []
    for draft in drafts:
        answers.append(await trial.post(draft))
        await trial.subject.restart()
    lost = await trial.uncalled(*drafts)
    found = _all_accepted(answers)
    if lost:
        found.append(f"{len(lost)} of {len(drafts)} notifications were never called back")
    return found


async def _latency(trial: Trial) -> float:
    """Return how long an accepted request takes, in seconds: the median of five."""
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        await trial.post(trial.draft())
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


# --- refusing -----------------------------------------------------------------------------------


async def _signature(trial: Trial) -> list[str]:
    """Only the trusted key's signature is accepted: no other key, no signature, not `alg: none`."""
    drafts = {
        "unsigned": replace(trial.draft(), signed=False),
        "signed by another key under the known name": trial.draft().forged(),
    }
    if trial.agent.schemes & _BY_KEY:
        stranger = generate_key(Algorithm.ES256)
        drafts["signed by an unknown key"] = replace(trial.draft(), key=stranger)
    if Scheme.JWT in trial.agent.schemes:
        drafts["alg none"] = replace(trial.draft(), header={"alg": "none"})
    return await trial.refused(drafts)


async def _raw_body(trial: Trial) -> list[str]:
    """The signature is checked over the raw bytes of the body, not over the JSON they encode."""
    draft = trial.draft()
    spaced = draft.body.replace(b":", b" : ").replace(b"WORKING", b"WORK\\u0049NG")
    found = await trial.refused(
        {
            "the same JSON in other bytes": replace(draft, body_sent=spaced),
            "another body": replace(
                trial.draft(), body_sent=draft.body.replace(b"WORKING", b"COMPLETED")
            ),
        }
    )
    answer = await trial.post(replace(trial.draft(), body=spaced))
    if not accepted(answer):
        found.append(f"genuine, with white space and escapes: {described(answer)}, expected 2xx")
    return found


async def _timestamp(trial: Trial) -> list[str]:
    """A signature of an hour ago, or of an hour ahead, is refused."""
    now = utc_now()
    return await trial.refused(
        {
            "signed an hour ago": replace(trial.draft(), issued_at=now - _HOUR),
            "signed an hour ahead": replace(trial.draft(), issued_at=now + _HOUR),
        }
    )


async def _audience(trial: Trial) -> list[str]:
    """A signature for another webhook, or by another issuer, is refused."""
    url = trial.agent.webhook_url
    drafts = {
        "for another host": replace(trial.draft(), audience="https://other.example.com/a2a"),
        "for another path": replace(trial.draft(), audience=f"{url.rstrip('/')}/other"),
    }
    if Scheme.JWT in trial.agent.schemes:
        drafts["by another issuer"] = replace(trial.draft(), issuer="https://other.example.com")
    return await trial.refused(drafts)


async def _token(trial: Trial) -> list[str]:
    """Only the whole notification token is accepted."""
    token = trial.agent.token
    return await trial.refused(
        {
            "no token": replace(trial.draft(), token=""),
            "another token": replace(trial.draft(), token="x" * len(token)),
            "the first half of the token": replace(trial.draft(), token=token[: len(token) // 2]),
            "all but the token's last character": replace(trial.draft(), token=token[:-1]),
            "the token and one character more": replace(trial.draft(), token=f"{token}x"),
        }
    )


async def _key_from_message(trial: Trial) -> list[str]:
    """A key that the message contains or links to is not trusted, and its link not fetched."""
    forger = generate_key(Algorithm.ES256)
    jwk = public_jwk(forger)
    posing = replace(forger, kid=trial.agent.key.kid)
    keys: JsonObject = {"keys": [jwk, public_jwk(posing)]}

    async def answers_keys(connection: VisitConnection) -> None:
        body = json.dumps(keys).encode()
        await connection.answer("200 OK", "Content-Type: application/json", body=body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        jku: JsonObject = {"jku": f"http://127.0.0.1:{listener.getsockname()[1]}/jwks.json"}
        async with sinking({"/jwks.json": answers_keys}, [listener]) as sink:
            found = await trial.refused(
                {
                    "jku": replace(trial.draft(), key=forger, header=jku),
                    "jku, under the known kid": replace(trial.draft(), key=posing, header=jku),
                    "jwk": replace(trial.draft(), key=forger, header={"jwk": jwk}),
                }
            )
            fetched = sum(map(len, sink.visits.values()))
    return [*found, f"the URL in `jku` was fetched {fetched} times"] if fetched else found


async def _silence(trial: Trial) -> list[str]:
    """A refusal does not reveal which keys and tokens are known, or why one is refused."""
    token, forged = trial.agent.token, trial.draft().forged()
    other_kid = replace(forged, key=generate_key(Algorithm.ES256))
    pairs = {
        "a known and an unknown kid": (other_kid, forged),
        "two wrong tokens": (
            replace(trial.draft(), token="x" * len(token)),
            replace(trial.draft(), token="x" * 3),
        ),
    }
    found = []
    for name, (one, other) in pairs.items():
        answers = (await trial.post(one), await trial.post(other))
        if _comparable(answers[0]) != _comparable(answers[1]):
            found.append(f"{name}: the answers differ, expected the same")
        leaked = [
            what
            for what, secret in _secrets(trial, one.body).items()
            if any(answer is not None and secret in answer.body for answer in answers)
        ]
        found += [f"{name}: the answer contains {what}" for what in leaked]
    return [*found, *await trial.settled()]  # one that answers everything alike proves nothing


def _secrets(trial: Trial, body: bytes) -> dict[str, bytes]:
    token = trial.agent.token.encode()
    return {
        "the token": token[: max(8, len(token) // 2)],
        "the kid of the trusted key": trial.agent.key.kid.encode(),
        "the expected hash of the body": body_sha256(body).encode(),
        "a traceback": b"Traceback",
    }


def _comparable(answer: Answer | None) -> tuple[int, bytes]:
    """Return an answer without words that contain digits, such as request ids and times."""
    if answer is None:
        return 0, b""
    return answer.status, _NAMES_WITH_DIGITS.sub(b"#", answer.body)


def _all_accepted(answers: Collection[Answer | None]) -> list[str]:
    return [] if all(map(accepted, answers)) else [f"{described(answers)}, expected 2xx"]


# --- difficult bodies: broken, too large or too slow ---------------------------------------------
#
# They are genuinely signed, so that a receiver cannot refuse them by the head alone.


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


async def _oversized_body(trial: Trial) -> list[str]:
    """A body of 32 MiB is refused with a 4xx, or by closing the connection."""
    at, draft = trial.at, trial.draft()
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


async def _slow_body(trial: Trial) -> list[str]:
    """A body that arrives very slowly has a deadline, and does not delay other requests."""
    dripping = asyncio.create_task(_drip(trial))
    await asyncio.sleep(_DRIP_SECONDS)
    answer = await trial.post(trial.draft())
    found = []
    if not accepted(answer):
        found.append(f"a genuine notification at the same time: {described(answer)}, expected 2xx")
    try:
        if not await dripping:
            seconds = trial.patience.total_seconds()
            found.append(
                f"a body of one byte every {_DRIP_SECONDS:g} s was still read after {seconds:g} s,"
                " expected an answer or the end of the connection (--patience)"
            )
    except OSError as exc:
        found.append(f"no connection for a slow body: {exc.strerror or exc}")
    return found


async def _drip(trial: Trial) -> bool:
    """Send a body byte by byte; return whether it was answered or cut off within that time.

    Raises:
        OSError: There is no connection.
    """
    request, parsed = trial.draft().request(), Url.parse(trial.at.url)
    roots = trial.at.connections.ca_file
    tls = tls_context(ca_file=roots) if parsed.scheme == "https" else None
    reader, writer = await asyncio.open_connection(parsed.host.strip("[]"), parsed.port, ssl=tls)
    lines = [f"POST {parsed.target} HTTP/1.1", f"Host: {parsed.authority}"]
    lines += [f"{name}: {value}" for name, value in request.headers]
    lines += [f"Content-Length: {len(request.body) + 100_000}", "", ""]
    answered = asyncio.create_task(reader.read(1))
    loop = asyncio.get_running_loop()
    until = loop.time() + trial.patience.total_seconds()
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


# --- the list ------------------------------------------------------------------------------------


CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "genuine": Check(run=_genuine, over_http="A genuine notification is accepted."),
        "retry": Check(run=_retry, over_http=""),
        "retry_after_restart": Check(run=_retry_after_restart, over_http="", restarts=True),
        "concurrent_copies": Check(run=_concurrent_copies, over_http=""),
        "conflict": Check(
            run=_conflict,
            over_http="Another body under the id of an accepted delivery is answered 409.",
        ),
        "crash_before_answer": Check(run=_crash_before_answer, over_http="", restarts=True),
        "crash_after_answer": Check(run=_crash_after_answer, over_http="", restarts=True),
        "signature": Check(run=_signature),
        "raw_body": Check(run=_raw_body),
        "timestamp": Check(run=_timestamp),
        "audience": Check(run=_audience, schemes=_BY_KEY),
        "token": Check(run=_token),
        "key_from_message": Check(run=_key_from_message, schemes=frozenset({Scheme.JWT})),
        "silence": Check(run=_silence),
    }
)

BODY_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "malformed_json": Check(run=_malformed_json),
        "oversized_body": Check(run=_oversized_body),
        "slow_body": Check(run=_slow_body, directly=True),
    }
)
"""Those of bodies, for a receiver at a URL."""
