"""Steps 2 to 6 without I/O: keys, secrets and `now` come in. Numbered as in the wire profile §4.

In two parts, so that a stranger's body is never read: `verify_head` takes what the head alone
proves, `verify_body` and `read_notification` the rest. `verify_notification` is all of it in one
call, for applications that store by themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pushkit.a2a import TaskUpdate, decode_update
from pushkit.bounded_json import JsonValue, read_json
from pushkit.errors import (
    ClaimError,
    DigestMismatchError,
    InboundError,
    InvalidSignatureError,
    MalformedJsonError,
    MalformedRequestError,
)
from pushkit.logs import printable
from pushkit.signing.content_digest import check_content_digest
from pushkit.signing.http_message_signatures import (
    VerifiedHttpSignature,
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
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import (
    UnverifiedWebhook,
    check_webhook_signature,
    read_unverified_webhook,
)
from pushkit.signing.times import check_times, check_timestamp
from pushkit.signing.token import hash_token
from pushkit.url import audience_of, audience_with_query, masked_url
from pushkit.webhook import Headers, WebhookRequest
from receiver.credentials import HandedOut, check_presented, presented
from receiver.selection import Selected, TrustSnapshot
from receiver.trust import SenderProfile, TrustedSender

__all__ = [
    "VerifiedHead",
    "VerifiedNotification",
    "check_method",
    "read_notification",
    "verify_body",
    "verify_head",
    "verify_notification",
]

_MAX_ID_CHARS = 256
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")  # RFC 6901 §4


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedHead:
    """What the head of a request proves, before its body is read.

    Attributes:
        sender: Who it is from.
        claims: What the JWT states; None if the sender does not sign so.
        signature: What the HTTP message signature states; None if the sender does not sign so.
        webhook: What Standard Webhooks headers state; None if the sender does not sign so. It is
            the one scheme that proves nothing before `verify_body`.
        delivery_id: `jti`, or the hash of what was signed; without a JWT the signed `webhook-id`;
            of an unsigned sender the id that its headers state, if any.
    """

    sender: TrustedSender
    claims: VerifiedJwt | None = None
    signature: VerifiedHttpSignature | None = None
    webhook: UnverifiedWebhook | None = None
    delivery_id: str | None

    @property
    def task_id(self) -> str | None:
        """The signed `taskId`."""
        return self.claims.task_id if self.claims else None

    @property
    def kid(self) -> str | None:
        """The key that signed, of the JWT if there is one."""
        if self.claims is not None:
            return self.claims.kid
        return self.signature.keyid if self.signature else None

    @property
    def issued_at(self) -> datetime | None:
        """When it was signed, by the JWT if there is one."""
        if self.claims is not None:
            return self.claims.issued_at
        if self.signature is not None:
            return self.signature.issued_at
        return self.webhook.timestamp if self.webhook else None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedNotification:
    """A notification whose sender, body and time are proven, as far as its sender proves them.

    Attributes:
        sender: The name of the trusted sender.
        delivery_id: The same on every retry: unique together with the sender. None for an unsigned
            sender that states none: its repetitions cannot be recognised.
        body_sha256: Of the raw body: the same id with another one is a conflict, to be answered
            409.
        update: What happened, version-free.
        task_id: The task, from the signature or the body.
        config_id: The signed `configId`, if any.
        seq: The signed `seq`, if any.
        kid: The key that signed it; None if the sender does not sign, or by a shared secret.
        issued_at: `iat`, `created` or `webhook-timestamp`; None if the sender does not sign.
    """

    sender: str
    delivery_id: str | None
    body_sha256: str
    update: TaskUpdate
    task_id: str | None
    config_id: str | None
    seq: int | None
    kid: str | None
    issued_at: datetime | None


def verify_notification(
    request: WebhookRequest,
    trust: TrustSnapshot,
    *,
    now: datetime,
    path: str | None = None,
    tokens: Sequence[str] = (),
) -> VerifiedNotification:
    """Do steps 2 to 6 on one request: no I/O, no clock, no event loop.

    What is left to the caller is to bound the body before (step 1), and afterwards, in one
    transaction, to insert (`sender`, `delivery_id`) uniquely and to see that the task is expected
    (steps 7 to 9). The same code verifies inside `Receiver`.

    Args:
        request: The request, with the raw body.
        trust: The trusted senders and their keys at this moment.
        now: The present, aware.
        path: The sender's path, where the request's own path has a prefix before it.
        tokens: Tokens that the caller handed out, beside the senders' own `tokens`.

    Raises:
        InboundError: Refused: `status` is the answer, `code` is stable, the message is for the log
            alone.
    """
    check_method(request.method)
    path = path or request.target.partition("?")[0]
    selected = trust.select(path, request.headers)  # 2
    head = verify_head(  # 3, 4
        selected,
        request.headers,
        request.target,
        own_url=trust.own_url(path),
        now=now,
        method=request.method,
    )
    secret = presented(request.headers, head.sender, selected.jwt)  # 5
    check_presented(head.sender, secret, [HandedOut(token=hash_token(token)) for token in tokens])
    verify_body(head, request.body)  # 3, the body's part
    return read_notification(head, request)  # 6


class MethodNotAllowedError(InboundError, code="method_not_allowed", status=405):
    """A notification is a POST, and nothing else."""


def check_method(method: str) -> None:
    """Refuse what is no POST.

    Raises:
        MethodNotAllowedError: It is none.
    """
    if method != "POST":
        raise MethodNotAllowedError(f"method {printable(method)}, expected POST")


def verify_head(
    selected: Selected,
    headers: Headers,
    target: str,
    *,
    own_url: str,
    now: datetime,
    method: str,
) -> VerifiedHead:
    """Do steps 3 and 4, as far as they need no body, by every scheme that the sender must use.

    Args:
        selected: The sender, its signatures and the keys that they name.
        headers: The request's headers.
        target: Its path and query.
        own_url: The URL of this webhook, from the configuration.
        now: The receiver's clock.
        method: The request's method.

    Raises:
        InvalidSignatureError: A signature is missing or does not hold.
        ClaimError: Outside the window, or for another issuer or audience.
        MalformedRequestError: The ids disagree, or the headers of a signature cannot be read.
    """
    sender = selected.sender
    audiences = [audience_of(url) for url in sender.audience or [own_url]]
    claims = _verified_jwt(selected, headers, target, audiences, now)
    signature = _verified_signature(selected, headers, target, audiences, now, method=method)
    webhook = _read_webhook(sender, headers, now)
    if claims is not None and selected.jwt is not None:
        # Every scheme signs `webhook-id`, and `jti` has been held against it.
        delivery_id = claims.delivery_id or _id_of_signed(selected.jwt)
    elif signature is not None:
        delivery_id = _bounded_id(signature.delivery_id)
    elif webhook is not None:
        delivery_id = webhook.delivery_id
    else:
        return VerifiedHead(sender=sender, delivery_id=_stated_id(headers, sender))
    return VerifiedHead(
        sender=sender,
        claims=claims,
        signature=signature,
        webhook=webhook,
        delivery_id=delivery_id,
    )


def verify_body(head: VerifiedHead, body: bytes) -> None:
    """Do what is left of step 3: hold the body against what is signed.

    Raises:
        DigestMismatchError: The signature is over another body.
        InvalidSignatureError: No Standard Webhooks signature holds.
    """
    if head.claims is not None:
        _check_hash(head.claims, head.sender, body)
    if head.signature is not None:
        check_content_digest(head.signature.digests, body)
    if head.webhook is not None:
        check_webhook_signature(head.webhook, body, head.sender.verifiers)


def read_notification(head: VerifiedHead, request: WebhookRequest) -> VerifiedNotification:
    """Do step 6: parse the body, and hold it against what is signed.

    Raises:
        MalformedBodyError: No JSON within the limits.
        UnrecognisedBodyError: JSON of no A2A version.
        MalformedRequestError: The body speaks of another task than the signature.
    """
    update, claims = decode_update(request.body), head.claims
    if update.task_id and head.task_id and update.task_id != head.task_id:
        raise MalformedRequestError("the signed `taskId` is another task than the body's")
    return VerifiedNotification(
        sender=head.sender.name,
        delivery_id=head.delivery_id or _id_in_body(request.body, head.sender),
        body_sha256=body_sha256(request.body),
        update=update,
        task_id=update.task_id or head.task_id,
        config_id=claims.config_id if claims else None,
        seq=claims.seq if claims else None,
        kid=head.kid,
        issued_at=head.issued_at,
    )


# --- by scheme ----------------------------------------------------------------------------------


def _verified_jwt(
    selected: Selected, headers: Headers, target: str, audiences: Sequence[str], now: datetime
) -> VerifiedJwt | None:
    sender, jwt, key = selected.sender, selected.jwt, selected.key
    if jwt is None or key is None:
        return None
    claims = verify_signature(jwt, key, algorithms=sender.algorithms)
    check_times(claims, now, tolerance=sender.tolerance)
    if sender.profile is SenderProfile.STANDARD:
        _check_standard_claims(claims, sender, target, audiences)
    check_webhook_id(claims, headers)
    return claims


def _verified_signature(
    selected: Selected,
    headers: Headers,
    target: str,
    audiences: Sequence[str],
    now: datetime,
    *,
    method: str,
) -> VerifiedHttpSignature | None:
    """Return the first HTTP message signature that holds; None if the sender has none to make."""
    refusal: InvalidSignatureError | None = None
    for unverified, key in selected.signatures:
        try:
            verified = verify_http_signature(
                unverified,
                key,
                method=method,
                # From the configuration, never from `Host`: this is what binds it to us.
                target_uris=[audience_with_query(url, target) for url in audiences],
                headers=headers,
                algorithms=selected.sender.algorithms,
            )
        except InvalidSignatureError as exc:
            refusal = exc
            continue
        check_times(verified, now, tolerance=selected.sender.tolerance)
        return verified
    if refusal is not None:
        own = " or ".join(masked_url(url) for url in audiences)
        raise InvalidSignatureError(f"{refusal} (its @target-uri must be {own})") from refusal
    return None


def _read_webhook(
    sender: TrustedSender, headers: Headers, now: datetime
) -> UnverifiedWebhook | None:
    if not sender.signs_with(Scheme.STANDARD_WEBHOOKS):
        return None
    webhook = read_unverified_webhook(headers)
    check_timestamp(webhook.timestamp, now, sender.tolerance)
    return webhook


def _check_hash(claims: VerifiedJwt, sender: TrustedSender, body: bytes) -> None:
    try:
        check_body(claims, body)
    except DigestMismatchError:
        if sender.profile is not SenderProfile.A2A_SAMPLES:
            raise
        check_body(claims, _reserialised(body))


def _id_of_signed(token: UnverifiedJwt) -> str:
    """Return an id for a sender without ids: the hash of what it signed.

    Without the signature itself, of which an attacker could make other spellings.
    """
    signing_input = token.token.rpartition(".")[0]
    return f"jws_{hashlib.sha256(signing_input.encode()).hexdigest()}"


def _check_standard_claims(
    claims: VerifiedJwt, sender: TrustedSender, target: str, audiences: Sequence[str]
) -> None:
    if claims.delivery_id is None or claims.expires_at is None:
        raise ClaimError("the JWT must state `jti` and `exp`")
    if "." in claims.delivery_id:
        raise ClaimError("`jti` has a `.`, which Standard Webhooks forbids")
    if sender.issuer is not None:
        check_issuer(claims, sender.issuer)
    check_audience(claims, audiences, target)


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


# --- ids of senders that do not sign ------------------------------------------------------------


def _stated_id(headers: Headers, sender: TrustedSender) -> str | None:
    """Return the id that the headers of an unsigned request state.

    What the configuration names goes first; `webhook-id` is the same on every retry by the
    specification that names it (Standard Webhooks).
    """
    named = sender.id_field
    if named is not None and not named.startswith("/") and (found := headers.one(named)):
        return _bounded_id(found)
    if named is None and (found := headers.one("webhook-id")):
        return _bounded_id(found)
    return None


def _id_in_body(body: bytes, sender: TrustedSender) -> str | None:
    """Return the member of the body that the configuration names as the id, if it is there."""
    if sender.profile.signed or sender.id_field is None or not sender.id_field.startswith("/"):
        return None
    found = _member(read_json(body), sender.id_field)
    return _bounded_id(found) if isinstance(found, str) and found else None


def _member(value: JsonValue, pointer: str) -> JsonValue:
    """Follow a JSON Pointer (RFC 6901 §4); None where it leads nowhere."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and _INDEX.fullmatch(name):
            value = value[int(name)] if int(name) < len(value) else None
        else:
            return None
    return value


def _bounded_id(found: str) -> str:
    if len(found) > _MAX_ID_CHARS or not found.isprintable():
        raise MalformedRequestError(
            f"the delivery id: expected at most {_MAX_ID_CHARS} printable characters"
        )
    return found
