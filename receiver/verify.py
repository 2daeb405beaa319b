"""Steps 3 to 5: signature, time and ids, token. Pure: keys, hashes and `now` come in.

Numbered as in the wire profile §4.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from pushkit.bounded_json import read_json
from pushkit.errors import (
    ClaimError,
    DigestMismatchError,
    InvalidSignatureError,
    MalformedJsonError,
    TokenError,
)
from pushkit.keys.jwk import VerificationKey
from pushkit.signing.audience import audience_of
from pushkit.signing.notification_jwt import (
    UnverifiedJwt,
    VerifiedJwt,
    body_sha256,
    check_audience,
    check_body,
    check_issuer,
    check_times,
    check_webhook_id,
    verify_signature,
)
from pushkit.signing.token import hash_token, read_token, token_matches
from pushkit.webhook import Headers, WebhookRequest
from receiver.trust import PresentedToken, SenderProfile, TrustedSender

__all__ = ["Verified", "presented_token", "verify_credentials", "verify_signed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What is proven about a request once its signature holds.

    Attributes:
        delivery_id: `jti`; for a sender without ids, the hash of what it signed.
        kid: The key.
        issued_at: `iat`.
        task_id: The signed `taskId`, if the sender states one.
        config_id: The signed `configId`, if any.
        seq: The signed `seq`, if any.
        body_sha256: Of the raw body as received.
    """

    delivery_id: str
    kid: str
    issued_at: datetime
    task_id: str | None
    config_id: str | None
    seq: int | None
    body_sha256: str


def verify_signed(
    request: WebhookRequest,
    token: UnverifiedJwt,
    key: VerificationKey,
    sender: TrustedSender,
    *,
    own_url: str,
    now: datetime,
) -> Verified:
    """Do steps 3 and 4.

    Args:
        request: The request, with the raw body.
        token: Its JWT, parsed.
        key: The sender's key that the JWT names.
        sender: The sender.
        own_url: The URL of this webhook, from the configuration.
        now: The receiver's clock.

    Raises:
        InvalidSignatureError: The signature does not hold, or is over another body.
        ClaimError: Outside the window, or for another issuer or audience.
        MalformedRequestError: The ids disagree.
    """
    claims = verify_signature(token, key, algorithms=sender.algorithms)
    _check_signed_body(claims, request.body, sender.profile)
    check_times(claims, now, tolerance=sender.tolerance)
    if sender.profile is SenderProfile.STANDARD:
        _check_standard_claims(claims, sender, request.target, own_url)
    check_webhook_id(claims, request.headers)
    return Verified(
        delivery_id=claims.delivery_id or _id_of_signed(token),
        kid=claims.kid,
        issued_at=claims.issued_at,
        task_id=claims.task_id,
        config_id=claims.config_id,
        seq=claims.seq,
        body_sha256=body_sha256(request.body),
    )


def presented_token(headers: Headers, sender: TrustedSender) -> PresentedToken | None:
    """Do the part of step 5 that needs no database.

    Returns:
        The token that arrived, None without one. One that is not static may still be one that was
        registered.

    Raises:
        TokenError: Two different tokens, or none where one is required.
    """
    token = read_token(headers)
    if token is None:
        if sender.token_required:
            raise TokenError("no token, expected the one that was handed to this sender")
        return None
    static = token_matches(token, [hash_token(known) for known in sender.tokens])
    return PresentedToken(sha256=hash_token(token), static=static)


def verify_credentials(headers: Headers, credentials: Collection[str]) -> None:
    """Do the other part of step 5: the static credentials that the sender was given.

    Raises:
        TokenError: None of them arrived.
    """
    if not credentials:
        return
    found = [headers.one("Authorization") or "", headers.one("X-Api-Key") or ""]
    matches = [
        hmac.compare_digest(_hash_credential(value), _hash_credential(known))
        for value in found
        for known in credentials
    ]
    if not any(matches):
        raise TokenError("the credentials are not those that were handed to this sender")


def _hash_credential(value: str) -> str:
    # RFC 9110 §11.1: the name of a scheme compares case-insensitively, what follows does not.
    scheme, space, credentials = value.partition(" ")
    return hash_token(f"{scheme.lower()} {credentials}" if space else value)


def _id_of_signed(token: UnverifiedJwt) -> str:
    """Return an id for a sender without ids: the hash of what it signed.

    Without the signature itself, of which an attacker could make other spellings.
    """
    signing_input = token.token.rpartition(".")[0]
    return f"jws_{hashlib.sha256(signing_input.encode()).hexdigest()}"


def _check_standard_claims(
    claims: VerifiedJwt, sender: TrustedSender, target: str, own_url: str
) -> None:
    if claims.delivery_id is None or claims.expires_at is None:
        raise ClaimError("the JWT must state `jti` and `exp`")
    if "." in claims.delivery_id:
        raise ClaimError("`jti` has a `.`, which Standard Webhooks forbids")
    if sender.issuer is not None:
        check_issuer(claims, sender.issuer)
    audiences = [audience_of(url) for url in sender.audience or [own_url]]
    check_audience(claims, audiences, target)


def _check_signed_body(claims: VerifiedJwt, body: bytes, profile: SenderProfile) -> None:
    try:
        check_body(claims, body)
    except DigestMismatchError:
        if profile is not SenderProfile.A2A_SAMPLES:
            raise
        check_body(claims, _reserialised(body))


def _reserialised(body: bytes) -> bytes:
    """Return the body as the first A2A samples hash it: parsed, and written compactly.

    Their sender hashes this form and posts what its HTTP client makes of the same object.
    """
    try:
        value = read_json(body)
    except MalformedJsonError as exc:
        raise InvalidSignatureError("the signed hash is not the body's, which is no JSON") from exc
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")
