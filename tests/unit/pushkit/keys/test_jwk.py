from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from pushkit.errors import ConfigError, JwksError, KeyFileError
from pushkit.keys.jwk import (
    Algorithm,
    SigningKey,
    generate_key,
    public_jwk,
    public_pem,
    signing_key_from_pem,
    signing_key_to_pem,
    thumbprint,
    verification_key,
    verification_key_from_pem,
)
from tests.jose import key, vectors
from tests.refusals import refused_unless

# Generating 2048 bits takes each test worker half a second.
WEAK_DSA = dsa.generate_private_key(key_size=1024)  # noqa: S505 - refused
WEAK_RSA = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - refused
EC_KEY, RSA_KEY = key(Algorithm.ES256), key(Algorithm.RS256)
KEYS = {
    Algorithm.ES256: EC_KEY,
    Algorithm.ES384: key(Algorithm.ES384),
    Algorithm.EDDSA: key(Algorithm.EDDSA),
    Algorithm.RS256: RSA_KEY,
    Algorithm.PS256: SigningKey(
        kid=RSA_KEY.kid, algorithm=Algorithm.PS256, private_key=RSA_KEY.private_key
    ),
}


@pytest.mark.parametrize("vector", vectors("rfc7638"), ids=lambda vector: vector["id"])
def test_thumbprints_are_those_of_the_specifications(vector: dict[str, Any]) -> None:
    jwk = {name: value for name, value in vector["jwk"].items() if name != "kid"}
    key = verification_key(jwk)
    assert key.kid == vector["thumbprint"]
    assert thumbprint(key.public_key) == vector["thumbprint"]


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_public_jwk_has_only_public_members(algorithm: Algorithm) -> None:
    jwk = public_jwk(KEYS[algorithm])
    assert set(jwk) <= {"kty", "crv", "x", "y", "n", "e", "alg", "kid", "use"}
    assert (jwk["alg"], jwk["use"]) == (algorithm.value, "sig")


@pytest.mark.parametrize("passphrase", [None, b"correct horse"], ids=["plain", "encrypted"])
@pytest.mark.parametrize("algorithm", Algorithm)
def test_pem_keeps_the_key(algorithm: Algorithm, passphrase: bytes | None) -> None:
    key = KEYS[algorithm]
    pem = signing_key_to_pem(key, passphrase)
    read = signing_key_from_pem(pem, passphrase, algorithm=algorithm)
    assert read.to_verification_key() == key.to_verification_key()
    assert pem.startswith(b"-----BEGIN ENCRYPTED PRIVATE" if passphrase else b"-----BEGIN PRIVATE")


@pytest.mark.parametrize("octets", [0, 1023, 1024])
def test_a_passphrase_that_openssl_does_not_take_is_refused(octets: int) -> None:
    passphrase = b"p" * octets
    with refused_unless(octets == 1023, KeyFileError, f"1 to 1023 bytes, found {octets}"):
        read = signing_key_from_pem(signing_key_to_pem(EC_KEY, passphrase), passphrase)
        assert read.kid == EC_KEY.kid


@pytest.mark.parametrize("algorithm", [Algorithm.RS256, Algorithm.PS256])
def test_a_generated_rsa_key_has_2048_bits(algorithm: Algorithm) -> None:
    assert generate_key(algorithm).private_key.key_size == 2048  # type: ignore[union-attr]


@pytest.mark.parametrize(("length", "accepted"), [(0, False), (1, True), (256, True), (257, False)])
def test_a_kid_has_1_to_256_characters(length: int, *, accepted: bool) -> None:
    with refused_unless(accepted, ConfigError, "1 to 256"):
        key = SigningKey(
            kid="k" * length, algorithm=EC_KEY.algorithm, private_key=EC_KEY.private_key
        )
        assert len(key.to_verification_key().kid) == length


def test_the_kid_and_algorithm_of_a_pem_follow_from_the_key() -> None:
    read = signing_key_from_pem(signing_key_to_pem(KEYS[Algorithm.PS256]))
    assert (read.kid, read.algorithm) == (RSA_KEY.kid, Algorithm.RS256)


@pytest.mark.parametrize("key", [EC_KEY, EC_KEY.to_verification_key()], ids=["private", "public"])
def test_a_repr_shows_no_key_material(key: object) -> None:
    assert "_key" not in repr(key)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("EdDSA", Algorithm.EDDSA, id="rfc8037"),
        pytest.param("Ed25519", Algorithm.EDDSA, id="rfc9864"),
        pytest.param("ES256", Algorithm.ES256, id="es256"),
        pytest.param("none", None, id="none"),
        pytest.param("HS256", None, id="symmetric"),
        pytest.param("es256", None, id="case"),
    ],
)
def test_an_algorithm_is_read_by_its_names(name: str, expected: Algorithm | None) -> None:
    assert Algorithm.parse(name) is expected


