"""Steps 3 and 4 of the verification: the signatures, and what they are over.

Each scheme of a sender has to hold. What a JWT or an HTTP message signature states is proven by the
head of a request; Standard Webhooks signs the body, so its headers are proven by `prove_body` only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pushkit.bounded_json import read_json
from pushkit.errors import (
    ClaimError,
    InboundError,
    InvalidSignatureError,
    KeysUnavailableError,
    MalformedJsonError,
    MalformedRequestError,
)
from pushkit.keys.jwk import VerificationKey
from pushkit.keys.jwks import key_for
from pushkit.logs import printable
from pushkit.signing.http_message_signatures import (
    TAG,
    UnverifiedHttpSignature,
    VerifiedHttpSignature,
    check_content_digest,
    verify_http_signature,
)
from pushkit.signing.notification_jwt import (
    UnverifiedJwt,
    VerifiedJwt,
    body_sha256,
    check_audience,
    check_body,
    check_issuer,
    check_webhook_id,
    verify_signature,
)
from pushkit.signing.scheme import Scheme, check_not_before, check_times, check_timestamp
from pushkit.signing.standard_webhooks import (
    UnverifiedWebhook,
    check_webhook_signature,
    read_unverified_webhook,
)
from pushkit.url import audience_with_query, masked_url
from pushkit.webhook import Headers
from receiver.request import Request
from receiver.selection import HeldKeys, Stated
from receiver.senders import SenderProfile, TrustedSender
from receiver.steps import Step, Trail

_MAX_ID_CHARS = 256
_MAX_ID_BYTES = 512


class SignedClaims(NamedTuple):
    """What the valid signatures of a head are over; None for a scheme that the sender omits."""

    sender: TrustedSender
    compact: str | None  # the JWT as it came
    jwt: VerifiedJwt | None
    signature: VerifiedHttpSignature | None
    webhook: UnverifiedWebhook | None  # not proven before `prove_body`

    @property
    def is_signed(self) -> bool:
        """Whether a signature of the head is valid."""
        return self.jwt is not None or self.signature is not None


# --- 3: the signatures ---------------------------------------------------------------------------


def verify_signatures(
    held: HeldKeys, stated: Stated, request: Request, audiences: Sequence[str]
) -> SignedClaims:
    """Do step 3, as far as it needs no body, by every scheme that the sender must use.

    Args:
        held: The sender, with its own keys.
        stated: The signatures that the request states.
        request: The request.
        audiences: The URLs of this webhook, from the configuration, as the sender may name it.

    Raises:
        InvalidSignatureError: A signature is missing or invalid, or by no key of this sender.
        KeysUnavailableError: The sender's keys could not be fetched.
        MalformedRequestError: The headers of a signature cannot be read.
    """
    sender, trail = held.sender, request.trail
    if sender.has_keys:
        trail.begun.append(Step.SIGNATURE)
    compact = jwt = signature = webhook = None
    if Scheme.JWT in sender.signing:
        unverified, key = _own_key(held, stated.jwt)
        compact = unverified.token
        jwt = verify_signature(unverified, key, algorithms=sender.algorithms)
    if Scheme.HTTP_MESSAGE_SIGNATURES in sender.signing:
        signature = _verified_signature(held, stated.signatures, request, audiences)
    if Scheme.STANDARD_WEBHOOKS in sender.signing:
        try:
            webhook = read_unverified_webhook(request.headers)
        except InboundError:
            if trail.step is not Step.SIGNATURE:  # else it begins with the body, which it is over
                trail.begun.append(Step.SIGNATURE)
            raise
    return SignedClaims(sender, compact, jwt, signature, webhook)


def prove_body(claims: SignedClaims, body: bytes, trail: Trail) -> str:
    """Do the rest of step 3: compare the body, and its hash, with what is signed; return the hash.

    Raises:
        DigestMismatchError: The signature covers another body.
        InvalidSignatureError: No Standard Webhooks signature is valid.
    """
    sender, jwt, signature, webhook = claims.sender, claims.jwt, claims.signature, claims.webhook
    if jwt is not None or signature is not None or webhook is not None:
        trail.begun.append(Step.BODY)
    sha256 = body_sha256(body)
    if jwt is not None:
        signed = sha256
        if sender.profile is SenderProfile.A2A_SAMPLES and jwt.body_sha256 != sha256:
            signed = body_sha256(_reserialised(body))
        check_body(jwt, signed, len(body))
    if signature is not None:
        check_content_digest(signature.digests, body, length=signature.length)
    if webhook is not None:
        check_webhook_signature(webhook, body, sender.verifiers)
        if not claims.is_signed:
            trail.begun.append(Step.SIGNATURE)  # it is over the body
    trail.sender = sender.name
    return sha256


def _own_key(held: HeldKeys, jwt: UnverifiedJwt | None) -> tuple[UnverifiedJwt, VerificationKey]:
    """Return the JWT, and the sender's key that it names."""
    if jwt is None:
        raise InvalidSignatureError(
            f"found no JWT, expected one signed by sender {held.sender.name}"
        )
    key = key_for(held.keys.get(jwt.kid or "", ()), jwt.algorithm)
    if key is None:
        raise _no_key(held, jwt.kid)
    return jwt, key


