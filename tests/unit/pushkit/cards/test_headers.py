"""A signature's headers, as A2A 1.0 §8.4.2 and RFC 7515 say."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import jwt
import pytest

from pushkit.cards import CardVerdict, TrustedKeys, canonicalize, verify_card
from pushkit.cards.document import MAX_SIGNATURES
from pushkit.cards.forms import CardForm
from pushkit.errors import MalformedCardError
from pushkit.keys.jwk import Algorithm, generate_key, public_pem, verification_key_from_pem
from tests.unit.pushkit.cards.vectors import KEY, NOW, SIGNING_KEY, TRUST, as_bytes, load, signature

CARD = load("cards_v10")["c21_spec_85_sample"]
PAYLOAD = canonicalize(CARD, CardForm.SPEC).payload


def entry(protected: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Sign the card with a header of the test's making."""
    return {**signature(PAYLOAD, protected), **more}


def raw_entry(protected: bytes, **more: Any) -> dict[str, Any]:
    """Sign the card under a header of the test's own bytes."""
    signed = base64.urlsafe_b64encode(protected).rstrip(b"=").decode()
    payload = base64.urlsafe_b64encode(PAYLOAD).rstrip(b"=").decode()
    algorithm = jwt.PyJWS().get_algorithm_by_name("ES256")
    made = algorithm.sign(f"{signed}.{payload}".encode(), SIGNING_KEY.private_key)
    encoded = base64.urlsafe_b64encode(made).rstrip(b"=").decode()
    return {"protected": signed, "signature": encoded, **more}


def verify(*entries: Any) -> CardVerdict:
    return verify_card(as_bytes({**CARD, "signatures": list(entries)}), TRUST, now=NOW)


GOOD = entry({"typ": "JOSE", "pushkit-form": "spec"})


def test_a_good_signature() -> None:
    verdict = verify(GOOD)
    assert verdict.verified
    assert verdict.warnings == ()
    assert verdict.require() is verdict


@pytest.mark.parametrize(
    ("made", "note"),
    [
        pytest.param(entry({}), "no `typ`", id="no-typ"),
        pytest.param(entry({"typ": "jose"}), None, id="typ-in-lower-case"),
        pytest.param(entry({"typ": "JOSE+JSON"}), None, id="typ-jose-json"),
        pytest.param(entry({"typ": "JWT"}), None, id="typ-of-the-python-sdk"),
        pytest.param(entry({"typ": "application/jose"}), None, id="typ-in-full"),
        pytest.param(raw_entry(b'{"alg":"ES256","typ":"JOSE"}'), "no `kid`", id="no-kid"),
        pytest.param(
            raw_entry(b'{"alg":"ES256","typ":"JOSE","kid":"another name"}'), None, id="other-kid"
        ),
        pytest.param(
            entry({"typ": "JOSE"}, header={"x": 1}), "unprotected header", id="unprotected"
        ),
        pytest.param(entry({"typ": "JOSE"}, header=None), None, id="unprotected-null"),
        pytest.param(
            entry({"typ": "JOSE", "jku": "https://evil.example.com/jwks.json"}),
            "not a trusted URL",
            id="untrusted-jku",
        ),
        pytest.param(entry({"typ": "JOSE", "x-more": [1]}), None, id="unknown-member"),
    ],
)
def test_headers_that_are_allowed(made: dict[str, Any], note: str | None) -> None:
    verdict = verify(made)
    assert verdict.verified, verdict.reason
    assert [warning for warning in verdict.warnings if note and note in warning] or note is None


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        pytest.param(entry({"crit": ["exp"], "exp": 1}), "crit", id="crit"),
        pytest.param(entry({"crit": []}), "crit", id="crit-empty"),
        pytest.param(entry({"b64": False, "crit": ["b64"]}), "crit", id="b64-crit"),
        pytest.param(entry({"b64": True}), "b64", id="b64"),
        pytest.param(entry({"typ": "at+jwt"}), "typ", id="typ-of-a-token"),
        pytest.param(entry({"typ": "text/jose"}), "typ", id="typ-of-a-text"),
        pytest.param(entry({"typ": 5}), "typ", id="typ-is-a-number"),
        pytest.param(entry({"jku": ["https://a"]}), "jku", id="jku-is-a-list"),
        pytest.param(raw_entry(b'{"alg":"ES256","kid":7}'), "kid", id="kid-is-a-number"),
        pytest.param(raw_entry(b'{"alg":"none"}'), "alg", id="alg-none"),
        pytest.param(raw_entry(b'{"alg":"HS256","kid":"key-1"}'), "alg", id="alg-symmetric"),
        pytest.param(raw_entry(b'{"kid":"key-1"}'), "alg", id="no-alg"),
        pytest.param(raw_entry(b'{"alg":["ES256"]}'), "alg", id="alg-is-a-list"),
        pytest.param(
            raw_entry(b'{"kid":"key-1"}', header={"alg": "ES256"}), "alg", id="alg-unprotected"
        ),
        pytest.param(raw_entry(b'{"alg":"RS256"}'), "no trusted key is for RS256", id="alg-other"),
        pytest.param(
            raw_entry(b'{"alg":"ES256","alg":"ES256"}'), "same member twice", id="duplicate"
        ),
        pytest.param(raw_entry(b'["ES256"]'), "object", id="header-is-a-list"),
        pytest.param(raw_entry(b"{"), "not JSON", id="header-is-not-json"),
        pytest.param(raw_entry(b'{"a":"\xff"}'), "UTF-8", id="header-is-not-utf-8"),
        pytest.param(raw_entry(b"[" * 9000), "characters", id="header-is-long"),
        pytest.param({**GOOD, "header": {"kid": "key-1"}}, "both headers", id="kid-twice"),
        pytest.param({**GOOD, "header": {"crit": ["x"]}}, "protected header", id="crit-outside"),
        pytest.param({**GOOD, "header": []}, "`header`", id="unprotected-list"),
        pytest.param({**GOOD, "signature": GOOD["signature"] + "=="}, "padding", id="padded"),
        pytest.param({**GOOD, "protected": GOOD["protected"] + "="}, "padding", id="padded-header"),
        pytest.param({**GOOD, "signature": "A"}, "base64url", id="no-whole-byte"),
        pytest.param({**GOOD, "signature": "AAAA"}, "invalid", id="shorter"),
        pytest.param({**GOOD, "signature": ""}, "base64url", id="empty"),
        pytest.param({**GOOD, "signature": "ü"}, "base64url", id="not-ascii"),
        pytest.param({**GOOD, "signature": "A" * 5000}, "characters", id="long"),
        pytest.param({**GOOD, "signature": None}, "strings", id="null"),
        pytest.param({"signature": GOOD["signature"]}, "strings", id="no-header"),
        pytest.param("x", "object", id="not-an-object"),
        pytest.param(None, "object", id="null-entry"),
    ],
)
def test_a_signature_that_is_refused_says_why_and_stops_no_other(made: Any, reason: str) -> None:
    alone = verify(made)
    assert not alone.verified
    assert reason in alone.reason
    for verdict in (verify(made, GOOD), verify(GOOD, made)):
        assert verdict.verified
        assert sum(found.accepted for found in verdict.signatures) == 1


