from __future__ import annotations

import pytest

from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key
from pushkit.keys.primitives import (
    ed25519_public_bytes,
    ed25519_signing_key,
    ed25519_verification_key,
    sign_bytes,
    signature_holds,
)
from tests.jose import key

DATA = b"what is signed"
# RFC 8032 §7.1, test 2.
SEED = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


@pytest.mark.parametrize("algorithm", list(Algorithm))
def test_a_signature_verifies_with_its_data_and_key_alone(algorithm: Algorithm) -> None:
    signature = sign_bytes(key(algorithm), DATA)
    public = key(algorithm).to_verification_key()
    assert signature_holds(public, DATA, signature)
    assert not signature_holds(public, DATA + b".", signature)
    assert not signature_holds(generate_key(algorithm).to_verification_key(), DATA, signature)


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize(
    "mangle",
    [
        pytest.param(lambda good: good[:0], id="empty"),
        pytest.param(lambda good: good[:-1], id="shorter"),
        pytest.param(lambda good: good + b"\0", id="longer"),
        pytest.param(lambda good: bytes(len(good)), id="zeros"),
        pytest.param(lambda good: b"\xff" * len(good), id="ones"),
        pytest.param(lambda good: good[::-1], id="backwards"),
    ],
)
def test_bytes_that_are_no_signature_do_not_verify(algorithm: Algorithm, mangle: object) -> None:
    assert callable(mangle)
    signature = mangle(sign_bytes(key(algorithm), DATA))
    assert not signature_holds(key(algorithm).to_verification_key(), DATA, signature)


@pytest.mark.parametrize(
    ("algorithm", "length"),
    [(Algorithm.ES256, 64), (Algorithm.ES384, 96), (Algorithm.EDDSA, 64)],
)
def test_a_signature_on_a_curve_has_one_length(algorithm: Algorithm, length: int) -> None:
    assert {len(sign_bytes(key(algorithm), DATA)) for _ in range(64)} == {length}


def test_one_rsa_algorithm_does_not_pass_for_the_other() -> None:
    rsa = key(Algorithm.RS256)
    pss = SigningKey(kid="pss", algorithm=Algorithm.PS256, private_key=rsa.private_key)
    signature = sign_bytes(rsa, DATA)
    assert signature_holds(rsa.to_verification_key(), DATA, signature)
    assert not signature_holds(pss.to_verification_key(), DATA, signature)


def test_an_ed25519_key_is_its_32_bytes() -> None:
    signing = ed25519_signing_key(SEED)
    assert sign_bytes(signing, b"\x72") == SIGNATURE
    assert ed25519_public_bytes(signing) == PUBLIC
    verifying = ed25519_verification_key(PUBLIC)
    assert verifying.kid == signing.kid
    assert signature_holds(verifying, b"\x72", SIGNATURE)


def test_other_lengths_and_types_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected 32"):
        ed25519_verification_key(b"k" * 31)
    with pytest.raises(ConfigError, match="expected an Ed25519 key"):
        ed25519_public_bytes(key(Algorithm.ES256))
