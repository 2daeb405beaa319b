from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import (
    InvalidSignatureError,
    PushkitError,
    TimestampError,
)
from pushkit.keys.jwk import Algorithm
from pushkit.signing.notification_jwt import (
    VerifiedJwt,
    body_sha256,
    check_audience,
    find_jwt,
    read_unverified,
    verify_signature,
)
from pushkit.signing.scheme import check_times
from pushkit.webhook import Headers
from receiver.testing import Draft
from tests.jose import b64url, key
from tests.refusals import refused_unless

NOW = datetime(2026, 1, 1, 12, 0, 0, 999_999, tzinfo=UTC)
BODY = b'{"statusUpdate":{}}'
URL = "https://client.example.com/hook"
ISSUER = "https://agent.example.com"
GENUINE = Draft(
    url="/hook",
    issuer=ISSUER,
    audience=URL,
    key=key(),
    token="",
    delivery_id="dlv_1",
    task_id="task-1",
    seq=7,
    body=BODY,
    issued_at=NOW,
)


def encoded(data: bytes | str | dict[str, Any]) -> str:
    if isinstance(data, dict):
        data = json.dumps(data)
    return b64url(data.encode() if isinstance(data, str) else data)


def decoded(segment: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(segment + "=="))
    return found


def signed(header: dict[str, Any] | None = None, **claims: Any) -> str:
    """Sign claims with one of them changed; None removes it."""
    payload = decoded(GENUINE.jwt().split(".")[1]) | claims
    payload = {name: value for name, value in payload.items() if value is not None}
    return signed_as_it_is(payload, header)


def signed_as_it_is(payload: dict[str, Any], header: dict[str, Any] | None = None) -> str:
    """Sign a payload that no library would let through."""
    content, headers = json.dumps(payload).encode(), {"kid": key().kid} | (header or {})
    return jwt.api_jws.encode(content, key().private_key, "ES256", headers)


def proven(token: str) -> VerifiedJwt:
    return verify_signature(read_unverified(token), key().to_verification_key())


# --- signing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_signed_jwt_verifies_with_its_claims(algorithm: Algorithm) -> None:
    token = replace(GENUINE, key=key(algorithm)).jwt()
    found = verify_signature(read_unverified(token), key(algorithm).to_verification_key())
    assert found == VerifiedJwt(
        kid=key(algorithm).kid,
        issuer=ISSUER,
        audience=(URL,),
        issued_at=NOW.replace(microsecond=0),
        expires_at=NOW.replace(microsecond=0) + timedelta(seconds=300),
        not_before=None,
        delivery_id="dlv_1",
        task_id="task-1",
        config_id="receiver-testing",
        seq=7,
        body_sha256=body_sha256(BODY),
    )


# --- verifying: one change to an accepted request ----------------------------------------------


# --- times -------------------------------------------------------------------------------------

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
MICRO = timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("off", "in_time"),
    [
        *((timedelta(seconds=seconds), True) for seconds in (-300, -299, 0, 299, 300)),
        *((timedelta(seconds=300) + MICRO, False), (-timedelta(seconds=300) - MICRO, False)),
        (timedelta(days=9999), False),
    ],
)
def test_a_signature_is_in_time_within_the_tolerance(off: timedelta, *, in_time: bool) -> None:
    with refused_unless(in_time, TimestampError, "expected within 300 s"):
        check_times(MOMENT, None, MOMENT + off)


def test_expiry_has_a_leeway_of_60_seconds() -> None:
    expired = MOMENT + timedelta(seconds=10)
    check_times(MOMENT, expired, expired + timedelta(seconds=60))
    with pytest.raises(TimestampError, match="expired"):
        check_times(MOMENT, expired, expired + timedelta(seconds=60) + MICRO)


def test_the_end_of_the_calendar_is_a_time_like_any_other() -> None:
    claims = proven(signed(exp=253402300799))
    check_times(claims.issued_at, claims.expires_at, NOW)


@pytest.mark.parametrize("typ", ["JWT", "jwt", "application/jwt", "Application/JWT"])
def test_the_type_of_a_jwt_may_be_said_in_full(typ: str) -> None:
    assert read_unverified(with_header(typ=typ)).algorithm == "ES256"


# --- what is not understood --------------------------------------------------------------------

TWO_ALGORITHMS = encoded('{"alg":"none","alg":"ES256"}')
GOOD_HEADER, GOOD_PAYLOAD, GOOD_SIGNATURE = signed().split(".")


def with_header(**members: Any) -> str:
    header = encoded({"alg": "ES256", "typ": "JWT", "kid": key().kid} | members)
    return f"{header}.{GOOD_PAYLOAD}.{GOOD_SIGNATURE}"


def with_payload(payload: str | bytes) -> str:
    return f"{GOOD_HEADER}.{encoded(payload)}.{GOOD_SIGNATURE}"


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="nothing"),
        pytest.param("..", id="three empty segments"),
        pytest.param(f" {signed()}", id="a leading space"),
        pytest.param(f"{signed()}\n", id="a line break at the end"),
        pytest.param(f"\u0661{signed()}", id="an Arabic digit"),
        pytest.param(f"{GOOD_HEADER}.{GOOD_PAYLOAD}.A", id="a single character"),
        pytest.param(with_header(typ="text/jwt"), id="a typ of text"),
        pytest.param(f"{encoded('[]')}.{GOOD_PAYLOAD}.{GOOD_SIGNATURE}", id="an array as header"),
        pytest.param(
            f"{encoded('{')}.{GOOD_PAYLOAD}.{GOOD_SIGNATURE}", id="a header that is no JSON"
        ),
        pytest.param(f"{TWO_ALGORITHMS}.{GOOD_PAYLOAD}.{GOOD_SIGNATURE}", id="two algorithms"),
        pytest.param(with_payload('{"iat":NaN}'), id="NaN"),
    ],
)
def test_a_token_that_is_not_understood_is_refused_unread(token: str) -> None:
    with pytest.raises(InvalidSignatureError):
        read_unverified(token)


