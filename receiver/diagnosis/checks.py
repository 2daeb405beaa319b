"""The promises of a receiver (wire profile §4): a check for each, which returns what it found.

The docstring of a check is the promise, as reports print it.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import statistics
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from pushkit.bounded_json import JsonObject
from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, generate_key, public_jwk
from pushkit.signing.notification_jwt import body_sha256
from pushkit.signing.scheme import Scheme
from receiver.diagnosis.agent import SigningAgent
from receiver.diagnosis.report import CheckOutcome
from receiver.diagnosis.sink import VisitConnection, sinking
from receiver.diagnosis.subject import Answer, ReceiverUnderTest
from receiver.diagnosis.trial import Check, Trial, accepted, described, examine

_COPIES = 100
_BY_KEY = frozenset({Scheme.JWT, Scheme.HTTP_MESSAGE_SIGNATURES})
_HOUR = timedelta(hours=1)
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


# --- in tests ------------------------------------------------------------------------------------


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
    """Check a receiver; return the promises that it breaks.

        assert not await check_receiver(subject, agent)

    A run leaves notifications behind, and may be repeated on the same state. Checks that do not
    apply to the agent's schemes are left out. If a genuine notification is not accepted, the other
    checks are not run, and that finding names them.

    Args:
        subject: The receiver.
        agent: The agent that it trusts.
        only: Names of `CHECKS`; all of them by default.
        deadline: How long a callback may take.
        rounds: How often each of the two checks of crashes tries, at different moments.

    Raises:
        ConfigError: There is no check of that name, or it does not apply to the agent's schemes.
    """
    for name in only:
        if name in CHECKS and (why := CHECKS[name].unseen(subject, agent)):
            raise ConfigError(f"only: {name} {why}")
    results = examine(CHECKS, lambda: Trial(subject, agent, deadline, rounds), only=only)
    found = [result async for result in results]
    findings = [
        Finding(check=result.check, promise=result.promise, detail=detail)
        for result in found
        if result.outcome is CheckOutcome.FAILED
        for detail in result.details
    ]
    if left := [result.check for result in found if result.outcome is CheckOutcome.NOT_RUN]:
        findings[-1] = replace(
            findings[-1], detail=f"{findings[-1].detail}; not run: {', '.join(left)}"
        )
    return findings
