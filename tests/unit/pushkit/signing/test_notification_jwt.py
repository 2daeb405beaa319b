from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import (
    AudienceError,
    DigestMismatchError,
    InvalidSignatureError,
    IssuerError,
    MalformedRequestError,
    PushkitError,
    TimestampError,
)
from pushkit.keys.jwk import Algorithm, public_pem
from pushkit.signing.jose import at_once
from pushkit.signing.notification_jwt import (
    SIGNATURE_HEADER,
    VerifiedJwt,
    body_sha256,
    check_audience,
    check_body,
    check_issuer,
    check_webhook_id,
    find_jwt,
    read_unverified,
    verify_signature,
)
from pushkit.signing.scheme import check_times
from pushkit.webhook import Headers, WebhookRequest
from tests.jose import b64url, key
from tests.notification_claims import NotificationClaims, sign_notification
from tests.refusals import refused_unless

NOW = datetime(2026, 1, 1, 12, 0, 0, 999_999, tzinfo=UTC)
BODY = b'{"statusUpdate":{}}'
URL = "https://client.example.com/hook"
ISSUER = "https://agent.example.com"
CLAIMS = NotificationClaims(
    issuer=ISSUER, audience=URL, issued_at=NOW, seq=7, body_sha256=body_sha256(BODY)
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
    payload = decoded(at_once(sign_notification(CLAIMS, key())).split(".")[1]) | claims
    payload = {name: value for name, value in payload.items() if value is not None}
    return signed_as_it_is(payload, header)


def signed_as_it_is(payload: dict[str, Any], header: dict[str, Any] | None = None) -> str:
    """Sign a payload that no library would let through."""
    content, headers = json.dumps(payload).encode(), {"kid": key().kid} | (header or {})
    return jwt.api_jws.encode(content, key().private_key, "ES256", headers)


def proven(token: str) -> VerifiedJwt:
    return verify_signature(read_unverified(token), key().to_verification_key())


def request(
    token: str | None = None, *fields: tuple[str, str], body: bytes = BODY
) -> WebhookRequest:
    token = token or at_once(sign_notification(CLAIMS, key()))
    headers = [("Authorization", f"Bearer {token}"), ("webhook-id", "dlv_1"), *fields]
    return WebhookRequest(target="/hook", headers=Headers(headers), body=body)


def verify(received: WebhookRequest) -> VerifiedJwt:
    """Verify as a receiver with one sender does: signature, body, times, issuer, audience, id."""
    unverified = read_unverified(find_jwt(received.headers) or "")
    if unverified.kid != key().kid:
        raise InvalidSignatureError("an unknown key")
    verified = verify_signature(unverified, key().to_verification_key())
    check_body(verified, body_sha256(received.body), len(received.body))
    check_times(verified.issued_at, verified.expires_at, NOW)
    check_issuer(verified, ISSUER)
    check_audience(verified, [URL], received.target)
    check_webhook_id(verified, received.headers)
    return verified


# --- signing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_signed_jwt_verifies_with_its_claims(algorithm: Algorithm) -> None:
    token = at_once(sign_notification(CLAIMS, key(algorithm)))
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
        config_id="config-1",
        seq=7,
        body_sha256=body_sha256(BODY),
    )


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_writes_header_and_claims_as_the_wire_profile_says(algorithm: Algorithm) -> None:
    header, payload, _ = at_once(sign_notification(CLAIMS, key(algorithm))).split(".")
    assert decoded(header) == {"alg": algorithm.value, "kid": key(algorithm).kid, "typ": "JWT"}
    assert decoded(payload) == {
        "iss": ISSUER,
        "aud": URL,
        "iat": int(NOW.timestamp()),
        "exp": int(NOW.timestamp()) + 300,
        "jti": "dlv_1",
        "taskId": "task-1",
        "configId": "config-1",
        "seq": 7,
        "request_body_sha256": body_sha256(BODY),
    }


def test_the_samples_profile_has_no_audience() -> None:
    token = at_once(sign_notification(replace(CLAIMS, audience=None), key()))
    assert "aud" not in decoded(token.split(".")[1])


# --- verifying: one change to an accepted request ----------------------------------------------


def test_an_honest_request_is_accepted() -> None:
    assert verify(request()).delivery_id == "dlv_1"