@pytest.mark.parametrize(
    ("of", "change"),
    [
        pytest.param(Algorithm.EDDSA, {"alg": "Ed25519"}, id="the newer name of Ed25519"),
        pytest.param(Algorithm.ES256, {"key_ops": ["verify"]}, id="key_ops"),
        *(
            pytest.param(Algorithm.RS256, {member: None}, id=f"{member} null")
            for member in ("alg", "crv", "d", "key_ops", "kid", "use", "x5c")
        ),
    ],
)
def test_a_jwk_may_say_more_or_less(of: Algorithm, change: dict[str, Any]) -> None:
    key = KEYS[of]
    assert verification_key(public_jwk(key) | change) == key.to_verification_key()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"d": "AQAB"}, "private members", id="private"),
        pytest.param({"k": "AQAB"}, "private members", id="symmetric member"),
        pytest.param({"kty": "oct", "k": "AQAB"}, "symmetric", id="symmetric"),
        pytest.param({"use": "enc"}, "use is", id="use"),
        pytest.param({"key_ops": ["sign"]}, "key_ops", id="key_ops"),
        pytest.param({"key_ops": "verify"}, "key_ops", id="key_ops no list"),
        pytest.param({"alg": "RS256"}, "alg is", id="alg of another type"),
        pytest.param({"alg": "ES384"}, "alg is", id="alg of another curve"),
        pytest.param({"alg": "HS256"}, "alg is", id="alg symmetric"),
        pytest.param({"alg": ["ES256"]}, "alg is", id="alg no string"),
        pytest.param({"crv": "P-521"}, "not supported", id="curve"),
        pytest.param({"crv": "secp256k1"}, "not supported", id="bitcoin curve"),
        pytest.param({"crv": "P-384", "alg": None}, "not a valid", id="wrong curve"),
        pytest.param({"crv": ["P-256"]}, "strings", id="curve no string"),
        pytest.param({"kty": "AKP"}, "not supported", id="type"),
        pytest.param({"kty": None}, "strings", id="no type"),
        pytest.param({"x": 5}, "not a valid", id="coordinate no string"),
        pytest.param({"kid": 5}, "kid is", id="kid no string"),
        pytest.param({"kid": ""}, "kid", id="kid empty"),
        pytest.param({"use": "x" * 9999}, "…", id="long values are cut"),
        pytest.param(
            {"kty": "RSA", "n": "AQAB", "e": "AQAB", "alg": None}, "valid|bits", id="tiny rsa"
        ),
    ],
)
def test_one_wrong_member_refuses_a_jwk(change: dict[str, Any], message: str) -> None:
    with pytest.raises(JwksError, match=message):
        verification_key(public_jwk(EC_KEY) | change)


MEMBERS = st.sampled_from(["kty", "crv", "x", "y", "n", "e", "alg", "kid", "use", "key_ops", "d"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=50)
    | st.sampled_from(["EC", "RSA", "OKP", "P-256", "Ed25519", "AQAB", "sig", "RS256"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(change=st.dictionaries(MEMBERS, VALUES), base=st.sampled_from(sorted(KEYS)))
def test_any_members_end_in_a_key_or_in_one_error(change: dict[str, Any], base: Algorithm) -> None:
    with suppress(JwksError):
        verification_key(public_jwk(KEYS[base]) | change)


def test_a_key_for_another_algorithm_cannot_be_made() -> None:
    with pytest.raises(ConfigError, match="for ES256, not for RS256"):
        SigningKey(kid="k", algorithm=Algorithm.RS256, private_key=EC_KEY.private_key)


def _pkcs8(key: Any) -> bytes:
    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem


@pytest.mark.parametrize(
    ("pem", "passphrase", "message"),
    [
        pytest.param(signing_key_to_pem(EC_KEY, b"right"), b"wrong", "wrong", id="wrong"),
        pytest.param(signing_key_to_pem(EC_KEY, b"right"), None, "is encrypted", id="missing"),
        pytest.param(signing_key_to_pem(EC_KEY), b"right", "not encrypted", id="too many"),
        pytest.param(b"junk", None, "not a private key", id="junk"),
        pytest.param(public_pem(EC_KEY), None, "public one", id="public"),
        pytest.param(
            _pkcs8(ec.generate_private_key(ec.SECP256K1())), None, "not supported", id="curve"
        ),
        pytest.param(_pkcs8(WEAK_DSA), None, "supported type", id="dsa"),
        pytest.param(_pkcs8(WEAK_RSA), None, "1024 bits", id="weak"),
    ],
)
def test_a_wrong_pem_is_refused(pem: bytes, passphrase: bytes | None, message: str) -> None:
    with pytest.raises(KeyFileError, match=message):
        signing_key_from_pem(pem, passphrase)


# --- public keys in PEM -------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_public_key_in_pem(algorithm: Algorithm) -> None:
    key = KEYS[algorithm]
    found = verification_key_from_pem(public_pem(key), algorithm=algorithm)
    assert found == key.to_verification_key()
    assert verification_key_from_pem(public_pem(key), kid="k", algorithm=algorithm).kid == "k"


def test_a_certificate_is_its_public_key() -> None:
    key = EC_KEY
    assert isinstance(key.private_key, ec.EllipticCurvePrivateKey)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "agent")])
    at = datetime(2020, 1, 1, tzinfo=UTC)  # expired: the dates are ignored
    builder = x509.CertificateBuilder(name, name, key.private_key.public_key(), 1, at, at)
    pem = builder.sign(key.private_key, hashes.SHA256()).public_bytes(Encoding.PEM)
    assert verification_key_from_pem(pem) == key.to_verification_key()


@pytest.mark.parametrize(
    ("pem", "algorithm", "reason"),
    [
        pytest.param(b"", None, "not a public key", id="empty"),
        pytest.param(b"-----BEGIN PUBLIC KEY-----\n", None, "not a public key", id="cut"),
        pytest.param(signing_key_to_pem(EC_KEY), None, "private one", id="private"),
        pytest.param(public_pem(EC_KEY), Algorithm.RS256, "not for", id="algorithm"),
    ],
)
def test_a_pem_without_a_public_key_is_refused(
    pem: bytes, algorithm: Algorithm | None, reason: str
) -> None:
    with pytest.raises(KeyFileError, match=reason):
        verification_key_from_pem(pem, algorithm=algorithm)
