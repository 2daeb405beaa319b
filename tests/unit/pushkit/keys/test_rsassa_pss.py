"""An RSA key in PEM that is for RSASSA-PSS is for PS256 (RFC 4055 §3.1)."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pushkit.errors import KeyFileError
from pushkit.keys.jwk import (
    Algorithm,
    generate_key,
    signing_key_from_pem,
    signing_key_to_pem,
    verification_key_from_pem,
)
from tests.refusals import refused_unless

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "rsassa_pss.json").read_text())[
    "vectors"
]
RSA = generate_key(Algorithm.RS256)
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
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["id"])
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
