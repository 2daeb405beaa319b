"""A public key under which anybody could sign is refused, and one for RSASSA-PSS is for PS256."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from pushkit.bounded_json import JsonObject
from pushkit.cards import load_public_keys
from pushkit.errors import ConfigError, JwksError, KeyFileError
from pushkit.keys.jwk import (
    Algorithm,
    VerificationKey,
    generate_key,
    public_jwk,
    public_pem,
    signing_key_from_pem,
    signing_key_to_pem,
    verification_key,
    verification_key_from_pem,
)
from pushkit.keys.jwks import parse_jwks
from pushkit.signing.standard_webhooks import read_verifier
from tests.jose import b64url, key, vectors
from tests.refusals import refused_unless

P = 2**255 - 19
SIGN = 1 << 255
# The y of the points of order 8; see the list in libsodium's `ed25519_ref10.c` (`has_small_order`).
Y8 = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
SMALL_ORDER = (0, 1, P - 1, P, P + 1, Y8, P - Y8)
RSA = key(Algorithm.RS256)
N = RSA.private_key.public_key().public_numbers().n  # type: ignore[union-attr]


def point(number: int) -> ed25519.Ed25519PublicKey:
    return ed25519.Ed25519PublicKey.from_public_bytes(number.to_bytes(32, "little"))


Key = ed25519.Ed25519PublicKey | rsa.RSAPublicKey


def jwk_of(key: Key) -> JsonObject:
    if isinstance(key, rsa.RSAPublicKey):
        numbers = key.public_numbers()
        n, e = (number.to_bytes(1025, "big").lstrip(b"\0") for number in (numbers.n, numbers.e))
        return {"kty": "RSA", "kid": "k", "n": b64url(n), "e": b64url(e)}
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return {"kty": "OKP", "kid": "k", "crv": "Ed25519", "x": b64url(raw)}


def pem_of(key: Key) -> bytes:
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def by_jwks(key: Key, _folder: Path) -> None:
    [(_, reason)] = parse_jwks(json.dumps({"keys": [jwk_of(key)]}).encode()).refused
    raise JwksError(reason)


def by_pem(key: Key, _folder: Path) -> None:
    verification_key_from_pem(pem_of(key))


def by_trust_file(key: Key, folder: Path) -> None:
    (folder / "key.pem").write_bytes(pem_of(key))
    load_public_keys(folder / "key.pem")


def by_hand(key: Key, _folder: Path) -> None:
    VerificationKey.of(key)


def rsa_key(bits: int, exponent: int = 65537) -> rsa.RSAPublicKey:
    """Return a key whose large factors are unknown, and not needed."""
    odd = range((1 << bits) - 1, 0, -2)
    modulus = next(n for n in odd if all(n % factor for factor in range(3, 752, 2)))
    return rsa.RSAPublicNumbers(exponent, modulus).public_key()


def degenerate_keys() -> list[object]:
    points = [
        pytest.param(point(y | sign), "is a point of small order|canonical", id=f"small-{i}-{s}")
        for i, y in enumerate(SMALL_ORDER)
        for s, sign in enumerate((0, SIGN))
    ]
    # Of the 19 values from p on, those that are points of large order when reduced.
    points += [
        pytest.param(point(P + 3), "canonical", id="not-canonical"),
        pytest.param(point(2), "no point of the curve", id="off-curve"),
    ]
    odd = range(math.isqrt(N) | 1, N, 2)
    root = next(n for n in odd if all(n % factor for factor in range(3, 752, 2)))
    moduli = {
        "even": N + 1,
        "two-to-the-2047": 2**2047,
        "small-factor": N - N % 751 if (N - N % 751) % 2 else N - N % 751 + 751,
        "square": root**2,
    }
    made = {name: rsa.RSAPublicNumbers(65537, n).public_key() for name, n in moduli.items()}
    return [*points, *(pytest.param(key, "modulus is even", id=name) for name, key in made.items())]


@pytest.mark.parametrize("read", [by_jwks, by_pem, by_trust_file, by_hand])
@pytest.mark.parametrize(("key", "says"), degenerate_keys())
def test_a_key_under_which_anybody_can_sign_is_refused(
    tmp_path: Path, key: Key, says: str, read: Callable[[Key, Path], None]
) -> None:
    with pytest.raises((JwksError, KeyFileError, ConfigError), match=says):
        read(key, tmp_path)


@pytest.mark.parametrize("y", SMALL_ORDER)
def test_a_webhook_key_of_small_order_is_refused(y: int) -> None:
    encoded = base64.b64encode(y.to_bytes(32, "little")).decode()
    with pytest.raises(ConfigError, match=r"small order|canonical"):
        read_verifier(f"whpk_{encoded}")


@pytest.mark.parametrize(
    ("key", "accepted"),
    [
        pytest.param(rsa_key(2047), False, id="2047 bits"),
        pytest.param(rsa_key(2048), True, id="2048 bits"),
        pytest.param(rsa_key(8192), True, id="8192 bits"),
        pytest.param(rsa_key(8193), False, id="8193 bits"),
        pytest.param(rsa_key(2048, 2**31 - 1), True, id="the largest exponent"),
        pytest.param(rsa_key(2048, 2**31 + 1), False, id="a larger exponent"),
    ],
)
def test_an_rsa_key_is_neither_weak_nor_slow(key: rsa.RSAPublicKey, *, accepted: bool) -> None:
    with refused_unless(accepted, JwksError, "RSA key"):
        assert verification_key(jwk_of(key)).algorithm is Algorithm.RS256


@pytest.mark.parametrize("exponent", [0, 1, 2, 65536])
def test_an_exponent_that_is_no_key_is_refused(exponent: int) -> None:
    e = exponent.to_bytes(3, "big").lstrip(b"\0") or b"\0"
    with pytest.raises(JwksError):
        verification_key({"kty": "RSA", "n": b64url(N.to_bytes(256, "big")), "e": b64url(e)})


@pytest.mark.parametrize("algorithm", [Algorithm.ES256, Algorithm.ES384])
def test_an_ec_point_off_its_curve_is_refused(algorithm: Algorithm) -> None:
    jwk = public_jwk(generate_key(algorithm))
    with pytest.raises(JwksError, match="not a valid public key"):
        verification_key({**jwk, "y": jwk["x"]})
    zero = b64url(bytes(32 if algorithm is Algorithm.ES256 else 48))
    with pytest.raises(JwksError, match="not a valid public key"):
        verification_key({**jwk, "x": zero, "y": zero})


def test_an_ec_point_in_pem_is_on_its_curve_and_not_at_infinity() -> None:
    lines = public_pem(generate_key(Algorithm.ES256)).splitlines()
    der = bytearray(base64.b64decode(b"".join(lines[1:-1])))
    der[-1] ^= 1
    infinity = bytes.fromhex("3019301306072a8648ce3d020106082a8648ce3d03010703020000")
    for wrong in (bytes(der), infinity):
        pem = b"\n".join((lines[0], base64.b64encode(wrong), lines[-1]))
        with pytest.raises(KeyFileError, match="not a public key"):
            verification_key_from_pem(pem)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_real_keys_are_accepted(algorithm: Algorithm) -> None:
    for _ in range(2 if "S256" in algorithm else 40):
        key = generate_key(algorithm).to_verification_key()
        assert verification_key(public_jwk(key)) == key


# --- keys for RSASSA-PSS alone (RFC 4055 §3.1) ---------------------------------------------------

ENCRYPTED = signing_key_to_pem(RSA, b"horse")


def private_pss() -> bytes:
    """Return a PKCS#8 PEM of the RSA key that is for RSASSA-PSS."""
    pkcs1 = RSA.private_key.private_bytes(
        Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    )
    key = b"\x04\x82" + len(pkcs1).to_bytes(2, "big") + pkcs1
    content = bytes.fromhex("020100 300b 0609 2a864886f70d01010a") + key
    der = b"\x30\x82" + len(content).to_bytes(2, "big") + content
    return b"-----BEGIN PRIVATE KEY-----\n%b-----END PRIVATE KEY-----\n" % base64.encodebytes(der)