@given(st.text(max_size=80) | st.from_regex(r"[A-Za-z0-9_-]{0,20}(\.[A-Za-z0-9_-]{0,20}){0,3}"))
def test_any_text_is_a_token_or_the_one_error(token: str) -> None:
    with pytest.raises(InvalidSignatureError):
        proven(token)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text(max_size=5)
            | st.lists(st.text(max_size=3), max_size=2)
            for name in ("iss", "aud", "iat", "exp", "jti", "taskId", "configId", "seq")
        },
    )
)
def test_any_claims_under_a_good_signature_are_read_or_the_one_error(
    claims: dict[str, Any],
) -> None:
    payload = {"iat": int(NOW.timestamp()), "request_body_sha256": body_sha256(BODY)} | claims
    try:
        found = proven(signed_as_it_is(payload))
        check_times(found.issued_at, found.expires_at, NOW)
        check_audience(found, [URL], "/hook")
    except PushkitError:
        return


# --- the algorithm is the key's ----------------------------------------------------------------


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_every_changed_bit_of_a_signature_is_seen(algorithm: Algorithm) -> None:
    head, _, signature = replace(GENUINE, key=key(algorithm)).jwt().rpartition(".")
    raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
    for position in range(0, len(raw), 7):
        changed = bytes([*raw[:position], raw[position] ^ 1, *raw[position + 1 :]])
        token = f"{head}.{encoded(changed)}"
        with pytest.raises(InvalidSignatureError):
            verify_signature(read_unverified(token), key(algorithm).to_verification_key())


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_a_token_has_one_spelling(segment: int) -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    original = GENUINE.jwt().split(".")
    accepted = set()
    for last in alphabet:
        parts = list(original)
        parts[segment] = parts[segment][:-1] + last
        token = ".".join(parts)
        try:
            proven(token)
        except InvalidSignatureError:
            continue
        accepted.add(token)
    assert accepted == {".".join(original)}


def test_another_spelling_of_a_signature_is_refused_unverified() -> None:
    # 64 bytes leave four bits over in the last of 86 characters.
    token = f"{GOOD_HEADER}.{GOOD_PAYLOAD}.{'A' * 85}B"
    with pytest.raises(InvalidSignatureError, match="canonical"):
        read_unverified(token)


# --- claims ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["iat", "exp"])
def test_a_time_that_is_null_is_not_one_that_was_left_out(name: str) -> None:
    token = signed_as_it_is(decoded(GOOD_PAYLOAD) | {name: None})
    with pytest.raises(InvalidSignatureError, match=f"`{name}`.*found null"):
        proven(token)


def test_claims_that_legacy_senders_leave_out_are_none() -> None:
    token = signed(iss=None, aud=None, exp=None, jti=None, taskId=None, configId=None, seq=None)
    found = proven(token)
    left_out = (found.issuer, found.expires_at, found.delivery_id, found.task_id, found.seq)
    assert set(left_out) == {None}
    assert found.audience == ()


# --- where the token stands --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "token"),
    [
        pytest.param([("Authorization", "Bearer a.b.c")], "a.b.c", id="Authorization"),
        pytest.param([("authorization", "bearer  a.b.c ")], "a.b.c", id="in any case"),
        pytest.param([("X-A2A-Signature", "a.b.c")], "a.b.c", id="X-A2A-Signature"),
        pytest.param(
            [("Authorization", "Bearer x.y.z"), ("X-A2A-Signature", "a.b.c")], "a.b.c", id="both"
        ),
        pytest.param([("Authorization", "Bearer opaque")], None, id="static credentials"),
        pytest.param([("Authorization", "Basic a.b.c")], None, id="another scheme"),
        pytest.param([("Authorization", "Bearer")], None, id="nothing"),
        pytest.param([], None, id="no header"),
    ],
)
def test_finds_the_token(fields: list[tuple[str, str]], token: str | None) -> None:
    assert find_jwt(Headers(fields)) == token


def test_no_error_repeats_the_token() -> None:
    for token in (with_payload('{"iss":"canary"'), signed({"typ": "canary"}), signed(seq="canary")):
        with pytest.raises(InvalidSignatureError) as caught:
            proven(token)
        assert "canary" not in str(caught.value)
        assert token not in str(caught.value)


@pytest.mark.parametrize("ids", ["x" * 512, "ü" * 150])
def test_the_longest_url_and_ids_that_a_sender_takes_can_be_verified(ids: str) -> None:
    url = URL + "/" + "x" * (2047 - len(URL))
    rsa, claims = key(Algorithm.RS256), {"configId": ids}
    token = replace(GENUINE, key=rsa, audience=url, task_id=ids, claims=claims).jwt()
    verified = verify_signature(read_unverified(token), key(Algorithm.RS256).to_verification_key())
    assert (verified.audience, verified.task_id) == ((url,), ids)
