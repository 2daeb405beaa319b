"""PyJWT and jwcrypto as oracles: they share no code with `jose.py`, and must agree with it."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jwcrypto.jwk import JWK  # type: ignore[import-untyped]
from jwcrypto.jws import JWS, InvalidJWSSignature  # type: ignore[import-untyped]

from pushkit.bounded_json import JsonObject
from pushkit.errors import InvalidSignatureError
from pushkit.keys.jwk import Algorithm, public_pem
from pushkit.signing.jose import DetachedJws, at_once, find_verifying_key, sign_detached, sign_jwt
from pushkit.signing.notification_jwt import ask_pyjwt, read_unverified, verify_signature
from tests.jose import b64url, key

CLAIMS: JsonObject = {
    "iss": "https://a.example",
    "iat": 1767268800,
    "request_body_sha256": "0" * 64,
}


def refused_here(token: str, algorithm: Algorithm = Algorithm.ES256) -> bool:
    try:
        verify_signature(read_unverified(token), key(algorithm).to_verification_key())
    except InvalidSignatureError:
        return True
    return False


def refused_by_pyjwt(token: str, algorithm: Algorithm = Algorithm.ES256) -> bool:
    try:
        ask_pyjwt(token, key(algorithm).to_verification_key())
    except InvalidSignatureError:
        return True
    return False


# --- what one signs, the others verify -----------------------------------------------------------


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_pyjwt_and_jwcrypto_verify_what_is_signed_here(algorithm: Algorithm) -> None:
    token = at_once(sign_jwt(CLAIMS, key(algorithm)))
    assert not refused_by_pyjwt(token, algorithm)
    jws = JWS()
    jws.deserialize(token, JWK.from_pem(public_pem(key(algorithm))))
    assert json.loads(jws.payload) == CLAIMS


def test_pyjwt_reads_ids_of_any_alphabet_as_they_are_signed_here() -> None:
    claims = {**CLAIMS, "taskId": 'tâche-Ω-🙂 "\\', "configId": "\x00\x1f\u2028", "seq": 2**63 - 1}
    public = key(Algorithm.ES256).private_key.public_key()
    token = at_once(sign_jwt(claims, key(Algorithm.ES256)))
    read = jwt.decode(token, public, ["ES256"], {"verify_iat": False, "verify_exp": False})
    assert read == claims


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_signatures_by_pyjwt_and_jwcrypto_are_accepted(algorithm: Algorithm) -> None:
    signing = key(algorithm)
    by_pyjwt = jwt.encode(CLAIMS, signing.private_key, algorithm.value, {"kid": signing.kid})
    by_jwcrypto = JWS(json.dumps(CLAIMS).encode())
    header = json.dumps({"alg": algorithm.value, "kid": signing.kid})
    by_jwcrypto.add_signature(JWK.from_pyca(signing.private_key), None, header)
    for token in (by_pyjwt, by_jwcrypto.serialize(compact=True)):
        assert not refused_here(token, algorithm)


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_detached_signature_is_the_compact_one_without_its_payload(algorithm: Algorithm) -> None:
    payload, signing = b"anything \xff", key(algorithm)
    made = at_once(sign_detached(payload, {"typ": "JOSE"}, signing))
    assert not refused_by_pyjwt(f"{made.protected}.{b64url(payload)}.{made.signature}", algorithm)
    token = jwt.api_jws.encode(payload, signing.private_key, algorithm.value, {"kid": signing.kid})
    protected, _, signature = token.split(".")
    theirs = DetachedJws(protected=protected, signature=signature)
    public = signing.to_verification_key()
    assert find_verifying_key(theirs, payload, [public]) == public
    assert find_verifying_key(theirs, payload + b".", [public]) is None


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_jwcrypto_refuses_what_does_not_hold_here(algorithm: Algorithm) -> None:
    segments, _, signature = at_once(sign_jwt(CLAIMS, key(algorithm))).rpartition(".")
    raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
    raw[-1] ^= 1
    token = f"{segments}.{b64url(bytes(raw))}"
    assert refused_here(token, algorithm)
    assert refused_by_pyjwt(token, algorithm)
    jws = JWS()
    with pytest.raises(InvalidJWSSignature):
        jws.deserialize(token, JWK.from_pem(public_pem(key(algorithm))))


# --- what PyJWT refuses is refused here ----------------------------------------------------------

# Signed with the right key; `None` removes a member.
HEADERS: list[dict[str, Any]] = [
    {},
    {"alg": None},
    {"alg": "none"},
    {"alg": "NONE"},
    {"alg": "HS256"},
    {"alg": "es256"},
    {"alg": "RS256"},
    {"alg": "PS256"},
    {"alg": ["ES256"]},
    {"alg": 1},
    {"kid": 7},
    {"kid": False},
    {"kid": []},
    {"typ": "JOSE"},
    {"typ": 1},
    {"typ": None},
    {"crit": []},
    {"crit": ["exp"], "exp": 1},
    {"crit": ["b64"], "b64": True},
    {"crit": ["b64"], "b64": False},
    {"b64": False},
    {"b64": True},
    {"jwk": {"kty": "oct", "k": "AA"}},
    {"jku": "https://evil.example/"},
    {"x5c": ["AA"]},
    {"zip": "DEF"},
]


def signed(header: bytes) -> str:
    segments = f"{b64url(header)}.{b64url(json.dumps(CLAIMS).encode())}"
    algorithm = jwt.algorithms.get_default_algorithms()["ES256"]
    made = algorithm.sign(segments.encode(), key(Algorithm.ES256).private_key)
    return f"{segments}.{b64url(made)}"


def header_with(changes: dict[str, Any]) -> bytes:
    members = {"alg": "ES256", "kid": "k", "typ": "JWT", **changes}
    return json.dumps({k: v for k, v in members.items() if v is not None}).encode()


@pytest.mark.parametrize("changes", HEADERS, ids=str)
def test_a_header_that_pyjwt_refuses_is_refused(changes: dict[str, Any]) -> None:
    token = signed(header_with(changes))
    assert refused_here(token) or not refused_by_pyjwt(token)


def test_a_genuine_token_is_refused_by_neither() -> None:
    for changes in ({}, {"typ": None}, {"jku": "https://evil.example/"}):
        token = signed(header_with(changes))
        assert not refused_here(token)
        assert not refused_by_pyjwt(token)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
MEMBERS = st.sampled_from(
    ["alg", "kid", "typ", "cty", "crit", "b64", "jku", "jwk", "x5c", "x5t", "zip", "epk"]
)


@pytest.mark.parametrize(
    "header",
    [b'{"alg":"none","alg":"ES256"}', b'{"alg":"ES256","x":NaN}', b'{"alg":"ES256","x":"\xff"}'],
)
def test_a_header_that_json_libraries_read_in_two_ways_is_refused(header: bytes) -> None:
    assert refused_here(signed(header))


@given(st.dictionaries(MEMBERS, JSON | st.sampled_from(["ES256", "EdDSA", "JWT"]), max_size=4))
@example({"kid": None})
def test_any_header_that_pyjwt_refuses_is_refused_here(changes: dict[str, Any]) -> None:
    token = signed(json.dumps({"alg": "ES256", **changes}).encode())
    assert refused_here(token) or not refused_by_pyjwt(token)


@given(st.data())
def test_any_change_of_a_token_that_pyjwt_refuses_is_refused_here(data: st.DataObject) -> None:
    good = signed(header_with({}))
    place = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.sampled_from("AQg-_.=+/ \u0661") | st.just(""))
    changed = good[:place] + other + good[place + 1 :]
    assert refused_here(changed) or not refused_by_pyjwt(changed)
