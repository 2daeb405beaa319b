"""Cards of a2a-go, by its golden vector, and of a2a-rust, as its release signs them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pushkit.cards import EVERY_SDK, CardForm, TrustedKeys, sign_card, verify_card
from pushkit.keys.jwk import signing_key_from_pem, verification_key
from tests.jose import b64url
from tests.unit.pushkit.cards.vectors import FOLDER, NOW, TRUST, as_bytes, each

GOLDEN: dict[str, Any] = json.loads((FOLDER / "golden_a2a_go.json").read_bytes())
GO_KEY = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(GOLDEN["ed25519_seed_hex"]))


def go_trust() -> TrustedKeys:
    x = b64url(GO_KEY.public_key().public_bytes_raw())
    jwk = {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": GOLDEN["kid"], "alg": "EdDSA"}
    return TrustedKeys.pinned(verification_key(jwk))


def signed_by_go(card: dict[str, Any]) -> bytes:
    """Sign as a2a-go does from 2.6 on: RFC 8785 of the JSON as served, nothing dropped."""
    protected = GOLDEN["card"]["signatures"][0]["protected"]
    signed = f"{protected}.{b64url(rfc8785.dumps(card))}".encode()
    signature = {"protected": protected, "signature": b64url(GO_KEY.sign(signed))}
    return as_bytes({**card, "signatures": [signature]})


def test_the_golden_card_of_a2a_go_verifies() -> None:
    verdict = verify_card(as_bytes(GOLDEN["card"]), go_trust(), now=NOW)
    assert verdict.verified, verdict.reason
    assert verdict.best is not None
    assert CardForm.RAW in verdict.best.forms


def test_the_signature_that_is_made_here_is_the_golden_one() -> None:
    card = {name: value for name, value in GOLDEN["card"].items() if name != "signatures"}
    assert json.loads(signed_by_go(card)) == GOLDEN["card"]


def test_a_nil_list_of_go_is_covered_by_the_raw_form() -> None:
    card = {name: value for name, value in GOLDEN["card"].items() if name != "signatures"}
    content = signed_by_go({**card, "skills": None, "defaultInputModes": None})
    verdict = verify_card(content, go_trust(), now=NOW)
    assert verdict.verified, verdict.reason
    assert verdict.best is not None
    assert verdict.best.form is CardForm.RAW
    assert verdict.uncovered == ()


def holds(protected: str, payload: bytes, signature: str) -> bool:
    signed = f"{protected}.{b64url(payload)}".encode()
    try:
        GO_KEY.public_key().verify(base64.urlsafe_b64decode(f"{signature}=="), signed)
    except InvalidSignature:
        return False
    return True


def go_accepts(card: dict[str, Any]) -> bool:
    """Say whether a signature is over RFC 8785 of the JSON as served, as its verifier asks."""
    payload = rfc8785.dumps({name: value for name, value in card.items() if name != "signatures"})
    return any(holds(e["protected"], payload, e["signature"]) for e in card["signatures"])


@pytest.mark.parametrize(
    ("forms", "accepted"), [(None, 16), (EVERY_SDK, 20)], ids=["default", "every"]
)
def test_every_card_that_is_signed_for_every_sdk_is_one_for_a2a_go(
    forms: tuple[CardForm, ...] | None, accepted: int
) -> None:
    pem = GO_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    key = signing_key_from_pem(pem, kid=GOLDEN["kid"])
    cards = json.loads((FOLDER / "cards_v10.json").read_bytes())
    del cards["c19_params_big_int"]  # which has no RFC 8785 form
    signed = [sign_card(card, key, forms, now=NOW).card for card in cards.values()]
    assert sum(map(go_accepts, signed)) == accepted
    assert not any(go_accepts({**card, "name": "Other"}) for card in signed)


@pytest.mark.parametrize(("name", "card", "wire"), each("signed_rs_0.15.0"))
def test_what_a2a_rust_signs_counts_without_being_admitted(
    name: str, card: str, wire: dict[str, Any]
) -> None:
    verdict = verify_card(as_bytes(wire), TRUST, now=NOW)
    # It rounds an integer that no double is; the specification's form has none for it.
    assert verdict.verified is (card != "c19_params_big_int"), (name, verdict.reason)
