"""Every request gets an answer, and only the genuine one is accepted."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pushkit.bounded_json import JsonValue
from pushkit.webhook import Headers, WebhookRequest
from receiver import Limits, RateLimit, SenderProfile
from tests.long_runs import examples

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

FIELDS = [
    "Authorization",
    "X-A2A-Signature",
    "X-A2A-Token",
    "X-A2A-Notification-Token",
    "A2A-Notification-Token",
    "X-Api-Key",
    "webhook-id",
    "webhook-timestamp",
    "Content-Type",
    "Content-Encoding",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=10,
)
# What an HTTP parser may hand on: any octet but line ends, as latin-1.
VALUES = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n\0"), max_size=200)
# Members that notifications have, with values that it should not have.
MEMBERS = st.sampled_from(
    [
        "kind",
        "id",
        "taskId",
        "contextId",
        "status",
        "state",
        "message",
        "artifact",
        "parts",
        "text",
        "raw",
        "url",
        "data",
        "role",
        "messageId",
        "artifactId",
        "timestamp",
        "metadata",
    ]
)
NAMES = st.sampled_from(["TASK_STATE_WORKING", "working", "task", "message", "AAA=", "ROLE_USER"])
NOTIFICATIONS = st.dictionaries(
    st.sampled_from(["task", "message", "statusUpdate", "artifactUpdate", "kind", "id", "status"]),
    st.recursive(
        JSON | NAMES,
        lambda inner: st.dictionaries(MEMBERS, inner, max_size=5) | st.lists(inner, max_size=2),
        max_leaves=12,
    ),
    max_size=3,
)
BEARER = st.builds("Bearer {}".format, VALUES)
SEGMENT = st.text("ABCabc019-_=.+/ ", max_size=30)
JWTS = st.builds("{}.{}.{}".format, SEGMENT, SEGMENT, SEGMENT)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(FIELDS) | st.text("aBc-", min_size=1, max_size=8),
        VALUES | BEARER | JWTS | JWTS.map("Bearer {}".format),
    ),
    max_size=8,
)
FAST = RateLimit(per_second=1e6, burst=10**6)


def as_json(value: JsonValue) -> bytes:
    """Write what a careless sender writes: also NaN."""
    return json.dumps(value).encode()


FUZZ = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def fuzzed(make_world: WorldFactory) -> World:
    return make_world({"limits": Limits(sender_rate=FAST, peer_rate=FAST)})


async def answer(world: World, request: WebhookRequest) -> int:
    await world.receiver.start()
    return (await world.receiver.receive(request)).status


def tampered(text: str, position: int, character: str) -> str:
    position %= len(text)
    return f"{text[:position]}{character}{text[position + 1 :]}"


@FUZZ
@given(headers=HEADERS, body=st.binary(max_size=200), target=st.just("/a2a/push") | VALUES)
async def test_arbitrary_requests_are_refused(
    fuzzed: World, headers: list[tuple[str, str]], body: bytes, target: str
) -> None:
    request = WebhookRequest(target=target, headers=Headers(headers), body=body)

    assert 400 <= await answer(fuzzed, request) < 500


@FUZZ
@given(headers=HEADERS)
async def test_headers_beside_those_of_the_genuine_request_gain_nothing(
    fuzzed: World, headers: list[tuple[str, str]]
) -> None:
    genuine = fuzzed.draft().request()
    request = WebhookRequest(
        target=genuine.target, headers=Headers([*genuine.headers, *headers]), body=genuine.body
    )

    # The genuine request is still in there; what is added may spoil it.
    status = await answer(fuzzed, request)

    assert status in (200, 202) or 400 <= status < 500
    assert fuzzed.rows()["pushkit_inbox"] <= 1


@FUZZ
@given(
    position=st.integers(0, 10_000),
    character=st.characters(max_codepoint=255, exclude_characters="\r\n\0"),
)
async def test_a_jwt_in_which_one_character_differs_is_refused(
    fuzzed: World, position: int, character: str
) -> None:
    draft = fuzzed.draft()
    genuine = draft.token()
    draft.compact = tampered(genuine, position, character)
    assume(draft.compact != genuine)

    assert await answer(fuzzed, draft.request()) in (401, 403)


@FUZZ
@given(position=st.integers(0, 10_000), octet=st.integers(0, 255))
async def test_a_body_in_which_one_octet_differs_is_refused(
    fuzzed: World, position: int, octet: int
) -> None:
    draft = fuzzed.draft()
    position %= len(draft.body)
    draft.body_sent = draft.body[:position] + bytes([octet]) + draft.body[position + 1 :]
    assume(draft.body_sent != draft.body)

    assert await answer(fuzzed, draft.request()) == 401


@FUZZ
@given(
    name=st.sampled_from(
        ["iss", "aud", "iat", "exp", "jti", "taskId", "configId", "seq", "request_body_sha256"]
    ),
    value=JSON.filter(lambda value: value is not None),
)
async def test_claims_of_any_type_end_in_an_answer(
    fuzzed: World, name: str, value: JsonValue
) -> None:
    draft = fuzzed.draft()
    draft.replace_header("webhook-id")
    draft.claim(**{name: value})

    assert await answer(fuzzed, draft.request()) in (200, 202, 400, 401, 403)


@FUZZ
@given(name=st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jku", "x5c"]), value=JSON)
async def test_header_members_of_any_type_end_in_an_answer(
    fuzzed: World, name: str, value: JsonValue
) -> None:
    draft = fuzzed.draft()
    draft.header[name] = value

    assert await answer(fuzzed, draft.request()) in (200, 202, 401, 403)


@FUZZ
@given(body=st.binary(max_size=300) | JSON.map(as_json) | NOTIFICATIONS.map(as_json))
async def test_signed_bodies_of_any_kind_end_in_an_answer(fuzzed: World, body: bytes) -> None:
    draft = fuzzed.draft()
    draft.claim(taskId=None, jti=hashlib.sha256(body).hexdigest())
    draft.replace_header("webhook-id")
    draft.body = body

    assert await answer(fuzzed, draft.request()) in (200, 202, 400, 422)


@FUZZ
@given(value=JSON)
async def test_the_samples_profile_survives_any_body(
    make_world: WorldFactory, value: JsonValue
) -> None:
    world = make_world(
        {"limits": Limits(sender_rate=FAST)}, profile=SenderProfile.A2A_SAMPLES, issuer=None
    )
    draft = world.draft()
    draft.claim(iss=None, aud=None, jti=None, taskId=None)
    draft.replace_header("webhook-id")
    draft.body_sent = as_json(value)

    status = await answer(world, draft.request())
    await world.receiver.close()

    assert status in (200, 202, 400, 401, 422)
