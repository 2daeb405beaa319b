"""What has to be refused: each is a genuine request in which one thing is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from jwt.utils import base64url_decode, raw_to_der_signature

from tests.verification.interop.vectors import crypto
from tests.verification.interop.vectors.hostile_claims import hostile_claims
from tests.verification.interop.vectors.hostile_others import hostile_others
from tests.verification.interop.vectors.requests import (
    AUDIENCE,
    KEYS,
    NOW,
    claims_of,
    jwt_request,
    plain_request,
)
from tests.verification.interop.vectors.vector import Vector, refused

__all__ = ["hostile"]

_ATTACKER = KEYS["attacker"]
_OTHER_HEADER = crypto.b64url(b'{"alg":"ES256","kid":"es256"}')


def hostile() -> Iterator[Vector]:
    """Yield them, in the order of the steps that refuse them."""
    yield from _keys()
    yield from _forms()
    yield from hostile_claims()
    yield from hostile_others()


def _keys() -> Iterator[Vector]:
    """Yield what an attacker signs, or has signed by the wrong key."""
    yield refused("no-jwt", "no signature at all", by=plain_request, sender="agent")
    for alg in ("none", "None", "nOnE"):
        yield refused(f"alg-{alg}", "unsigned", header={"alg": alg}, key=b"")
    yield refused(
        "alg-none-kid-none", "unsigned, no key named", header={"alg": "none", "kid": None}, key=b""
    )
    yield refused("signature-stripped", "ES256, and an empty signature", key=b"")
    yield refused(
        "hs256-public-pem",
        "HMAC with the public key's PEM for a secret (RFC 8725 §2.1)",
        kid="rs256",
        header={"alg": "HS256"},
        key=crypto.public_pem(KEYS["rs256"]),
    )
    yield refused(
        "hs256-public-jwk",
        "HMAC with the public JWK for a secret",
        header={"alg": "HS256"},
        key=json.dumps(crypto.public_jwk(KEYS["es256"])).encode(),
    )
    yield refused(
        "hs256-empty-secret", "HMAC with a secret of one NUL", header={"alg": "HS256"}, key=b"\0"
    )
    yield refused("foreign-key", "a stranger's key, named as ours", key=_ATTACKER)
    yield refused("foreign-kid", "a stranger's key, by its own name", kid="attacker")
    yield refused(
        "kid-of-another-key",
        "signed by another key of the set than is named",
        kid="es256-next",
        key=KEYS["es256"],
    )
    yield refused(
        "kid-missing",
        "no key named, signed by one of the set: a verifier may try them all",
        level="may",
        header={"kid": None},
    )
    for kid in ("../../../../dev/null", "es256' OR '1'='1", ""):
        name = {"": "empty"}.get(kid, "path" if "/" in kid else "sql")
        yield refused(f"kid-{name}", "a kid that is none", header={"kid": kid}, key=_ATTACKER)
    public = crypto.public_jwk(_ATTACKER)
    yield refused(
        "jwk-in-header", "the message brings its own key", header={"jwk": public}, key=_ATTACKER
    )
    yield refused(
        "jwk-in-header-alone", "the same, by its own name", kid="attacker", header={"jwk": public}
    )
    yield refused(
        "jku-in-header",
        "the message says where its key is",
        kid="attacker",
        header={"jku": "https://attacker.example.net/jwks.json"},
    )
    yield refused(
        "alg-of-another-key", "RS256 named, the key is for ES256", header={"alg": "RS256"}
    )
    yield refused(
        "alg-of-no-key-with-the-kid",
        "two keys have this kid, and none is for ES256",
        header={"kid": "shared"},
    )
    yield refused(
        "alg-ps256-for-rs256",
        "the key is for RS256 alone",
        kid="rs256",
        header={"alg": "PS256"},
        key=KEYS["rs256"] | {"alg": "PS256"},
    )
    yield refused(
        "alg-rs256-for-ps256",
        "the key is for PS256 alone",
        kid="ps256",
        header={"alg": "RS256"},
        key=KEYS["ps256"] | {"alg": "RS256"},
    )


def _forms() -> Iterator[Vector]:
    """Yield what is no well-formed JWT, or one in another spelling."""
    genuine = _jwt()
    head, payload, signature = genuine.split(".")
    raw = base64url_decode(signature)
    for name, what, jwt in (
        (
            "zero-signature",
            "r and s are zero (CVE-2022-21449)",
            f"{head}.{payload}.{crypto.b64url(bytes(64))}",
        ),
        (
            "der-signature",
            "ECDSA as X.509 has it",
            f"{head}.{payload}.{crypto.b64url(raw_to_der_signature(raw, ec.SECP256R1()))}",
        ),
        ("short-signature", "one byte less", f"{head}.{payload}.{crypto.b64url(raw[:-1])}"),
        (
            "flipped-signature",
            "one bit",
            f"{head}.{payload}.{crypto.b64url(bytes([raw[0] ^ 1]) + raw[1:])}",
        ),
        (
            "changed-payload",
            "other claims under the signature",
            f"{head}.{_payload(seq=2)}.{signature}",
        ),
        (
            "changed-header",
            "another header over the signature",
            f"{_OTHER_HEADER}.{payload}.{signature}",
        ),
        ("not-a-jwt", "three segments of nothing", "a.b.c"),
    ):
        yield refused(name, what, jwt=jwt)
    yield refused("four-segments", "one too many", jwt=f"{genuine}.{signature}")
    yield refused("two-segments", "one too few", jwt=f"{head}.{payload}")
    harmless = "; a second spelling of a genuine one, which does no harm where jti is remembered"
    for name, what, jwt in (
        ("padded", "base64url with padding", f"{genuine}=="),
        (
            "last-bits",
            "bits left over in the last character",
            f"{head}.{payload}.{_other_spelling(signature)}",
        ),
        ("standard-base64", "+ and / in place of - and _", _standard_base64()),
    ):
        yield refused(name, what + harmless, level="may", jwt=jwt)
    yield refused(
        "crit",
        "an extension that must be understood (RFC 7515 §4.1.11)",
        header={"crit": ["x"], "x": 1},
    )
    yield refused(
        "crit-exp", "crit names a registered claim", header={"crit": ["exp"], "exp": NOW + 300}
    )
    yield refused(
        "b64-false", "an unencoded payload (RFC 7797)", header={"crit": ["b64"], "b64": False}
    )
    yield refused(
        "typ-other",
        "signed as another kind of token, by the sender itself",
        level="may",
        header={"typ": "at+jwt"},
    )
    for name, text in (("array", "[]"), ("text", '"x"'), ("broken", '{"iss":'), ("empty", "{}")):
        code = "invalid_signature" if name != "empty" else "unknown_sender"
        yield refused(f"payload-{name}", "signed, and no claims", code, payload=text)
    twice = json.dumps(claims_of())[:-1] + f', "aud": "{AUDIENCE}"}}'
    yield refused(
        "claims-twice",
        "a member twice, which parsers read differently; only the sender can sign it",
        level="may",
        payload=twice,
    )
    yield refused(
        "two-authorizations",
        "two JWTs, one of them genuine",
        "malformed_request",
        step=2,
        headers=[("Authorization", f"Bearer {_jwt(kid='attacker')}")],
    )
    yield refused(
        "two-jwts",
        "X-A2A-Signature is a stranger's, Authorization genuine: the first one counts",
        headers=[("X-A2A-Signature", _jwt(kid="attacker"))],
    )


# --- spellings of a genuine JWT ------------------------------------------------------------------


def _jwt(**changes: object) -> str:
    headers = jwt_request(**changes)["headers"]  # type: ignore[arg-type]
    found: str = next(value for name, value in headers if name == "Authorization")
    return found.removeprefix("Bearer ")


def _payload(**claims: Any) -> str:
    return crypto.b64url(json.dumps(claims_of(**claims)).encode())


def _other_spelling(segment: str) -> str:
    """Return 64 bytes with other bits behind their end: the last character has four spare ones."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return segment[:-1] + alphabet[alphabet.index(segment[-1]) ^ 1]


def _standard_base64() -> str:
    """Return a genuine JWT whose signature has `-` or `_`, with `+` and `/` in their place."""
    for number in range(100):
        jwt = _jwt(claims={"n": number})
        signed, _, signature = jwt.rpartition(".")
        if "-" in signature or "_" in signature:
            return f"{signed}.{signature.replace('-', '+').replace('_', '/')}"
    raise AssertionError