def test_a_last_character_with_bits_left_over_is_another_spelling() -> None:
    last = GOOD["signature"][-1]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    spelled = GOOD["signature"][:-1] + alphabet[alphabet.index(last) ^ 1]
    verdict = verify({**GOOD, "signature": spelled})
    assert "canonical base64url" in verdict.reason


CHANGED, OTHER_KEY = "the card was changed after it was signed", "it was signed with another key"
UNNAMED = "every trusted key, none of which has its `kid`"
PEM = TrustedKeys.pinned(verification_key_from_pem(public_pem(KEY)))


@pytest.mark.parametrize(
    ("kid", "trust", "tried", "cause"),
    [
        pytest.param(
            "key-1",
            TRUST,
            "the trusted key with its `kid`",
            f"{CHANGED}, or signed by another key under this `kid`, or in a form that is not known",
            id="known",
        ),
        pytest.param("other", TRUST, UNNAMED, OTHER_KEY, id="unknown"),
        pytest.param("other", PEM, UNNAMED, f"{OTHER_KEY}, or {CHANGED}; to know, give", id="pem"),
        pytest.param("x" * 43, PEM, UNNAMED, OTHER_KEY, id="pem-and-a-thumbprint"),
        pytest.param(None, TRUST, "every trusted key", f"{OTHER_KEY}, or {CHANGED}", id="none"),
    ],
)
def test_a_signature_by_another_key_does_not_hold(
    kid: str | None, trust: TrustedKeys, tried: str, cause: str
) -> None:
    stranger = generate_key(Algorithm.ES256)
    entries = [signature(PAYLOAD, {"typ": "JOSE", "kid": kid}, stranger)]
    verdict = verify_card(as_bytes({**CARD, "signatures": entries}), trust, now=NOW)
    assert not verdict.verified
    reason = verdict.reason.partition("it is invalid under ")[2]
    assert reason.startswith(f"{tried}, in any form: {cause}")
    assert ("changed" in reason) is ("changed" in cause)
    assert ("to know" in reason) is ("to know" in cause)
    assert verdict.best is None


def test_a_card_that_is_not_signed() -> None:
    for card in (CARD, {**CARD, "signatures": []}, {**CARD, "signatures": None}):
        verdict = verify_card(as_bytes(card), TRUST, now=NOW)
        assert not verdict.verified
        assert verdict.reason == "the card is not signed"


@pytest.mark.parametrize("signatures", [{}, "x", 5, [GOOD] * (MAX_SIGNATURES + 1)])
def test_signatures_that_are_no_list_of_a_sensible_length(signatures: Any) -> None:
    with pytest.raises(MalformedCardError, match="signatures"):
        verify_card(as_bytes({**CARD, "signatures": signatures}), TRUST, now=NOW)


def test_a_member_twice_makes_the_card_malformed() -> None:
    content = as_bytes({**CARD, "signatures": [GOOD]})
    twice = b'{"version": "6.6.6", ' + content.removeprefix(b"{")
    assert json.loads(twice)["version"] == CARD["version"]  # the last one, for many readers
    with pytest.raises(MalformedCardError, match="same member twice"):
        verify_card(twice, TRUST, now=NOW)
