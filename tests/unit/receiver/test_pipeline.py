"""One thing changed in an accepted request, and what is answered.

The others are in `docs/vectors`, which `tests/contract/test_vectors.py` hands to a receiver.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import cache, reduce
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.bounded_json import JsonValue
from pushkit.errors import ConfigError, InboundError, TokenError
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key
from pushkit.signing.jose import b64url_decode
from receiver import (
    Limits,
    RateLimit,
    SenderProfile,
    TaskPolicy,
    TaskState,
    load_trust,
    verify_notification,
)
from receiver.request import Request
from receiver.testing import Draft
from tests.clock import START
from tests.eventually import DEADLINE
from tests.long_runs import share
from tests.unit.receiver.drafts import (
    BASE,
    PATH,
    adding,
    claiming,
    sending,
    with_jwt,
    with_payload,
)

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

Change = Callable[[Draft], Draft]

URL = f"{BASE}{PATH}"
OTHER_TOKEN = "another-token-that-is-private"
TOKENS = ("X-A2A-Token", "X-A2A-Notification-Token")


@cache
def rsa_key() -> SigningKey:
    return generate_key(Algorithm.RS256)


def claims(**claims: object) -> Change:
    return lambda draft: claiming(draft, **claims)  # type: ignore[arg-type]  # wrong types on purpose


def changed(**members: Any) -> Change:
    return lambda draft: replace(draft, **members)


def header(**members: JsonValue) -> Change:
    return changed(header=members)


def field(name: str, *values: str) -> Change:
    return lambda draft: sending(draft, name, *values)


def jwt(change: Callable[[str], str]) -> Change:
    """Send what becomes of the JWT."""
    return lambda draft: with_jwt(draft, change(draft.jwt()))


def raw_claim(name: str, text: str) -> Change:
    """Write a claim as this text, which no JSON writer would produce."""

    def change(draft: Draft) -> Draft:
        payload = b64url_decode(claiming(draft, **{name: "@"}).jwt().split(".")[1], "payload")
        return with_payload(draft, payload.replace(b'"@"', text.encode()))

    return change


def at(seconds: float = 0, **claims: float) -> Change:
    """Sign so many seconds from now, with claims that are so many seconds from now."""

    def change(draft: Draft) -> Draft:
        now = draft.issued_at or START
        times = {name: int(now.timestamp() + after) for name, after in claims.items()}
        return claiming(replace(draft, issued_at=now + timedelta(seconds=seconds)), **times)

    return change


def body(content: bytes) -> Change:
    """Send another body, signed as it is."""
    return changed(body=content)


def all_of(*changes: Change) -> Change:
    return lambda draft: reduce(lambda draft, change: change(draft), changes, draft)


def tampered_signature(draft: Draft) -> Draft:
    signing_input, _, signature = draft.jwt().rpartition(".")
    first = "A" if signature[0] != "A" else "B"
    return with_jwt(draft, f"{signing_input}.{first}{signature[1:]}")


ACCEPTED = [
    pytest.param(
        changed(authorization="Bearer static-credentials"), id="authorization-taken-by-credentials"
    ),
    pytest.param(field("X-A2A-Token"), id="token-as-the-SDKs-spell-it"),
    pytest.param(
        lambda draft: sending(replace(draft, token=""), "A2A-Notification-Token", draft.token),
        id="token-as-go-spells-it",
    ),
    pytest.param(field("Content-Type", "application/json; charset=utf-8"), id="json-with-charset"),
    pytest.param(field("Content-Type", "Application/JSON"), id="media-type-in-any-case"),
    pytest.param(field("Content-Type"), id="no-content-type"),
    pytest.param(claims(seq=2**53 - 1), id="seq-as-large-as-json-goes"),
    pytest.param(raw_claim("iat", "1767268800.5"), id="iat-with-a-fraction"),  # RFC 7519 §2
    pytest.param(raw_claim("iat", "1.7672688e9"), id="iat-with-an-exponent"),
    pytest.param(header(typ=None), id="no-typ"),
    pytest.param(header(typ="jwt"), id="typ-in-lower-case"),
]


@pytest.mark.parametrize("change", ACCEPTED)
async def test_accepts(world: World, change: Change) -> None:
    draft = change(world.draft())

    verdict = await world.receive(draft)

    assert (verdict.status, verdict.code) == (202, "accepted")
    assert world.rows()["pushkit_inbox"] == 1


@pytest.mark.parametrize("change", ACCEPTED)
@pytest.mark.slow
async def test_accepts_over_http(world_behind: World, change: Change) -> None:
    world = world_behind
    draft = change(world.draft())

    answer = await world.post(draft)

    assert (answer.status, answer.text) == (202, "")


OF_A_WRONG_KIND: dict[str, list[object]] = {
    "nbf": ["soon"],
    "iat": [None, "1767268800", True, -1, 2**60, [1]],
    "exp": ["soon", False, -1, 253402300800],
    "seq": [0, -1, 1.5, "1", True, 2**63],
    "aud": [1, [1], {"a": 1}, [None], [URL, 5]],
    "jti": ["", 1, []],
    "taskId": ["", 1, ["task-1"]],
    "configId": ["", 1, []],
}

# What is changed, by the status and the code of the refusal.
REFUSALS: dict[tuple[int, str], dict[str, Change]] = {
    (403, "unknown_sender"): {
        "iss-a-list": claims(iss=["https://agent.example.com"]),
        "iss-a-number": claims(iss=17),
    },
    (401, "invalid_signature"): {
        "an-empty-bearer-token": jwt(lambda _: ""),
        "an-empty-signature-header": all_of(changed(signed=False), field("X-A2A-Signature", "")),
        "a-jwe": all_of(changed(signed=False), field("X-A2A-Signature", "a.b.c.d.e")),
        "an-empty-header-segment": jwt(lambda genuine: "." + genuine.partition(".")[2]),
        "a-long-jwt": jwt(lambda _: "e30." * 1500),
        "alg-none-with-a-signature": all_of(
            header(alg="none"), jwt(lambda unsigned: unsigned + "AA")
        ),
        "alg-in-lower-case": header(alg="es256"),
        "no-alg": header(alg=None),
        "alg-a-list": header(alg=["ES256"]),
        "an-empty-crit": header(crit=[]),
        "b64-false-without-crit": header(b64=False),
        "typ-a-number": header(typ=5),
        "kid-a-number": header(kid=7),
        "a-key-of-another-type": lambda draft: replace(
            draft, key=replace(rsa_key(), kid=draft.key.kid)
        ),
        "request_body_sha256-a-number": claims(request_body_sha256=5),
        "claims-not-utf8": lambda draft: with_payload(draft, b"\xff{}"),
        "deep-claims": lambda draft: with_payload(draft, b"[" * 5000),
        **{
            f"{name}-{value!r}": claims(**{name: value})
            for name, values in OF_A_WRONG_KIND.items()
            for value in values
        },
        "iat-in-arabic-digits": claims(iat="١٧٦٧٢٦٨٨٠٠"),
        "iat-no-json-number": raw_claim("iat", "١٧٦٧"),
        "iat-infinite": raw_claim("iat", "1e400"),
        "iat-a-huge-float": raw_claim("iat", "1e308"),
        "exp-a-huge-float": raw_claim("exp", "1e308"),
        "iat-not-a-number": raw_claim("iat", "NaN"),
        "iat-of-4000-digits": raw_claim("iat", "1" * 4000),
        "exp-of-4000-digits": raw_claim("exp", "1" * 4000),
        "seq-of-4000-digits": raw_claim("seq", "1" * 4000),
        "seq-of-5000-digits": raw_claim("seq", "1" * 5000),
    },
    (401, "stale_timestamp"): {
        "expired-beyond-the-leeway": at(exp=-61),
        "not-valid-before-in-301-s": at(nbf=301),
    },
    (401, "wrong_audience"): {
        "aud-with-another-query": changed(url=f"{PATH}?x=2", audience=f"{URL}?x=1"),
    },
    (401, "invalid_token"): {
        "an-empty-token": all_of(*(field(name, "") for name in TOKENS)),
        "one-empty": field("A2A-Notification-Token", ""),
        "one-spelling-twice": field(
            "X-A2A-Token", "the-notification-token-is-private", OTHER_TOKEN
        ),
    },
    (400, "malformed_body"): {
        "empty": body(b""),
        "not-utf8": body(b"\xff\xfe{}"),
        "surrogate": body(b'{"task":{"id":"\xed\xa0\x80"}}'),
        "half-a-surrogate": body(rb'{"task":{"id":"\ud800"}}'),
        "arrays-100000-deep": body(b"[" * 100_000),
        "closed-100000-deep": body(b"[" * 100_000 + b"]" * 100_000),
        "objects-100000-deep": body(b'{"a":' * 100_000),
        "66-deep": body(b"[" * 66 + b"]" * 66),
        "a-number-of-a-million-digits": body(b"1" * 10**6),
        "a-number-beyond-a-double": body(b'{"task":1e999}'),
        "Infinity": body(b'{"task":-Infinity}'),
    },
    (422, "unrecognised_body"): {
        "a-string": body(b'"text"'),
        "an-empty-object": body(b"{}"),
        "an-empty-event": body(b'{"statusUpdate":{}}'),
        "an-empty-task-id": body(b'{"statusUpdate":{"taskId":"","status":{}}}'),
    },
    (400, "malformed_request"): {
        "webhook-id-twice": lambda draft: adding(draft, "webhook-id", draft.delivery_id),
        "signature-header-twice": field("X-A2A-Signature", "a.b.c", "a.b.c"),
        "api-key-twice": field("X-Api-Key", "a", "a"),
    },
}

REFUSED = [
    pytest.param(change, status, code, id=name)
    for (status, code), changes in REFUSALS.items()
    for name, change in changes.items()
]
EDGES = ("aiohttp", "asgi")


def assert_tells_nothing(text: str, draft: Draft) -> None:
    """Check that an answer contains no secret, and no part of the signature."""
    private = ["-is-private", "static-credentials", *filter(None, draft.jwt().split(".")[1:])]
    assert not [secret for secret in private if len(secret) > 8 and secret in text]


@pytest.mark.parametrize(("change", "status", "code"), REFUSED)
async def test_refuses(
    world: World, caplog: pytest.LogCaptureFixture, change: Change, status: int, code: str
) -> None:
    caplog.set_level(logging.DEBUG)
    draft = change(world.draft())

    verdict = await world.receive(draft)

    assert (verdict.status, verdict.code) == (status, code)
    assert not any(world.rows().values())
    assert f"refused {status} {code}" in caplog.text
    assert_tells_nothing(caplog.text, draft)


@pytest.mark.parametrize(
    ("world_behind", "change", "status", "code"),
    [
        pytest.param(edge, *case.values, id=f"{edge}-{case.id}")
        for number, case in enumerate(REFUSED)
        for edge in share(EDGES, number, len(EDGES))
    ],
    indirect=["world_behind"],
)
@pytest.mark.slow
async def test_refuses_over_http(
    world_behind: World, caplog: pytest.LogCaptureFixture, change: Change, status: int, code: str
) -> None:
    caplog.set_level(logging.DEBUG)
    world = world_behind
    draft = change(world.draft())

    answer = await world.post(draft)

    assert (answer.status, answer.content_type) == (status, "application/problem+json")
    assert answer.code == code
    assert not any(world.rows().values())
    assert_tells_nothing(caplog.text + answer.text + str(answer.headers), draft)


# --- the same as a pure function ----------------------------------------------------------------


@pytest.mark.parametrize("change", ACCEPTED)
def test_the_pure_function_accepts(world: World, change: Change) -> None:
    draft = change(world.draft())
    request = draft.request()

    verified = verify_notification(request, load_trust(BASE, [world.sender]), now=world.clock.now)

    assert (verified.sender, verified.delivery_id) == ("agent", draft.delivery_id)
    assert (verified.task_id, verified.update.task_id) == ("task-1", "task-1")
    assert verified.body_sha256 == hashlib.sha256(request.body).hexdigest()


@pytest.mark.parametrize(("change", "status", "code"), REFUSED)
def test_the_pure_function_refuses(world: World, change: Change, status: int, code: str) -> None:
    draft = change(world.draft())

    with pytest.raises(InboundError) as refusal:
        verify_notification(draft.request(), load_trust(BASE, [world.sender]), now=world.clock.now)

    assert (refusal.value.status, refusal.value.code) == (status, code)
    assert_tells_nothing(str(refusal.value), draft)


def test_the_pure_function_takes_tokens_that_the_caller_handed_out(world: World) -> None:
    trust = load_trust(BASE, [world.sender])
    request = world.draft(token=OTHER_TOKEN).request()

    verified = verify_notification(request, trust, now=world.clock.now, tokens=[OTHER_TOKEN])

    assert verified.sender == "agent"
    with pytest.raises(TokenError):
        verify_notification(request, trust, now=world.clock.now, tokens=["a third one"])


def test_the_pure_function_knows_its_paths_under_a_prefix(world: World) -> None:
    draft = replace(world.draft(), url="/hooks/a2a/push", audience=f"{BASE}/hooks/a2a/push")
    trust = load_trust(f"{BASE}/hooks", [world.sender])

    verified = verify_notification(draft.request(), trust, now=world.clock.now, path="/a2a/push")

    assert verified.sender == "agent"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"body": "{}"}, "request: body: found str, expected bytes"),
        ({"headers": {"Content-Type": "x"}}, "request: headers: found dict, expected Headers"),
        ({"target": None}, "request: target: found NoneType, expected str"),
    ],
)
async def test_a_request_with_a_part_of_a_wrong_type_is_the_callers_mistake(
    world: World, change: dict[str, Any], says: str
) -> None:
    request = replace(world.draft().request(), **change)
    trust = load_trust(BASE, [world.sender])

    with pytest.raises(ConfigError, match=f"^{says}$"):
        verify_notification(request, trust, now=world.clock.now)
    with pytest.raises(ConfigError, match=f"^{says}$"):
        await world.receiver.receive(request)


def test_the_pure_function_wants_a_time_with_a_zone(world: World) -> None:
    now = world.clock.now.replace(tzinfo=None)
    with pytest.raises(ConfigError, match="now: found a time without a zone"):
        verify_notification(world.draft().request(), load_trust(BASE, [world.sender]), now=now)


# --- several senders ----------------------------------------------------------------------------


async def test_a_key_of_another_sender_does_not_speak_for_this_one(
    make_world: WorldFactory,
) -> None:
    world = make_world()
    other = generate_key(Algorithm.ES256)
    world.add_sender("other", "https://other.example.com", other)

    verdict = await world.receive(replace(world.draft(), key=other))

    assert (verdict.status, verdict.code) == (401, "invalid_signature")


async def test_two_senders_at_one_path_are_distinguished_by_issuer(
    make_world: WorldFactory,
) -> None:
    world = make_world()
    other = generate_key(Algorithm.ES256)
    world.add_sender("other", "https://other.example.com", other)
    draft = replace(world.draft(), key=other, issuer="https://other.example.com")

    verdict = await world.receive(draft)
    found = await world.receiver.wait(
        "task-1", until={TaskState.WORKING}, timeout=DEADLINE, sender="other"
    )

    assert verdict.status == 202
    assert found.sender == "other"


async def test_the_id_of_one_sender_is_free_for_another(make_world: WorldFactory) -> None:
    world = make_world()
    other = generate_key(Algorithm.ES256)
    world.add_sender("other", "https://other.example.com", other)
    first = world.draft()
    second = replace(first, key=other, issuer="https://other.example.com")

    verdicts = [await world.receive(draft) for draft in (first, second)]

    assert [verdict.status for verdict in verdicts] == [202, 202]


# --- profiles and settings ----------------------------------------------------------------------


async def test_an_algorithm_that_the_sender_may_not_use_is_refused(
    make_world: WorldFactory,
) -> None:
    world = make_world(algorithms=frozenset({Algorithm.EDDSA}))

    verdict = await world.receive(world.draft())

    assert (verdict.status, verdict.code) == (401, "invalid_signature")


async def test_a_sender_without_ids_is_deduplicated_by_what_it_signed(
    make_world: WorldFactory,
) -> None:
    world = make_world(profile=SenderProfile.TRPC_A2A_GO, issuer=None)
    draft = claiming(world.draft(), iss=None, aud=None, jti=None, exp=None)

    verdicts = [await world.receive(draft) for _ in range(2)]

    assert [verdict.code for verdict in verdicts] == ["accepted", "duplicate"]


CREDENTIALS = ("Bearer static-credentials", "the-api-key-is-private")


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("Authorization", "Bearer static-credentials", "accepted"),
        ("Authorization", "bearer static-credentials", "accepted"),
        ("X-Api-Key", "the-api-key-is-private", "accepted"),
        ("Authorization", "Bearer other", "invalid_token"),
        ("Authorization", "Basic static-credentials", "invalid_token"),
        ("Authorization", "Bearer STATIC-credentials", "invalid_token"),
        ("Authorization", "Bearer", "invalid_token"),
        ("Authorization", "", "invalid_token"),
        ("X-Api-Key", "other", "invalid_token"),
        ("X-Api-Key", "", "invalid_token"),
        ("X-Other", "", "invalid_token"),
    ],
)
async def test_static_credentials_that_were_handed_out_are_accepted_and_others_refused(
    make_world: WorldFactory, name: str, value: str, code: str
) -> None:
    world = make_world(credentials=CREDENTIALS)
    draft = replace(world.draft(), authorization="-")  # so that the JWT leaves it alone
    draft = sending(sending(draft, "Authorization"), name, value)

    assert (await world.receive(draft)).code == code


async def test_several_static_tokens_are_valid_during_a_change(make_world: WorldFactory) -> None:
    world = make_world(tokens=("old", "new"))

    verdicts = [
        await world.receive(world.draft(number, token=token))
        for number, token in enumerate(("old", "new"), start=1)
    ]

    assert [verdict.status for verdict in verdicts] == [202, 202]


class Read(list[str]):
    """A list that counts how often it is walked."""

    times = 0

    def __iter__(self) -> Iterator[str]:
        self.times += 1
        return super().__iter__()


async def test_static_secrets_are_hashed_once_and_not_per_request(make_world: WorldFactory) -> None:
    tokens, credentials = (
        Read(["other", "the-notification-token-is-private"]),
        Read(["Bearer other", "Bearer abc"]),
    )
    world = make_world(tokens=tokens, credentials=credentials)
    await world.start()
    at_load = (tokens.times, credentials.times)
    for number in range(1, 4):
        draft = replace(world.draft(number), authorization="Bearer abc")
        assert (await world.receive(draft)).status == 202
    assert (tokens.times, credentials.times) == at_load


async def test_a_sender_over_its_rate_gets_retry_after(make_world: WorldFactory) -> None:
    rate = RateLimit(per_second=0.5, burst=1)
    world = make_world({"limits": Limits(sender_rate=rate)})

    first = await world.receive(world.draft(1))
    second = await world.receive(world.draft(2))
    world.clock.advance(2)
    third = await world.receive(world.draft(2))

    assert (first.status, third.status) == (202, 202)
    assert (second.status, second.code) == (429, "rate_limited")
    assert ("Retry-After", "2") in second.headers


async def test_a_stranger_cannot_use_up_the_rate_of_a_sender(make_world: WorldFactory) -> None:
    rate = RateLimit(per_second=0.5, burst=1)
    world = make_world({"limits": Limits(sender_rate=rate)})

    await world.receive(tampered_signature(world.draft()))
    verdict = await world.receive(world.draft())

    assert verdict.status == 202


async def test_a_storage_that_fails_is_a_503_and_nothing_is_kept(world: World) -> None:
    await world.start()
    world.execute("ALTER TABLE pushkit_sequences RENAME TO elsewhere")
    draft = world.draft()

    refused = await world.receive(draft)
    world.execute("ALTER TABLE elsewhere RENAME TO pushkit_sequences")
    accepted = await world.receive(draft)

    assert (refused.status, refused.code) == (503, "storage")
    assert ("Retry-After", "1") in refused.headers
    assert accepted.status == 202


async def test_text_of_a_sender_cannot_forge_a_log_line(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    task_id = "task-1\nrefused 401 \x1b[31m" + "x" * 400
    draft = sending(world.draft(task_id=task_id), "webhook-id")
    draft = claiming(draft, taskId=None, jti="id\nforged")

    verdict = await world.receive(draft)

    messages = [record.getMessage() for record in caplog.records if record.name == "receiver"]
    assert verdict.status == 202
    assert not [text for text in messages if "\n" in text or "\x1b" in text or len(text) > 1000]


async def test_a_task_policy_of_any_still_wants_the_token(make_world: WorldFactory) -> None:
    world = make_world(tasks=TaskPolicy.ANY, tokens=())

    verdict = await world.receive(world.draft())

    assert (verdict.status, verdict.code) == (401, "invalid_token")


async def test_a_token_that_is_optional_is_refused_when_it_is_wrong(
    make_world: WorldFactory,
) -> None:
    world = make_world(token_required=False, tokens=(), tasks=TaskPolicy.ANY)

    verdict = await world.receive(world.draft(token="guessed"))

    assert (verdict.status, verdict.code) == (401, "invalid_token")


@pytest.mark.parametrize(
    "task_id",
    [
        pytest.param("t" * 513, id="long"),
        pytest.param("\u00fc" * 257, id="long-in-bytes"),
        pytest.param("task\0", id="nul"),
    ],
)
async def test_an_id_that_no_index_takes_is_refused(world: World, task_id: str) -> None:
    verdict = await world.receive(of_task(world, task_id))

    assert (verdict.status, verdict.code) == (400, "malformed_request")
    assert not any(world.rows().values())


async def test_a_jwt_that_is_valid_from_its_issue_is_accepted_from_a_fast_clock(
    world: World,
) -> None:
    draft = at(300, exp=1200, nbf=300)(world.draft())
    assert (await world.receive(draft)).status == 202


async def test_the_longest_id_is_accepted(world: World) -> None:
    assert (await world.receive(of_task(world, "t" * 512))).status == 202


def of_task(world: World, task_id: str) -> Draft:
    """Return a request of this task whose own id is a short one."""
    draft, written = world.draft(), json.dumps(task_id).encode()
    return replace(draft, task_id=task_id, body=draft.body.replace(b'"task-1"', written))


async def test_the_log_names_the_refused_task_after_a_valid_signature(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.sender = replace(world.sender, tasks=TaskPolicy.REGISTERED)
    stranger = world.draft(task_id="task-9")
    assert (await world.receive(stranger)).status == 404
    [record] = caplog.records
    assert "sender=agent task=task-9 id=delivery-task-9-1: " in record.getMessage()
    assert (record.sender, record.task) == ("agent", "task-9")  # type: ignore[attr-defined]


async def test_claims_of_an_unproven_sender_are_not_logged_as_known(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    forged = replace(world.draft(task_id="task-9"), body_sent=b"{}")
    assert (await world.receive(forged)).status == 401
    [record] = caplog.records
    assert "task-9" not in record.getMessage()


@pytest.mark.parametrize("has_body", [True, False], ids=["with-its-body", "before-its-body"])
async def test_the_traceback_of_a_fault_shows_nothing_of_a_notification(
    world: World, caplog: pytest.LogCaptureFixture, has_body: bool
) -> None:
    request = world.draft().request()
    target, body = request.target, request.body
    await world.start()
    handler = world.receiver.handler

    async def read(_limit: int) -> bytes:
        return body

    asked = Request(
        method="POST",
        path=target,
        target=target,
        headers=request.headers,
        body=body if has_body else None,
        read=read,
    )
    await world.receiver._database.close()  # as for a request that was under way
    answer = await handler.handle(asked)

    assert (answer.status, answer.code) == (503, "storage")
    assert "Traceback" in caplog.text
    assert json.loads(body)["statusUpdate"]["metadata"]["note"] not in caplog.text
