from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import JwksError
from pushkit.keys.jwk import Algorithm, generate_key, public_jwk
from pushkit.keys.jwks import KeySet, jwks_document, jwks_response, parse_jwks
from pushkit.keys.ring import KeyRing
from tests.refusals import refused_unless

START = datetime(2026, 1, 1, tzinfo=UTC)
KEY = generate_key(Algorithm.ES256)
SAME_TYPE = generate_key(Algorithm.ES256)
OTHER = generate_key(Algorithm.EDDSA)
RING = KeyRing.create(START).add(START).add(START, Algorithm.EDDSA)
ETAG = jwks_response(RING, START).headers["ETag"]


def kids(found: KeySet) -> list[str]:
    return [key.kid for key in found.keys]


def jwks(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_a_document_has_the_published_keys_and_no_private_member() -> None:
    keys = json.loads(jwks_document(RING, START))["keys"]
    assert {key["kid"] for key in keys} == {entry.kid for entry in RING.keys}
    assert all("d" not in key for key in keys)


def test_a_document_depends_on_the_published_keys_only() -> None:
    rotated = RING.rotate(START)
    assert [e.kid for e in rotated.keys] != [e.kid for e in RING.keys]
    assert jwks_document(rotated, START + timedelta(hours=0)) == jwks_document(RING, START)


def test_a_revoked_key_is_not_in_the_document() -> None:
    document = jwks_document(RING.revoke(RING.keys[1].kid, START), START)
    assert [key.kid.encode() in document for key in RING.keys[:2]] == [True, False]


def test_a_document_is_read_back() -> None:
    read = parse_jwks(jwks_document(RING, START))
    published = [entry.key.to_verification_key() for entry in RING.keys]
    assert sorted(read.keys, key=attrgetter("kid")) == sorted(published, key=attrgetter("kid"))
    assert read.refused == ()


def test_the_answer_says_its_type_and_how_long_it_may_be_cached() -> None:
    ring = KeyRing.create(START, max_age=timedelta(seconds=120))
    answer = jwks_response(ring, START)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/jwk-set+json"
    assert answer.headers["Cache-Control"] == "public, max-age=120"
    assert answer.body == jwks_document(ring, START)


def test_the_entity_tag_is_strong_and_changes_with_the_keys() -> None:
    assert ETAG.startswith('"')
    assert jwks_response(RING.add(START), START).headers["ETag"] != ETAG


@pytest.mark.parametrize(
    ("if_none_match", "status"),
    [
        pytest.param(None, 200, id="absent"),
        pytest.param("", 200, id="empty"),
        pytest.param(ETAG, 304, id="same"),
        pytest.param(f"W/{ETAG}", 304, id="weak"),
        pytest.param(f'"a,b", W/"c" , {ETAG}', 304, id="list"),
        pytest.param(" * ", 304, id="any"),
        pytest.param('"other"', 200, id="other"),
        pytest.param(ETAG.strip('"'), 200, id="unquoted"),
        pytest.param('"*"', 200, id="a star that is a tag"),
    ],
)
def test_if_none_match(if_none_match: str | None, status: int) -> None:
    answer = jwks_response(RING, START, if_none_match)
    assert answer.status == status
    assert bool(answer.body) == (status == 200)
    assert answer.headers["ETag"] == ETAG
    assert "Cache-Control" in answer.headers


def test_a_key_without_kid_gets_its_thumbprint() -> None:
    jwk = public_jwk(KEY)
    del jwk["kid"]
    assert kids(parse_jwks(jwks(jwk))) == [KEY.kid]


@pytest.mark.parametrize(
    ("key", "name", "reason"),
    [
        pytest.param({"kty": "oct", "k": "AA", "kid": "s"}, "s", "symmetric", id="symmetric"),
        pytest.param({**public_jwk(OTHER), "d": "AA", "kid": "p"}, "p", "private", id="private"),
        pytest.param({**public_jwk(OTHER), "alg": "RS256", "kid": "m"}, "m", "alg is", id="alg"),
        pytest.param({"kty": "AKP"}, "keys[0]", "not supported", id="unknown type"),
        pytest.param("text", "keys[0]", "expected an object", id="no object"),
        pytest.param({"kty": "EC", "kid": "a\nb\u2028"}, "a\\nb\\u2028", "", id="kid for a log"),
    ],
)
def test_a_bad_key_is_left_out_with_its_reason(key: Any, name: str, reason: str) -> None:
    read = parse_jwks(jwks(key, public_jwk(KEY)))
    assert kids(read) == [KEY.kid]
    [(refused, because)] = read.refused
    assert refused == name
    assert reason in because


def test_different_keys_of_one_kid_and_algorithm_are_all_left_out() -> None:
    first, second = public_jwk(KEY), public_jwk(SAME_TYPE) | {"kid": KEY.kid}
    for order in ((first, second), (second, first), (first, second, first)):
        read = parse_jwks(jwks(*order))
        assert read.keys == []
        assert read.refused == ((KEY.kid, "several different keys for ES256"),)


def test_keys_of_one_kid_for_several_algorithms_are_all_kept() -> None:
    shared = [public_jwk(key) | {"kid": "1"} for key in (KEY, OTHER)]
    ambiguous = public_jwk(SAME_TYPE) | {"kid": "1"}
    assert [key.algorithm for key in parse_jwks(jwks(*shared)).keys] == ["ES256", "EdDSA"]
    assert [key.algorithm for key in parse_jwks(jwks(*shared, ambiguous)).keys] == ["EdDSA"]


def test_the_same_key_twice_is_one_key() -> None:
    assert kids(parse_jwks(jwks(public_jwk(KEY), public_jwk(KEY)))) == [KEY.kid]


def test_a_set_without_keys_is_a_set() -> None:
    assert parse_jwks(b'{"keys":[],"more":1}') == KeySet(keys=[])


def test_the_most_keys_are_accepted() -> None:
    keys = [{**public_jwk(KEY), "kid": f"k{n}"} for n in range(32)]
    assert len(parse_jwks(jwks(*keys)).keys) == 32


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"<html>", id="html"),
        pytest.param(b"[]", id="array"),
        pytest.param(b"{}", id="no keys"),
        pytest.param(b'{"keys":{}}', id="keys no array"),
        pytest.param(b'{"keys":[],"keys":[]}', id="twice"),
        pytest.param(b'{"keys":' + b"[" * 100 + b"]" * 100 + b"}", id="deep"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(jwks(*[{}] * 33), id="many"),
    ],
)
def test_a_document_that_is_no_set_is_refused(body: bytes) -> None:
    with pytest.raises(JwksError):
        parse_jwks(body)


@pytest.mark.parametrize(("octets", "read"), [(65536, True), (65537, False)])
def test_a_jwk_set_has_64_kib_at_most(octets: int, *, read: bool) -> None:
    document = b'{"keys":[]}'.ljust(octets)

    with refused_unless(read, JwksError, "larger than 65536"):
        assert parse_jwks(document).keys == []


@given(body=st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode()))
def test_any_bytes_end_in_a_set_or_in_one_error(body: bytes) -> None:
    with suppress(JwksError):
        parse_jwks(body)