@pytest.mark.parametrize(
    ("received", "error"),
    [
        pytest.param(request(body=BODY + b" "), DigestMismatchError, id="another body"),
        pytest.param(request(body=b""), DigestMismatchError, id="no body"),
        pytest.param(
            request(signed(request_body_sha256=body_sha256(BODY).upper())),
            DigestMismatchError,
            id="a digest in capitals",
        ),
        pytest.param(request(signed(iss="x")), IssuerError, id="another issuer"),
        pytest.param(request(signed(iss=None)), IssuerError, id="no issuer"),
        pytest.param(request(signed(aud=URL + "/")), AudienceError, id="another audience"),
        pytest.param(request(signed(aud=None)), AudienceError, id="no audience"),
        pytest.param(request(signed(aud=[])), AudienceError, id="an empty audience"),
        pytest.param(request(signed(jti="dlv_2")), MalformedRequestError, id="another id"),
        pytest.param(
            request(None, ("webhook-id", "dlv_1")), MalformedRequestError, id="the id twice"
        ),
        pytest.param(
            request(signed({"kid": "unknown"})), InvalidSignatureError, id="an unknown key"
        ),
        pytest.param(request(signed({"kid": ""})), InvalidSignatureError, id="no key"),
        pytest.param(
            request(None, (SIGNATURE_HEADER, "")), InvalidSignatureError, id="an empty JWT"
        ),
        pytest.param(
            WebhookRequest(target="/", headers=Headers(), body=BODY),
            InvalidSignatureError,
            id="no JWT",
        ),
        pytest.param(
            request(signed(iat=int(NOW.timestamp()) - 301)), TimestampError, id="too late"
        ),
        pytest.param(
            request(signed(iat=int(NOW.timestamp()) + 302)), TimestampError, id="too early"
        ),
    ],
)
def test_refuses(received: WebhookRequest, error: type[PushkitError]) -> None:
    with pytest.raises(error) as caught:
        verify(received)
    assert type(caught.value) is error


def test_the_audience_may_carry_the_query_of_the_request() -> None:
    found = proven(signed(aud=[URL + "?a=b", "https://other.example.com/"]))
    check_audience(found, [URL], "/hook?a=b")
    for target in ("/hook", "/hook?a=b&c", "/hook?"):
        with pytest.raises(AudienceError):
            check_audience(found, [URL], target)


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
        pytest.param("a.b", id="two segments"),
        pytest.param("a.b.c.d", id="four segments"),
        pytest.param("..", id="three empty segments"),
        pytest.param(f"{GOOD_HEADER}.{GOOD_PAYLOAD}.", id="no signature"),
        pytest.param(f" {signed()}", id="a leading space"),
        pytest.param(f"{signed()}\n", id="a line break at the end"),
        pytest.param(f"{signed()}=", id="padding"),
        pytest.param(signed().replace(".", "+.", 1), id="another alphabet"),
        pytest.param(f"\u0661{signed()}", id="an Arabic digit"),
        pytest.param(f"{GOOD_HEADER}.{GOOD_PAYLOAD}.A", id="a single character"),
        pytest.param(with_header(crit=["exp"]), id="crit"),
        pytest.param(with_header(crit=[]), id="an empty crit"),
        pytest.param(with_header(b64=True), id="b64"),
        pytest.param(with_header(typ="JOSE+JSON"), id="another typ"),
        pytest.param(with_header(typ="text/jwt"), id="a typ of text"),
        pytest.param(with_header(typ={}), id="a typ that is no string"),
        pytest.param(with_header(alg=None), id="no alg"),
        pytest.param(with_header(alg=["ES256"]), id="an alg that is no string"),
        pytest.param(with_header(kid=1), id="a kid that is no string"),
        pytest.param(f"{encoded('[]')}.{GOOD_PAYLOAD}.{GOOD_SIGNATURE}", id="an array as header"),
        pytest.param(
            f"{encoded('{')}.{GOOD_PAYLOAD}.{GOOD_SIGNATURE}", id="a header that is no JSON"
        ),
        pytest.param(f"{TWO_ALGORITHMS}.{GOOD_PAYLOAD}.{GOOD_SIGNATURE}", id="two algorithms"),
        pytest.param(with_payload("[]"), id="an array as payload"),
        pytest.param(with_payload(b"\xff"), id="a payload that is no text"),
        pytest.param(with_payload('{"a":1,"a":2}'), id="a member twice"),
        pytest.param(with_payload('{"iat":NaN}'), id="NaN"),
        pytest.param(with_payload("[" * 4000), id="nested without end"),
        pytest.param(with_payload('{"iat":' + "9" * 5000 + "}"), id="endless digits"),
    ],
)
def test_a_token_that_is_not_understood_is_refused_unread(token: str) -> None:
    with pytest.raises(InvalidSignatureError):
        read_unverified(token)


@pytest.mark.parametrize("member", ["jku", "x5u", "jwk", "x5c"])
def test_a_header_that_brings_its_own_key_changes_nothing(member: str) -> None:
    with pytest.raises(InvalidSignatureError, match="invalid"):
        proven(with_header(**{member: "https://evil.example.com/jwks.json"}))


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


