"""The promises of a receiver, a check each (wire profile §4); each says what it found."""

from __future__ import annotations

import asyncio
import contextlib
import re
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType

from aiohttp import web

from pushkit.bounded_json import JsonObject
from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, generate_key, public_jwk
from pushkit.signing.notification_jwt import body_sha256
from pushkit.signing.scheme import Scheme
from receiver.testing.agent import SigningAgent
from receiver.testing.subject import Answer, ReceiverUnderTest
from receiver.testing.trial import Trial, accepted, told

_COPIES = 100
_BY_KEY = frozenset({Scheme.JWT, Scheme.HTTP_MESSAGE_SIGNATURES})
_SAID_BY = {"audience": _BY_KEY, "key_from_message": frozenset({Scheme.JWT})}
_HOUR = timedelta(hours=1)
_NAMES_WITH_DIGITS = re.compile(rb"[\w-]*\d[\w-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A promise that was broken."""

    check: str  # the name of the check, one of `CHECKS`
    promise: str  # what should hold
    detail: str  # what was seen instead; never a token or a signature


async def check_receiver(
    subject: ReceiverUnderTest,
    agent: SigningAgent,
    *,
    only: Collection[str] = (),
    deadline: timedelta = timedelta(seconds=10),
    rounds: int = 20,
) -> list[Finding]:
    """Hold a receiver against its promises; return those that are broken, none if it is sound.

        assert not await check_receiver(subject, agent)

    A run leaves notifications behind, and may be repeated on the same state.

    Args:
        subject: The receiver.
        agent: Whom it trusts.
        only: Names of `CHECKS`; all of them by default.
        deadline: How long a callback may take.
        rounds: How many crashes each of the two checks that crash it tries: at other moments each.

    Raises:
        ConfigError: There is no check of that name.
    """
    unknown = set(only) - set(CHECKS)
    if unknown:
        raise ConfigError(f"only: found {sorted(unknown)}, expected of {', '.join(CHECKS)}")
    findings: list[Finding] = []
    for name, check in CHECKS.items():
        if (only and name not in only) or unseen_by(agent, name):
            continue
        details = await check(Trial(subject, agent, deadline, rounds))
        promise = (check.__doc__ or "").strip()
        findings += [Finding(check=name, promise=promise, detail=detail) for detail in details]
        if name == "genuine" and details:
            break  # whoever accepts nothing refuses everything
    return findings


def unseen_by(agent: SigningAgent, name: str) -> str | None:
    """Say why a check says nothing of the signatures that an agent makes; None if it does."""
    if agent.schemes & _SAID_BY.get(name, agent.schemes):
        return None
    return f"{' and '.join(sorted(agent.schemes))} says nothing of this"


_Check = Callable[[Trial], Awaitable[list[str]]]


# --- accepting, once ----------------------------------------------------------------------------


async def _genuine(trial: Trial) -> list[str]:
    """A genuine notification is accepted, and called back once."""
    draft = trial.draft()
    answer = await trial.post(draft)
    if not accepted(answer):
        return [f"{told(answer)}, expected 2xx"]
    if await trial.uncalled(draft):
        return ["it was never called back"]
    return await trial.once(draft)


async def _retry(trial: Trial) -> list[str]:
    """A retry of an accepted delivery is answered 2xx, and calls nobody."""
    draft = trial.draft()
    request = draft.request()
    answers = [await trial.subject.post(request), await trial.subject.post(request)]
    later = replace(draft, issued_at=utc_now() + timedelta(seconds=2))  # signed afresh
    answers.append(await trial.post(later))
    return [*_all_accepted(answers), *await trial.once(draft)]


async def _retry_after_restart(trial: Trial) -> list[str]:
    """A retry after a restart of the receiver is answered 2xx, and calls nobody."""
    draft = trial.draft()
    answers = [await trial.post(draft)]
    found = await trial.settled()  # called back, so that the restart does not fall into it
    await trial.subject.restart()
    answers.append(await trial.post(draft))
    return [*found, *_all_accepted(answers), *await trial.once(draft)]


async def _concurrent_copies(trial: Trial) -> list[str]:
    """Of many copies at once one is called back; every answer is 2xx, 429 or 503."""
    draft = trial.draft()
    request = draft.request()
    answers = await asyncio.gather(*(trial.subject.post(request) for _ in range(_COPIES)))
    found = []
    busy = (429, 503)
    if not all(accepted(answer) or (answer and answer.status in busy) for answer in answers):
        found = [f"{_COPIES} copies at once: {told(answers)}, expected 2xx, 429 or 503"]
    if not await trial.delivered(draft):
        return [*found, "a retry after them was not accepted"]
    return [*found, *await trial.once(draft)]


async def _conflict(trial: Trial) -> list[str]:
    """The id of an accepted delivery with another body is answered 409, and calls nobody."""
    draft = trial.draft()
    first = await trial.post(draft)
    other = replace(draft, body=draft.body.replace(b"_WORKING", b"_COMPLETED"))
    answer = await trial.post(other)
    found = _all_accepted([first])
    if answer is None or answer.status != 409:
        found.append(f"{told(answer)}, expected 409")
    return [*found, *await trial.once(draft)]


# --- crashes ------------------------------------------------------------------------------------


async def _crash_before_answer(trial: Trial) -> list[str]:
    """A delivery in whose middle the receiver dies is called back after its retry."""
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
        return [f"{len(lost)} of {len(drafts)} were accepted as retries, and never called back"]
    return []


async def _crash_after_answer(trial: Trial) -> list[str]:
    """What was answered 2xx is called back, even if the receiver dies at once."""
    drafts = [trial.agent.draft(f"{trial.task_id}-{n}") for n in range(trial.rounds)]
    answers = []
    for draft in drafts:
        answers.append(await trial.post(draft))
        await trial.subject.restart()
    lost = await trial.uncalled(*drafts)
    found = _all_accepted(answers)
    return [*found, f"{len(lost)} of {len(drafts)} were never called back"] if lost else found


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
    """Only the trusted key signs: no other one, none at all, no algorithm `none`."""
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
    """The signature covers the raw bytes, not what they mean: no more and no less."""
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
        found.append(f"genuine, with white space and escapes: {told(answer)}, expected 2xx")
    return found


async def _timestamp(trial: Trial) -> list[str]:
    """What was signed an hour ago, or for an hour from now, is refused."""
    now = utc_now()
    return await trial.refused(
        {
            "signed an hour ago": replace(trial.draft(), issued_at=now - _HOUR),
            "signed an hour ahead": replace(trial.draft(), issued_at=now + _HOUR),
        }
    )


async def _audience(trial: Trial) -> list[str]:
    """What was signed for another webhook, or by another issuer, is refused."""
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
    """A key that the message itself names or brings is not trusted, and no URL in it fetched."""
    forger = generate_key(Algorithm.ES256)
    jwk = public_jwk(forger)
    posing = replace(forger, kid=trial.agent.key.kid)
    fetched: list[str] = []
    async with _serving({"keys": [jwk, public_jwk(posing)]}, fetched) as url:
        jku = {"jku": url}
        found = await trial.refused(
            {
                "jku": replace(trial.draft(), key=forger, header=jku),
                "jku, under the known kid": replace(trial.draft(), key=posing, header=jku),
                "jwk": replace(trial.draft(), key=forger, header={"jwk": jwk}),
            }
        )
    if fetched:
        found.append(f"the URL in `jku` was fetched {len(fetched)} times")
    return found


@contextlib.asynccontextmanager
async def _serving(jwks: JsonObject, fetched: list[str]) -> AsyncIterator[str]:
    """Serve a forger's JWK Set on loopback; yield its URL, and note by whom it is fetched."""

    async def answer(request: web.BaseRequest) -> web.Response:
        fetched.append(str(request.remote))
        return web.json_response(jwks)

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/jwks.json"
    finally:
        await runner.cleanup()


async def _silence(trial: Trial) -> list[str]:
    """A refusal tells nothing about keys and tokens: not which, not why."""
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
        if _said(answers[0]) != _said(answers[1]):
            found.append(f"{name} can be told apart by the answers")
        told_secret = [
            what
            for what, secret in _secrets(trial, one.body).items()
            if any(answer is not None and secret in answer.body for answer in answers)
        ]
        found += [f"{name}: the answer contains {what}" for what in told_secret]
    return found


def _secrets(trial: Trial, body: bytes) -> dict[str, bytes]:
    token = trial.agent.token.encode()
    return {
        "the token": token[: max(8, len(token) // 2)],
        "the kid of the trusted key": trial.agent.key.kid.encode(),
        "the expected hash of the body": body_sha256(body).encode(),
        "a traceback": b"Traceback",
    }


def _said(answer: Answer | None) -> tuple[int, bytes]:
    """Return an answer without names that have digits: ids of requests, moments."""
    if answer is None:
        return 0, b""
    return answer.status, _NAMES_WITH_DIGITS.sub(b"#", answer.body)


def _all_accepted(answers: Collection[Answer | None]) -> list[str]:
    return [] if all(map(accepted, answers)) else [f"{told(answers)}, expected 2xx"]


CHECKS: Mapping[str, _Check] = MappingProxyType(
    {
        "genuine": _genuine,
        "retry": _retry,
        "retry_after_restart": _retry_after_restart,
        "concurrent_copies": _concurrent_copies,
        "conflict": _conflict,
        "crash_before_answer": _crash_before_answer,
        "crash_after_answer": _crash_after_answer,
        "signature": _signature,
        "raw_body": _raw_body,
        "timestamp": _timestamp,
        "audience": _audience,
        "token": _token,
        "key_from_message": _key_from_message,
        "silence": _silence,
    }
)
