"""Wire profile §4 as a table: one thing changed in an accepted request, and what is answered."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.errors import ConfigError, InboundError, TokenError
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key
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
from tests.eventually import DEADLINE
from tests.long_runs import share

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import Draft, World, WorldFactory

Change = Callable[["Draft"], object]

BASE = "https://client.example.com"
URL = f"{BASE}/a2a/push"
STRANGER = generate_key(Algorithm.ES256)
OTHER_TOKEN = "another-token-that-is-private"


@cache
def rsa_key() -> SigningKey:
    return generate_key(Algorithm.RS256)


def claims(**claims: object) -> Change:
    return lambda draft: draft.claim(**claims)  # type: ignore[arg-type]  # wrong types on purpose


def header(**members: object) -> Change:
    return lambda draft: draft.header.update(members)  # type: ignore[arg-type]  # on purpose


def field(name: str, *values: str) -> Change:
    return lambda draft: draft.replace_header(name, *values)


def raw_claim(name: str, text: str) -> Change:
    """Write a claim as this text, which no JSON writer would produce."""

    def change(draft: Draft) -> None:
        draft.claim(**{name: "@"})
        decoded = json.dumps(draft.decoded_claims()).replace('"@"', text)
        draft.set(payload=decoded.encode())

    return change


def iat(seconds: float) -> Change:
    """Sign the attempt this many seconds from now, with a lifetime that is no hindrance."""

    def change(draft: Draft) -> None:
        draft.issued_at += timedelta(seconds=seconds)
        draft.claim(exp=int(draft.issued_at.timestamp()) + 900)

    return change


def exp(seconds: int) -> Change:
    return lambda draft: draft.claim(exp=int(draft.issued_at.timestamp()) + seconds)


def nbf(seconds: int) -> Change:
    return lambda draft: draft.claim(nbf=int(draft.issued_at.timestamp()) + seconds)


def body(content: bytes) -> Change:
    """Send another body, signed as it is."""
    return lambda draft: draft.set(body=content)


def all_of(*changes: Change) -> Change:
    return lambda draft: [change(draft) for change in changes]


def signed_by(key: Callable[[], SigningKey], kid: Callable[[Draft], str]) -> Change:
    """Sign with another key under a name of choice."""

    def change(draft: Draft) -> None:
        name = kid(draft)
        draft.set(key=key())
        draft.header.update({"kid": name, "alg": draft.key.algorithm.value})

    return change


def authorization_is_static(draft: Draft) -> None:
    draft.set(jwt_header="X-A2A-Signature")
    draft.replace_header("Authorization", "Bearer static-credentials")


def tampered_signature(draft: Draft) -> None:
    signing_input, _, signature = draft.token().rpartition(".")
    first = "A" if signature[0] != "A" else "B"
    draft.set(compact=f"{signing_input}.{first}{signature[1:]}")


def tampered_claims(draft: Draft) -> None:
    head, _, signature = draft.token().split(".")
    draft.claim(seq=2)
    draft.set(compact=f"{head}.{draft.token().split('.')[1]}.{signature}")


ACCEPTED = [
    pytest.param(lambda _: None, id="as-it-stands"),
    pytest.param(lambda draft: draft.set(jwt_header="X-A2A-Signature"), id="signature-header"),
    pytest.param(authorization_is_static, id="authorization-taken-by-credentials"),
    pytest.param(
        lambda draft: draft.set(
            jwt_header=None, headers=[*draft.headers, ("authorization", f"bEARER {draft.token()}")]
        ),
        id="scheme-in-any-case",
    ),
    pytest.param(field("X-A2A-Token"), id="token-as-the-SDKs-spell-it"),
    pytest.param(field("X-A2A-Notification-Token"), id="token-as-0.1-spells-it"),
    pytest.param(
        lambda draft: (
            draft.replace_header("X-A2A-Token"),
            draft.replace_header("X-A2A-Notification-Token"),
            draft.replace_header("A2A-Notification-Token", "the-notification-token-is-private"),
        ),
        id="token-as-go-spells-it",
    ),
    pytest.param(field("webhook-id"), id="no-webhook-id"),
    pytest.param(field("Content-Type", "application/json; charset=utf-8"), id="json-with-charset"),
    pytest.param(field("Content-Type", "Application/JSON"), id="media-type-in-any-case"),
    pytest.param(field("Content-Type"), id="no-content-type"),
    pytest.param(claims(aud=[URL, "https://other.example.com/"]), id="several-audiences"),
    pytest.param(
        lambda draft: draft.set(target=f"{draft.target}?tenant=1"), id="query-that-aud-is-without"
    ),
    pytest.param(
        all_of(
            lambda draft: draft.set(target=f"{draft.target}?tenant=1"),
            claims(aud=f"{URL}?tenant=1"),
        ),
        id="aud-with-the-query-of-the-request",
    ),
    pytest.param(claims(taskId=None, configId=None, seq=None), id="only-the-required-claims"),
    pytest.param(claims(seq=2**53 - 1), id="seq-as-large-as-json-goes"),
    pytest.param(iat(-299), id="issued-299-s-ago"),
    pytest.param(iat(-300), id="issued-300-s-ago"),
    pytest.param(iat(299), id="issued-299-s-ahead"),
    pytest.param(iat(300), id="issued-300-s-ahead"),
    pytest.param(raw_claim("iat", "1767268800.5"), id="iat-with-a-fraction"),  # RFC 7519 §2
    pytest.param(raw_claim("iat", "1.7672688e9"), id="iat-with-an-exponent"),
    pytest.param(exp(-59), id="exp-within-the-leeway"),
    pytest.param(exp(-60), id="exp-at-the-end-of-the-leeway"),
    pytest.param(header(typ=None), id="no-typ"),
    pytest.param(header(typ="jwt"), id="typ-in-lower-case"),
]


@pytest.mark.parametrize("change", ACCEPTED)
async def test_accepts(world: World, change: Change) -> None:
    draft = world.draft()
    change(draft)

    verdict = await world.receive(draft)

    assert (verdict.status, verdict.code) == (202, "accepted")
    assert world.rows()["pushkit_inbox"] == 1


@pytest.mark.parametrize("change", ACCEPTED)
@pytest.mark.slow
async def test_accepts_over_http(world_behind: World, change: Change) -> None:
    world = world_behind
    draft = world.draft()
    change(draft)

    answer = await world.post(draft)

    assert (answer.status, answer.text) == (202, "")


# What is changed, by the status and the code of the refusal. Steps 2 to 7: whatever reaches
# `Receiver.receive`.
Refusals = dict[tuple[int, str], dict[str, Change]]
STEP_2: Refusals = {
    (403, "unknown_sender"): {
        "wrong-iss": claims(iss="https://evil.example.com"),
        "iss-with-a-slash-more": claims(iss=f"{URL}/"),
        "no-iss": claims(iss=None),
        "iss-a-list": claims(iss=["https://agent.example.com"]),
        "iss-a-number": claims(iss=17),
    },
}

STEP_3: Refusals = {
    (401, "invalid_signature"): {
        "no-jwt": lambda draft: draft.set(jwt_header=None),
        "an-empty-bearer-token": lambda draft: draft.set(compact=""),
        "an-empty-signature-header": lambda draft: draft.set(
            jwt_header="X-A2A-Signature", compact=""
        ),
        "two-segments": lambda draft: draft.set(compact="only.two"),
        "a-jwe": lambda draft: draft.set(jwt_header="X-A2A-Signature", compact="a.b.c.d.e"),
        "padding": lambda draft: draft.set(compact=draft.token() + "="),
        "an-empty-header-segment": lambda draft: draft.set(
            compact="." + draft.token().partition(".")[2]
        ),
        "a-long-jwt": lambda draft: draft.set(compact="e30." * 1500),
        "tampered-signature": tampered_signature,
        "tampered-claims": tampered_claims,
        "alg-none-without-signature": header(alg="none"),
        "alg-none-with-a-signature": all_of(
            header(alg="none"), lambda draft: draft.set(compact=draft.token() + "AA")
        ),
        "HS256-with-the-public-key": header(alg="HS256"),
        "another-alg-than-the-key's": header(alg="ES384"),
        "alg-in-lower-case": header(alg="es256"),
        "no-alg": header(alg=None),
        "alg-a-list": header(alg=["ES256"]),
        "an-empty-crit": header(crit=[]),
        "crit": header(crit=["exp"], exp=1),
        "b64-false": header(crit=["b64"], b64=False),
        "b64-false-without-crit": header(b64=False),
        "another-typ": header(typ="logout+jwt"),
        "typ-a-number": header(typ=5),
        "unknown-kid": header(kid="unknown"),
        "no-kid": header(kid=None),
        "an-empty-kid": header(kid=""),
        "kid-a-number": header(kid=7),
        "jku-is-not-fetched": header(jku="https://evil.example.com/jwks.json", kid="unknown"),
        "another-key-under-the-right-kid": signed_by(lambda: STRANGER, lambda draft: draft.key.kid),
        "another-key-under-its-own-kid": signed_by(lambda: STRANGER, lambda _: STRANGER.kid),
        "a-key-of-another-type": signed_by(rsa_key, lambda draft: draft.key.kid),
        "no-request_body_sha256": claims(request_body_sha256=None),
        "request_body_sha256-a-number": claims(request_body_sha256=5),
        "claims-not-an-object": lambda draft: draft.set(payload=b"[1]"),
        "claims-not-utf8": lambda draft: draft.set(payload=b"\xff{}"),
        "a-claim-twice": lambda draft: draft.set(payload=b'{"iss":1,"iss":2}'),
        "deep-claims": lambda draft: draft.set(payload=b"[" * 5000),
    },
    (401, "digest_mismatch"): {
        "another-body": lambda draft: draft.set(body_sent=draft.body + b" "),
        "the-body-left-out": lambda draft: draft.set(body_sent=b""),
        "the-hash-of-another-body": claims(request_body_sha256="0" * 64),
    },
}

STEP_4: Refusals = {
    (401, "stale_timestamp"): {
        "issued-301-s-ago": iat(-301),
        "issued-301-s-ahead": iat(301),
        "expired-beyond-the-leeway": exp(-61),
        "not-valid-before-in-301-s": nbf(301),
        "iat-zero": claims(iat=0),
    },
    (401, "invalid_signature"): {
        "nbf-a-string": claims(nbf="soon"),
        "no-iat": claims(iat=None),
        "jti-empty": claims(jti=""),
        "jti-a-number": claims(jti=5),
        "iat-a-boolean": claims(iat=True),
        "iat-a-string": claims(iat="1767268800"),
        "iat-in-arabic-digits": claims(iat="١٧٦٧٢٦٨٨٠٠"),
        "iat-no-json-number": raw_claim("iat", "١٧٦٧"),
        "iat-negative": claims(iat=-1),
        "iat-beyond-the-calendar": claims(iat=10**18),
        "iat-infinite": raw_claim("iat", "1e400"),
        "iat-a-huge-float": raw_claim("iat", "1e308"),
        "exp-a-huge-float": raw_claim("exp", "1e308"),
        "iat-not-a-number": raw_claim("iat", "NaN"),
        "iat-of-4000-digits": raw_claim("iat", "1" * 4000),
        "exp-of-4000-digits": raw_claim("exp", "1" * 4000),
        "seq-of-4000-digits": raw_claim("seq", "1" * 4000),
        "seq-of-5000-digits": raw_claim("seq", "1" * 5000),
        "seq-beyond-64-bits": claims(seq=2**63),
        "seq-zero": claims(seq=0),
        "seq-with-a-fraction": claims(seq=1.5),
        "seq-a-boolean": claims(seq=True),
        "exp-a-string": claims(exp="soon"),
        "taskId-a-list": claims(taskId=["task-1"]),
        "aud-with-a-number": claims(aud=[URL, 5]),
    },
    (401, "invalid_claims"): {
        "no-exp": claims(exp=None),
        "no-jti": claims(jti=None),
        "jti-with-a-dot": claims(jti="a.b"),
    },
    (401, "wrong_audience"): {
        "no-aud": claims(aud=None),
        "wrong-aud": claims(aud="https://evil.example.com/"),
        "aud-a-prefix": claims(aud="https://client.example.com/a2a"),
        "aud-with-a-slash-more": claims(aud=f"{URL}/"),
        "aud-with-a-foreign-query": claims(aud=f"{URL}?x=1"),
        "aud-with-another-query": all_of(
            lambda draft: draft.set(target=f"{draft.target}?x=2"), claims(aud=f"{URL}?x=1")
        ),
        "aud-that-agrees-with-Host": all_of(
            field("Host", "evil.example.com"), claims(aud="https://evil.example.com/a2a/push")
        ),
        "aud-an-empty-list": claims(aud=[]),
    },
    (400, "malformed_request"): {
        "webhook-id-differs": field("webhook-id", "another"),
    },
}

STEP_5: Refusals = {
    (401, "invalid_token"): {
        "no-token": all_of(field("X-A2A-Token"), field("X-A2A-Notification-Token")),
        "another-token": all_of(
            field("X-A2A-Token", OTHER_TOKEN), field("X-A2A-Notification-Token", OTHER_TOKEN)
        ),
        "an-empty-token": all_of(field("X-A2A-Token", ""), field("X-A2A-Notification-Token", "")),
        "two-spellings-two": field("X-A2A-Token", OTHER_TOKEN),
        "one-empty": field("A2A-Notification-Token", ""),
        "one-spelling-twice": field(
            "X-A2A-Token", "the-notification-token-is-private", OTHER_TOKEN
        ),
    },
}

STEP_6: Refusals = {
    (400, "malformed_body"): {
        "empty": body(b""),
        "not-json": body(b"{"),
        "not-utf8": body(b"\xff\xfe{}"),
        "surrogate": body(b'{"task":{"id":"\xed\xa0\x80"}}'),
        "half-a-surrogate": body(rb'{"task":{"id":"\ud800"}}'),
        "arrays-100000-deep": body(b"[" * 100_000),
        "closed-100000-deep": body(b"[" * 100_000 + b"]" * 100_000),
        "objects-100000-deep": body(b'{"a":' * 100_000),
        "66-deep": body(b"[" * 66 + b"]" * 66),
        "a-number-of-a-million-digits": body(b"1" * 10**6),
        "a-number-beyond-a-double": body(b'{"task":1e999}'),
        "a-member-twice": body(b'{"task":{},"task":{}}'),
        "NaN": body(b'{"task":NaN}'),
        "Infinity": body(b'{"task":-Infinity}'),
    },
    (422, "unrecognised_body"): {
        "a-string": body(b'"text"'),
        "an-array": body(b"[]"),
        "an-empty-object": body(b"{}"),
        "an-empty-event": body(b'{"statusUpdate":{}}'),
        "an-empty-task-id": body(b'{"statusUpdate":{"taskId":"","status":{}}}'),
        "two-updates": body(b'{"task":{},"message":{}}'),
    },
    (400, "malformed_request"): {
        "signed-for-another-task": claims(taskId="task-2"),
    },
}

# Fields that may stand once, and stand twice: two readers could each take another one.
REPEATED: Refusals = {
    (400, "malformed_request"): {
        "webhook-id-twice": lambda draft: draft.replace_header(
            "webhook-id", draft.delivery_id, draft.delivery_id
        ),
        "signature-header-twice": lambda draft: draft.replace_header(
            "X-A2A-Signature", draft.token(), draft.token()
        ),
        "two-bearer": field("Authorization", "Bearer other"),
        "api-key-twice": field("X-Api-Key", "a", "a"),
    },
}

REFUSED = [
    pytest.param(change, status, code, id=name)
    for step in (STEP_2, STEP_3, STEP_4, STEP_5, STEP_6, REPEATED)
    for (status, code), changes in step.items()
    for name, change in changes.items()
]
EDGES = ("aiohttp", "asgi")


def assert_tells_nothing(text: str, draft: Draft) -> None:
    """Check that an answer contains no secret, and no part of the signature."""
    private = ["-is-private", "static-credentials", *filter(None, draft.token().split(".")[1:])]
    assert not [secret for secret in private if len(secret) > 8 and secret in text]


@pytest.mark.parametrize(("change", "status", "code"), REFUSED)
async def test_refuses(
    world: World, caplog: pytest.LogCaptureFixture, change: Change, status: int, code: str
) -> None:
    caplog.set_level(logging.DEBUG)
    draft = world.draft()
    change(draft)

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
    draft = world.draft()
    change(draft)

    answer = await world.post(draft)

    assert (answer.status, answer.content_type) == (status, "application/problem+json")
    assert answer.code == code
    assert not any(world.rows().values())
    assert_tells_nothing(caplog.text + answer.text + str(answer.headers), draft)


# --- the same as a pure function ----------------------------------------------------------------


@pytest.mark.parametrize("change", ACCEPTED)
def test_the_pure_function_accepts(world: World, change: Change) -> None:
    draft = world.draft()
    change(draft)
    request = draft.request()

    verified = verify_notification(request, load_trust(BASE, [world.sender]), now=world.clock.now)

    assert (verified.sender, verified.delivery_id) == ("agent", draft.delivery_id)
    assert (verified.task_id, verified.update.task_id) == ("task-1", "task-1")
    assert verified.body_sha256 == hashlib.sha256(request.body).hexdigest()


@pytest.mark.parametrize(("change", "status", "code"), REFUSED)
def test_the_pure_function_refuses(world: World, change: Change, status: int, code: str) -> None:
    draft = world.draft()
    change(draft)

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
    draft = world.draft()
    draft.set(target="/hooks/a2a/push")
    trust = load_trust(f"{BASE}/hooks", [world.sender])
    draft.claim(aud=f"{BASE}/hooks/a2a/push")

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
    request = dataclasses.replace(world.draft().request(), **change)
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
    draft = world.draft()
    draft.header["kid"] = other.kid
    draft.key = other

    verdict = await world.receive(draft)

    assert (verdict.status, verdict.code) == (401, "invalid_signature")


async def test_two_senders_at_one_path_are_distinguished_by_issuer(
    make_world: WorldFactory,
) -> None:
    world = make_world()
    other = generate_key(Algorithm.ES256)
    world.add_sender("other", "https://other.example.com", other)
    draft = world.draft()
    draft.key = other
    draft.claim(iss="https://other.example.com")

    verdict = await world.receive(draft)
    found = await world.receiver.wait(
        "task-1", until={TaskState.WORKING}, timeout=DEADLINE, sender="other"
    )

    assert verdict.status == 202
    assert found.sender == "other"


async def test_a_sender_is_trusted_at_its_own_path_alone(world: World) -> None:
    draft = world.draft()
    draft.target = "/elsewhere"

    verdict = await world.receive(draft)

    assert (verdict.status, verdict.code) == (404, "not_found")


async def test_the_id_of_one_sender_is_free_for_another(make_world: WorldFactory) -> None:
    world = make_world()
    other = generate_key(Algorithm.ES256)
    world.add_sender("other", "https://other.example.com", other)
    first, second = world.draft(), world.draft()
    second.key = other
    second.claim(iss="https://other.example.com")

    verdicts = [await world.receive(draft) for draft in (first, second)]

    assert [verdict.status for verdict in verdicts] == [202, 202]


# --- profiles and settings ----------------------------------------------------------------------


async def test_an_algorithm_that_the_sender_may_not_use_is_refused(
    make_world: WorldFactory,
) -> None:
    world = make_world(algorithms=frozenset({Algorithm.EDDSA}))

    verdict = await world.receive(world.draft())

    assert (verdict.status, verdict.code) == (401, "invalid_signature")


async def test_the_samples_profile_takes_the_hash_of_the_compact_form(
    make_world: WorldFactory,
) -> None:
    world = make_world(profile=SenderProfile.A2A_SAMPLES, issuer=None)
    draft = world.draft()
    sent = draft.body
    draft.body = json.dumps(json.loads(sent), separators=(",", ":")).encode()
    draft.body_sent = sent
    draft.claim(iss=None, aud=None, jti=None, exp=None)

    verdict = await world.receive(draft)

    assert verdict.status == 202


async def test_the_standard_profile_takes_the_hash_of_the_raw_body_alone(world: World) -> None:
    draft = world.draft()
    draft.body_sent = draft.body
    draft.body = json.dumps(json.loads(draft.body), separators=(",", ":")).encode()

    verdict = await world.receive(draft)

    assert (verdict.status, verdict.code) == (401, "digest_mismatch")


async def test_a_sender_without_ids_is_deduplicated_by_what_it_signed(
    make_world: WorldFactory,
) -> None:
    world = make_world(profile=SenderProfile.TRPC_A2A_GO, issuer=None)
    draft = world.draft()
    draft.claim(iss=None, aud=None, jti=None, exp=None)

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
    draft = world.draft()
    draft.jwt_header = "X-A2A-Signature"
    draft.replace_header(name, value)

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
        draft = world.draft(number)
        draft.jwt_header = "X-A2A-Signature"
        draft.replace_header("Authorization", "Bearer abc")
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
    forged = world.draft()
    tampered_signature(forged)

    await world.receive(forged)
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
    draft = world.draft(task_id=task_id)
    draft.headers = [item for item in draft.headers if item[0] != "webhook-id"]
    draft.claim(taskId=None, jti="id\nforged")

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
    draft = world.draft()
    iat(300)(draft)
    nbf(0)(draft)
    assert (await world.receive(draft)).status == 202


async def test_the_longest_id_is_accepted(world: World) -> None:
    assert (await world.receive(of_task(world, "t" * 512))).status == 202


def of_task(world: World, task_id: str) -> Draft:
    """Return a request of this task whose own id is a short one."""
    draft = world.draft()
    written = json.dumps(task_id).encode()
    draft.set(task_id=task_id, body=draft.body.replace(b'"task-1"', written))
    return draft


async def test_the_log_names_the_refused_task_after_a_valid_signature(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.sender = dataclasses.replace(world.sender, tasks=TaskPolicy.REGISTERED)
    stranger = world.draft(task_id="task-9")
    assert (await world.receive(stranger)).status == 404
    [record] = caplog.records
    assert "sender=agent task=task-9 id=delivery-task-9-1: " in record.getMessage()
    assert (record.sender, record.task) == ("agent", "task-9")  # type: ignore[attr-defined]


async def test_claims_of_an_unproven_sender_are_not_logged_as_known(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    forged = world.draft(task_id="task-9")
    forged.body_sent = forged.body + b" "
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