def test_no_algorithm_is_refused() -> None:
    for name in ("none", "None", "nOnE", ""):
        with pytest.raises(InvalidSignatureError):
            proven(with_header(alg=name))


def test_hmac_with_the_public_key_is_refused() -> None:
    signing_input = f"{encoded({'alg': 'HS256', 'typ': 'JWT', 'kid': key().kid})}.{GOOD_PAYLOAD}"
    mac = hmac.new(public_pem(key()), signing_input.encode(), hashlib.sha256).digest()
    with pytest.raises(InvalidSignatureError):
        proven(f"{signing_input}.{encoded(mac)}")


@pytest.mark.parametrize("algorithm", [a for a in Algorithm if a is not Algorithm.ES256])
def test_another_key_with_the_same_kid_is_refused(algorithm: Algorithm) -> None:
    impostor = replace(key(algorithm), kid=key().kid)
    with pytest.raises(InvalidSignatureError):
        proven(at_once(sign_notification(CLAIMS, impostor)))


def test_rsa_may_not_change_its_padding() -> None:
    rsa = key(Algorithm.RS256)
    token = at_once(sign_notification(CLAIMS, replace(rsa, algorithm=Algorithm.PS256)))
    with pytest.raises(InvalidSignatureError):
        verify_signature(read_unverified(token), rsa.to_verification_key())


def test_the_sender_may_be_held_to_some_algorithms() -> None:
    unverified = read_unverified(signed())
    with pytest.raises(InvalidSignatureError, match="may not sign"):
        verify_signature(unverified, key().to_verification_key(), algorithms={Algorithm.EDDSA})


def test_ed25519_is_another_name_of_eddsa() -> None:
    eddsa = key(Algorithm.EDDSA)
    signing_input = f"{encoded({'alg': 'Ed25519', 'kid': eddsa.kid})}.{GOOD_PAYLOAD}"
    signature = eddsa.private_key.sign(signing_input.encode())  # type: ignore[call-arg]
    token = f"{signing_input}.{encoded(signature)}"
    assert verify_signature(read_unverified(token), eddsa.to_verification_key()).seq == 7


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_every_changed_bit_of_a_signature_is_seen(algorithm: Algorithm) -> None:
    head, _, signature = at_once(sign_notification(CLAIMS, key(algorithm))).rpartition(".")
    raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
    for position in range(0, len(raw), 7):
        changed = bytes([*raw[:position], raw[position] ^ 1, *raw[position + 1 :]])
        token = f"{head}.{encoded(changed)}"
        with pytest.raises(InvalidSignatureError):
            verify_signature(read_unverified(token), key(algorithm).to_verification_key())


@pytest.mark.parametrize("segment", [0, 1, 2])
def test_a_token_has_one_spelling(segment: int) -> None:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    original = at_once(sign_notification(CLAIMS, key())).split(".")
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


WRONG: dict[str, list[Any]] = {
    "iat": [None, "1", True, -1, 2**60, [1]],
    "exp": ["1", False, -1, 253402300800],
    "seq": [0, -1, 1.5, "1", True, 2**63],
    "aud": [1, [1], {"a": 1}, [None]],
    "jti": ["", 1, []],
    "taskId": ["", 1, []],
    "configId": ["", 1, []],
    "request_body_sha256": [None, "", 1],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_claim_of_a_wrong_type_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidSignatureError):
        proven(signed(**{name: value}))


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


@pytest.mark.parametrize("name", ["Authorization", "X-A2A-Signature"])
def test_a_header_that_stands_twice_is_refused(name: str) -> None:
    with pytest.raises(MalformedRequestError):
        find_jwt(Headers([(name, "Bearer a.b.c"), (name, "Bearer a.b.c")]))


def test_no_error_repeats_the_token() -> None:
    for token in (with_payload('{"iss":"canary"'), signed({"typ": "canary"}), signed(seq="canary")):
        with pytest.raises(InvalidSignatureError) as caught:
            proven(token)
        assert "canary" not in str(caught.value)
        assert token not in str(caught.value)


@pytest.mark.parametrize("ids", ["x" * 512, "ü" * 150])
def test_the_longest_url_and_ids_that_a_sender_takes_can_be_verified(ids: str) -> None:
    url = URL + "/" + "x" * (2047 - len(URL))
    claims = replace(CLAIMS, audience=url, task_id=ids, config_id=ids)
    token = at_once(sign_notification(claims, key(Algorithm.RS256)))
    verified = verify_signature(read_unverified(token), key(Algorithm.RS256).to_verification_key())
    assert (verified.audience, verified.task_id) == ((url,), ids)


def test_another_body_is_named_by_its_length() -> None:
    with pytest.raises(DigestMismatchError, match=f"received, of {len(BODY) + 3} bytes$"):
        verify(request(body=BODY + b"abc"))
