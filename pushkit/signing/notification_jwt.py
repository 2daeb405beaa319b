"""The notification JWT: the default signature of a push notification (wire profile §3).

It is a compact JWS whose claims bind one attempt to one delivery, one webhook and one body. The
receiver verifies it in steps, because it must know the sender before it can look for a key:

1. `read_unverified` parses the token, which claims a `kid` and an issuer.
2. `verify_signature` proves the claims with the key that the caller trusts for them.
3. `check_body`, `scheme.check_times`, `check_issuer`, `check_audience` and `check_webhook_id`
   compare the proven claims with the request.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Coroutine, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import compress
from typing import Any, TypeVar

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.clock import TOKEN_LIFETIME
from pushkit.errors import (
    AudienceError,
    DigestMismatchError,
    InvalidSignatureError,
    IssuerError,
    MalformedRequestError,
)
from pushkit.keys.jwk import Algorithm, RemoteKey, SigningKey, VerificationKey
from pushkit.keys.primitives import signature_holds
from pushkit.logs import printable
from pushkit.record import field, record
from pushkit.signing.jose import (
    Sign,
    media_type,
    protected_header,
    read_compact,
    read_object,
    sign,
    sign_jwt,
)
from pushkit.signing.scheme import read_moment
from pushkit.url import audience_with_query, masked_url
from pushkit.webhook import Headers

SIGNATURE_HEADER = "X-A2A-Signature"

_MAX_SEQ = 2**63 - 1  # the largest integer of a database column
_LIFETIME = int(TOKEN_LIFETIME.total_seconds())
_SHOWN_URLS = 3
_TEXTS = ("iss", "jti", "taskId", "configId", "request_body_sha256")
_TEXT_OR_ABSENT = frozenset({str, type(None)})


# --- signing ------------------------------------------------------------------------------------


def body_sha256(body: bytes) -> str:
    """Return the lower-case hex SHA-256 of a raw body."""
    return hashlib.sha256(body).hexdigest()


def static_claims(
    *, issuer: str, audience: str | None, task_id: str, config_id: str
) -> Mapping[str, JsonValue]:
    """Return the claims that are the same in every notification of one subscription.

    `issuer` is the sender, as configured. `audience` is the webhook URL, normalised; None only in
    the `a2a-samples` profile.
    """
    claims = {"iss": issuer, "taskId": task_id, "configId": config_id}
    return claims if audience is None else {**claims, "aud": audience}


def sign_notification(
    static: Mapping[str, JsonValue],  # see `static_claims`
    key: SigningKey | RemoteKey,
    *,
    issued_at: int,  # `iat`: the time of this attempt, in seconds since the epoch
    delivery_id: str,  # `jti`: the same on every retry
    seq: int,  # 1, 2, 3… per subscription and task
    body_sha256: str,  # `request_body_sha256`: lower-case hex of the raw body
    sign: Sign = sign,
) -> Coroutine[Any, Any, str]:
    """Return the compact JWS of one attempt; see `jose.at_once` for a key of this process.

    Raises:
        SigningError: The remote key failed, or its signature does not verify.
    """
    claims = {
        **static,
        "iat": issued_at,
        "exp": issued_at + _LIFETIME,
        "jti": delivery_id,
        "seq": seq,
        "request_body_sha256": body_sha256,
    }
    return sign_jwt(claims, key, sign)


# --- reading ------------------------------------------------------------------------------------


@record(frozen=True, slots=True, kw_only=True)
class UnverifiedJwt:
    """A well-formed token and its claims. Nothing in it is proven."""

    token: str = field(repr=False)
    kid: str | None
    algorithm: str
    issuer: str | None
    signed: bytes = field(repr=False, compare=False)  # what the signature is over
    signature: bytes = field(repr=False, compare=False)
    claims: JsonObject = field(repr=False, compare=False)


@record(frozen=True, slots=True, kw_only=True)
class JwtClaims:
    """Claims, proven or not; None for those that the sender left out.

    The first A2A samples and trpc-a2a-go state only `iat` and the body's hash.
    """

    kid: str
    issuer: str | None
    audience: tuple[str, ...]
    issued_at: datetime
    expires_at: datetime | None
    not_before: datetime | None
    delivery_id: str | None
    task_id: str | None
    config_id: str | None
    seq: int | None
    body_sha256: str


@record(frozen=True, slots=True, kw_only=True)
class VerifiedJwt(JwtClaims):
    """Claims under a valid signature."""


_Claims = TypeVar("_Claims", bound=JwtClaims)


def find_jwt(headers: Headers) -> str | None:
    """Return the notification JWT of a request: `X-A2A-Signature`, else a Bearer token.

    `Authorization` may carry the client's own static credentials instead: a Bearer value without
    the three segments of a compact JWS.
    """
    token = headers.one(SIGNATURE_HEADER)
    if token is not None:
        return token
    scheme, _, value = (headers.one("Authorization") or "").partition(" ")
    value = value.strip(" ")
    return value if scheme.lower() == "bearer" and value.count(".") == 2 else None


def read_unverified(token: str) -> UnverifiedJwt:
    """Parse a token without trusting it.

    Raises:
        InvalidSignatureError: Not a compact JWS, or its header has members that are not understood.
    """
    signed, protected, payload, signature = read_compact(token)
    kid, algorithm = _kid_and_algorithm(protected)
    claims = read_object(payload, "payload")
    issuer = claims.get("iss")
    return UnverifiedJwt(
        token=token,
        kid=kid,
        algorithm=algorithm,
        issuer=issuer if isinstance(issuer, str) else None,
        signed=signed,
        signature=signature,
        claims=claims,
    )


@lru_cache(maxsize=256)  # as for `protected_header`
def _kid_and_algorithm(segment: str) -> tuple[str | None, str]:
    """Return the `kid` and the `alg` that a protected header names."""
    header = protected_header(segment)
    if media_type(str(header.get("typ", "JWT"))) != "jwt":
        raise InvalidSignatureError("the JWS header's `typ` is not JWT")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or ("kid" in header and not isinstance(kid, str)):
        raise InvalidSignatureError("the JWS header's `alg` and `kid` must be strings")
    return kid if isinstance(kid, str) else None, algorithm


def verify_signature(
    unverified: UnverifiedJwt,
    key: VerificationKey,
    *,
    algorithms: Collection[Algorithm] = frozenset(Algorithm),
) -> VerifiedJwt:
    """Prove a token with the key that is trusted for its `kid`, by the key's own algorithm.

    Raises:
        InvalidSignatureError: The algorithm is not the key's, the signature is invalid, or claims
            are missing or of a wrong type.
    """
    if key.algorithm not in algorithms:
        raise InvalidSignatureError(f"this sender may not sign with {key.algorithm}")
    if not _names_algorithm(unverified, key):
        raise InvalidSignatureError("the JWS header names another algorithm than its key has")
    if not signature_holds(key, unverified.signed, unverified.signature):
        raise InvalidSignatureError("the signature of the JWT is invalid")
    return _read_claims(VerifiedJwt, unverified.claims, key.kid)


def _names_algorithm(unverified: UnverifiedJwt, key: VerificationKey) -> bool:
    named, own = unverified.algorithm, key.algorithm
    return named == own or Algorithm.parse(named) is own


def ask_pyjwt(token: str, key: VerificationKey) -> None:
    """Verify a JWT with PyJWT, as a second opinion for `pushkit verify` and `pushkit doctor`.

    It shares no code with `jose.py`, which alone decides whether a request is accepted.

    Raises:
        InvalidSignatureError: PyJWT refuses it.
    """
    import jwt  # only these commands need it

    jws = jwt.PyJWS(algorithms=[key.algorithm.value])
    names = [key.algorithm.value]
    if key.algorithm is Algorithm.EDDSA:
        names.append("Ed25519")  # RFC 9864's name of the algorithm
        jws.register_algorithm("Ed25519", jwt.algorithms.OKPAlgorithm())
    try:
        jws.decode(token, key.public_key, algorithms=names)
    except (jwt.PyJWTError, ValueError) as exc:
        raise InvalidSignatureError(f"pushkit accepts it, but PyJWT refuses it: {exc}") from exc


def read_unverified_claims(unverified: UnverifiedJwt) -> JwtClaims:
    """Return the claims of an unproven token, to explain a refusal; never accept by them.

    Raises:
        InvalidSignatureError: Claims are missing or of a wrong type.
    """
    return _read_claims(JwtClaims, unverified.claims, unverified.kid or "")


def _read_claims(kind: type[_Claims], claims: JsonObject, kid: str) -> _Claims:
    texts: Any = tuple(map(claims.get, _TEXTS))
    if "" in texts or not _TEXT_OR_ABSENT.issuperset(map(type, texts)):
        wrong = (value is not None and not (isinstance(value, str) and value) for value in texts)
        name = next(compress(_TEXTS, wrong))
        raise InvalidSignatureError(f"claim `{name}`: expected a non-empty string")
    issuer, delivery_id, task_id, config_id, digest = texts
    issued_at, expires_at = _moment(claims, "iat"), _moment(claims, "exp")
    not_before = _moment(claims, "nbf")
    if issued_at is None or digest is None:
        raise InvalidSignatureError("the JWT must state `iat` and `request_body_sha256`")
    seq = claims.get("seq")
    if seq is not None and (
        not isinstance(seq, int) or isinstance(seq, bool) or not 1 <= seq <= _MAX_SEQ
    ):
        raise InvalidSignatureError("claim `seq`: expected a positive integer of 64 bits")
    return kind(
        kid=kid,
        issuer=issuer,
        audience=_audience(claims.get("aud")),
        issued_at=issued_at,
        expires_at=expires_at,
        not_before=not_before,
        delivery_id=delivery_id,
        task_id=task_id,
        config_id=config_id,
        seq=seq,
        body_sha256=digest,
    )


def _moment(claims: JsonObject, name: str) -> datetime | None:
    value = claims.get(name)
    if value is not None:
        return read_moment(value, "claim", name)
    if name in claims:  # only an absent claim may be None
        raise InvalidSignatureError(f"claim `{name}`: expected seconds since the epoch, found null")
    return None


def _audience(value: JsonValue) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(entry, str) for entry in values):
        raise InvalidSignatureError("claim `aud`: expected a string or a list of strings")
    return tuple(map(str, values))


# --- comparing the proven claims with the request (wire profile §4) ------------------------------


def check_body(verified: JwtClaims, sha256: str, length: int) -> None:
    """Compare the hash of the received body (`body_sha256`), of so many bytes, with the signed one.

    Raises:
        DigestMismatchError: The signature is for another body.
    """
    if not hmac.compare_digest(verified.body_sha256.encode(), sha256.encode()):
        raise DigestMismatchError(
            f"request_body_sha256 is not the SHA-256 of the body received, of {length} bytes"
        )


def check_issuer(verified: JwtClaims, issuer: str) -> None:
    """Raise IssuerError unless the issuer is the trusted one."""
    if verified.issuer != issuer:
        raise IssuerError(f"`iss` is {printable(verified.issuer)}, expected {issuer}")


def check_audience(verified: JwtClaims, audiences: Collection[str], target: str) -> None:
    """Raise AudienceError if a notification was signed for another webhook.

    `audiences` are the receiver's own URLs from its configuration, normalised. `aud` may also have
    the query of the request `target`.
    """
    if not set(audiences).isdisjoint(verified.audience):
        return
    with_query = [audience_with_query(own, target) for own in audiences]
    if set(with_query).isdisjoint(verified.audience):
        raise AudienceError(
            f"`aud` is {_shown(verified.audience)}, expected {_shown(audiences)}: the URL of"
            " this receiver followed by the path of the sender, or the sender's `audience`"
        )


def _shown(urls: Collection[str]) -> str:
    shown = [printable(masked_url(url)) for url in urls]
    more = f" and {len(shown) - _SHOWN_URLS} more" if len(shown) > _SHOWN_URLS else ""
    return " or ".join(shown[:_SHOWN_URLS]) + more if shown else "none"


def check_webhook_id(verified: JwtClaims, headers: Headers) -> None:
    """Raise MalformedRequestError if `webhook-id` is not the signed `jti` (wire profile §2)."""
    webhook_id = headers.one("webhook-id")
    if webhook_id is not None and verified.delivery_id not in (None, webhook_id):
        raise MalformedRequestError("`webhook-id` and the signed `jti` differ")