@pytest.mark.parametrize("given", [None, Algorithm.PS256, Algorithm.RS256])
@pytest.mark.parametrize("vector", vectors("rsassa_pss"), ids=lambda vector: vector["id"])
def test_a_public_key_for_pss_is_for_ps256(
    vector: dict[str, str | None], given: Algorithm | None
) -> None:
    accepted = vector["algorithm"] == "PS256" and given is not Algorithm.RS256
    with refused_unless(accepted, KeyFileError, "RSASSA-PSS"):
        key = verification_key_from_pem((vector["pem"] or "").encode(), algorithm=given)
        assert key.algorithm is Algorithm.PS256


@pytest.mark.parametrize("given", [None, Algorithm.PS256, Algorithm.RS256])
def test_a_private_key_for_pss_is_for_ps256(given: Algorithm | None) -> None:
    with refused_unless(given is not Algorithm.RS256, KeyFileError, "PS256 .RSASSA-PSS., not"):
        assert signing_key_from_pem(private_pss(), algorithm=given).algorithm is Algorithm.PS256


def test_an_encrypted_rsa_key_needs_its_algorithm_stated() -> None:
    with pytest.raises(KeyFileError, match="RS256 or PS256"):
        signing_key_from_pem(ENCRYPTED, b"horse")
    for algorithm in (Algorithm.RS256, Algorithm.PS256):
        read = signing_key_from_pem(ENCRYPTED, b"horse", algorithm=algorithm)
        assert read.algorithm is algorithm
