"""Recognises RSA keys in PEM that are for RSASSA-PSS alone (RFC 4055 §3.1).

Their object identifier says so, and the libraries drop it: to them, each is an RSA key like others.
"""

from __future__ import annotations

import base64
import re
from typing import Final

from pushkit.errors import ConfigError

_PEM: Final = re.compile(
    rb"-----BEGIN (PRIVATE KEY|PUBLIC KEY|CERTIFICATE)-----([A-Za-z0-9+/=\s]+)-----END"
)
_RSASSA_PSS: Final = bytes.fromhex("2a864886f70d01010a")
_SHA256: Final = bytes.fromhex("0609608648016503040201")
_SEQUENCE: Final = 0x30
# The members of RSASSA-PSS-params, by their tags (RFC 4055 §3.1).
_HASH, _MASK, _SALT_LENGTH = 0xA0, 0xA1, 0xA2
_PS256_SALT_BYTES: Final = 32  # RFC 7518 §3.5


def is_rsassa_pss(pem: bytes) -> bool:
    """Return whether the first key or certificate in PEM is an RSA key for RSASSA-PSS alone.

    It must have been read as a key by a library; one that is encrypted is not recognised.

    Raises:
        ConfigError: It is, but not with the parameters of PS256.
    """
    found = _PEM.search(pem)
    if found is None:
        return False
    [(_, document)] = _members(base64.b64decode(found[2]))
    if found[1] == b"CERTIFICATE":  # RFC 5280 §4.1
        (_, certificate), *_ = _members(document)
        members = [(tag, value) for tag, value in _members(certificate) if tag != 0xA0]
        document = members[5][1]  # subjectPublicKeyInfo
    # PKCS#8 has a version before it (RFC 5958 §2).
    identifier = next(value for tag, value in _members(document) if tag == _SEQUENCE)
    (_, algorithm), *parameters = _members(identifier)
    if algorithm != _RSASSA_PSS:
        return False
    if parameters and not _allow_ps256(parameters[0][1]):
        raise ConfigError("the key is for RSASSA-PSS with another hash than PS256 has (SHA-256)")
    return True


def _allow_ps256(parameters: bytes) -> bool:
    found = dict(_members(parameters))
    salt = int.from_bytes(found[_SALT_LENGTH][2:], "big") if _SALT_LENGTH in found else 20
    # Both are SHA-1 if they are left out.
    hashes = (found.get(_HASH, b""), found.get(_MASK, b""))
    return all(_SHA256 in each for each in hashes) and salt <= _PS256_SALT_BYTES


def _members(der: bytes) -> list[tuple[int, bytes]]:
    """Return tags and contents of the values in DER (X.690 §8.1), of which none has a long tag."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            of_length = length & 0x7F
            length, at = int.from_bytes(der[at : at + of_length], "big"), at + of_length
        found.append((tag, der[at : at + length]))
        at += length
    return found