def _verified_signature(
    held: HeldKeys,
    signatures: Sequence[UnverifiedHttpSignature],
    request: Request,
    audiences: Sequence[str],
) -> VerifiedHttpSignature:
    """Return the first valid HTTP message signature: two keys may sign during a rotation."""
    if not signatures:
        raise InvalidSignatureError(
            f"found no HTTP message signature with tag {TAG}, expected one by sender"
            f" {held.sender.name}"
        )
    by_own = [(one, key) for one in signatures for key in held.keys.get(one.keyid, ())]
    if not by_own:
        raise _no_key(held, signatures[0].keyid)
    refusal: InvalidSignatureError
    for unverified, key in by_own:
        try:
            return verify_http_signature(
                unverified,
                key,
                method=request.method,
                # From the configuration, never from `Host`: this binds the signature to us.
                target_uris=[audience_with_query(url, request.target) for url in audiences],
                headers=request.headers,
                algorithms=held.sender.algorithms,
            )
        except InvalidSignatureError as exc:
            refusal = exc
    own = " or ".join(masked_url(url) for url in audiences)
    raise InvalidSignatureError(f"{refusal} (its @target-uri must be {own})") from refusal


def _no_key(held: HeldKeys, kid: str | None) -> InboundError:
    if held.missing is not None:
        return KeysUnavailableError(held.missing)
    return InvalidSignatureError(
        f"found kid {printable(kid)}, expected a trusted key of sender {held.sender.name}: its JWK"
        " Set must have the key that signs now"
    )


def _reserialised(body: bytes) -> bytes:
    """Return the body as the first A2A samples hash it: parsed, and written compactly.

    Their sender hashes this form, and its HTTP client may post the same object in another form.
    """
    try:
        value = read_json(body)
    except MalformedJsonError as exc:
        raise InvalidSignatureError(
            "the signed hash is not that of the body, which is not JSON"
        ) from exc
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")


# --- 4: times, issuer, audience, ids -------------------------------------------------------------


def check_claims(
    claims: SignedClaims, request: Request, audiences: Sequence[str], now: datetime
) -> str | None:
    """Do step 4: compare what is signed with the time, the configuration and the request.

    Returns:
        The delivery id: with a JWT its `jti`, or the hash of its signing input; else the signed
        `webhook-id`; for an unsigned sender the id that its headers state, if any.

    Raises:
        ClaimError: Outside the window, or for another issuer or audience.
        MalformedRequestError: The ids disagree, or cannot be stored.
    """
    sender, compact, jwt, signature, webhook = claims
    begin = request.trail.begun.append
    if jwt is not None or signature is not None or webhook is not None:
        begin(Step.TIME)
    if jwt is not None:
        _check_times(jwt, sender, now)
    if signature is not None:
        check_times(signature.issued_at, signature.expires_at, now, sender.tolerance)
    if webhook is not None:
        check_timestamp(webhook.timestamp, now, sender.tolerance)
    if jwt is not None and sender.profile is SenderProfile.STANDARD:
        if sender.issuer is not None:
            begin(Step.ISSUER)
            check_issuer(jwt, sender.issuer)
        begin(Step.AUDIENCE)
        check_audience(jwt, audiences, request.target)
    elif signature is not None:
        begin(Step.AUDIENCE)  # its `@target-uri`, which is proven by now
    begin(Step.IDS)
    if jwt is not None and compact is not None:
        _check_signed_ids(jwt, sender, request.headers)
        # Every scheme signs `webhook-id`, and `jti` was compared with it.
        delivery_id = jwt.delivery_id or _id_of_signed(compact)
    elif signature is not None:
        delivery_id = bounded_id(signature.delivery_id)
    elif webhook is not None:
        return webhook.delivery_id
    else:
        return _stated_id(request.headers, sender)
    request.trail.sender = sender.name
    return delivery_id


def _check_times(jwt: VerifiedJwt, sender: TrustedSender, now: datetime) -> None:
    check_times(jwt.issued_at, jwt.expires_at, now, sender.tolerance)
    if jwt.not_before is not None:
        check_not_before(jwt.not_before, now, sender.tolerance)
    if jwt.expires_at is None and sender.profile is SenderProfile.STANDARD:
        raise ClaimError("the JWT must state `exp`")


def _check_signed_ids(jwt: VerifiedJwt, sender: TrustedSender, headers: Headers) -> None:
    if sender.profile is SenderProfile.STANDARD:
        if jwt.delivery_id is None:
            raise ClaimError("the JWT must state `jti`")
        if "." in jwt.delivery_id:
            raise ClaimError("`jti` has a `.`, which Standard Webhooks forbids")
    check_webhook_id(jwt, headers)
    check_ids(jwt.delivery_id, jwt.config_id, jwt.task_id)


def _id_of_signed(compact: str) -> str:
    """Return an id for a sender without ids: the hash of the JWT's signing input.

    The signature is left out of the hash: an attacker could spell it in other ways.
    """
    signing_input = compact.rpartition(".")[0]
    return f"jws_{hashlib.sha256(signing_input.encode()).hexdigest()}"


def _stated_id(headers: Headers, sender: TrustedSender) -> str | None:
    """Return the id that the headers of an unsigned request state, if any.

    By default that is `webhook-id`, which Standard Webhooks keeps the same on every retry.
    """
    name = "webhook-id" if sender.id_field is None else sender.id_field
    stated = None if name.startswith("/") else headers.one(name)
    return bounded_id(stated) if stated else None


def bounded_id(stated: str) -> str:
    """Return an id that an unsigned text states. Raises MalformedRequestError: It is no id."""
    if len(stated) > _MAX_ID_CHARS or not stated.isprintable():
        raise MalformedRequestError(
            f"the delivery id: expected at most {_MAX_ID_CHARS} printable characters"
        )
    return stated


def check_ids(*ids: str | None) -> None:
    """Refuse ids that not every database can index: too long, or with a NUL (PostgreSQL)."""
    for stated in ids:
        if stated is not None and ("\0" in stated or len(stated.encode()) > _MAX_ID_BYTES):
            raise MalformedRequestError(
                f"an id has a NUL, or more than {_MAX_ID_BYTES} bytes: {printable(stated)}"
            )
