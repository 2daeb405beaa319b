"""The verification of a notification: ten steps, in this order (wire profile §4).

| step | what is checked | from | refused with |
|---|---|---|---|
| 1 | rate of the address; size of the head, declared length, type | the head | 429 431 413 415 |
| 2 | which trusted sender: path, `iss`, `kid` (`receiver.selection`) | the head | 403 |
| 3 | the signatures that this sender must make | the head | 401, 503 without its keys |
| 4 | times, audience, issuer; the ids agree | the head | 401 400 |
| 5 | token and credentials | the head | 401 |
| 1 | the body: its size, within the deadline | the body | 413 408 400 |
| 3 | its hash is what is signed | the body | 401 |
| 6 | rate of the sender; the body is read, and speaks of the signed task | the body | 429 400 422 |
| 7 | replay: an accepted id with this body is a retry, with another a conflict | the store | 409 |
| 8 | the task is expected | the store | 404 |
| 9 | there is room; id, binding and notification are one transaction | the store | 429 503 |
| 10 | callbacks, in the order of the task | the inbox | |

A stranger's body is never read. `verify` below does steps 1 to 6 without I/O: it is a generator
that asks for what it has to have (keys, what was handed out, the body), so that the service
(`receiver.intake`) and `verify_notification`, for applications that store by themselves, run the
same code. Steps 7 to 9 are `receiver.accepting`, step 10 is `receiver.callbacks`. Every refusal has
its row in `receiver.refusals`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pushkit.a2a import TaskUpdate, UpdateKind, decode_update
from pushkit.bounded_json import JsonValue, read_json
from pushkit.errors import (
    ClaimError,
    InboundError,
    InvalidSignatureError,
    MalformedJsonError,
    MalformedRequestError,
    TokenError,
)
from pushkit.logs import printable
from pushkit.record import field, record
from pushkit.signing.content_digest import check_content_digest
from pushkit.signing.http_message_signatures import VerifiedHttpSignature, verify_http_signature
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
from pushkit.signing.token import hash_credentials, hash_token, read_token
from pushkit.url import audience_with_query, masked_url
from pushkit.webhook import Headers, WebhookRequest
from receiver.house import House, body_too_large
from receiver.selection import KeysOf, Place, Selected, at_hand, keys_to_ask_for, select
from receiver.trust import SenderProfile, TrustedSender

if TYPE_CHECKING:
    from receiver.trusted_keys import TrustSnapshot

_MAX_ID_CHARS = 256
_MAX_ID_BYTES = 512
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")  # RFC 6901 §4

Facts: TypeAlias = dict[str, str | None]
"""What is proven so far, for the log: sender, task, delivery id."""


# --- what comes in, and what is asked ------------------------------------------------------------


@record(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a request."""

    method: str
    path: str  # the path, percent-decoded, without the prefix of a mount
    target: str  # path and query as received
    headers: Headers  # the header fields, repeated ones as often as they came
    socket_peer: str = ""  # the address of the socket's other end
    # The body, where all of it came with the head; None if it is still to be read.
    body: bytes | None = field(default=None, repr=False)


class Presented(NamedTuple):
    """The secrets of a request, by their hashes. Nothing here is proven."""

    token: str | None  # of the token, None without one
    static_token: bool  # it is one that the sender was given out of band
    # Of `Authorization` and `X-Api-Key`, as far as they are not static ones.
    credentials: tuple[str, ...]
    static_credentials: bool  # one of them is what the sender was given out of band


@record(frozen=True, slots=True, kw_only=True)
class HandedOut:
    """What one `expect()` handed out, by its hashes."""

    token: str | None
    credentials: str | None = None


class ProvenSecret(NamedTuple):
    """What a notification stands on: a token, or credentials."""

    sha256: str  # its hash
    static: bool  # the sender was given it out of band; else `expect()` handed it out


class HandedOutTo(NamedTuple):
    """What `verify` asks: what `expect()` handed to a sender, as far as it fits what came."""

    sender: TrustedSender
    secret: Presented


class WholeBody(NamedTuple):
    """What `verify` asks: the body, of which no more than the limit needs to be read."""

    sender: TrustedSender
    limit: int


Question: TypeAlias = KeysOf | HandedOutTo | WholeBody


class MethodNotAllowedError(InboundError, code="method_not_allowed", status=405):
    """A notification is a POST, and nothing else."""


# --- what is found out ---------------------------------------------------------------------------


@record(frozen=True, slots=True, kw_only=True)
class VerifiedHead:
    """What the head of a request proves, before its body is read."""

    sender: TrustedSender  # who it is from
    claims: VerifiedJwt | None = None  # what the JWT states; None if the sender does not sign so
    # What the HTTP message signature states; None if the sender does not sign so.
    signature: VerifiedHttpSignature | None = None
    # What Standard Webhooks headers state; None if the sender does not sign so. It is the one
    # scheme that proves nothing before `verify_body`.
    webhook: UnverifiedWebhook | None = None
    # `jti`, or the hash of what was signed; without a JWT the signed `webhook-id`; of an unsigned
    # sender the id that its headers state, if any.
    delivery_id: str | None


@record(frozen=True, slots=True, kw_only=True)
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


class Repetition(NamedTuple):
    """What is known of a notification that was accepted before, and comes again."""

    sender: TrustedSender
    delivery_id: str | None
    body_sha256: str
    task_in_body: str | None
    task_id: str | None
    kind: UpdateKind
    seq: int | None


@record(frozen=True, slots=True, kw_only=True)
class Verified:
    """What steps 1 to 6 come to, for those after them."""

    sender: TrustedSender  # who it is from
    secret: ProvenSecret | None  # the token or the credentials that it stands on, if any
    body: bytes = field(repr=False)
    notification: VerifiedNotification  # what it says

    def repeated(self) -> Repetition:
        """Return what is to be known of it when it comes again."""
        said = self.notification
        update = said.update
        return Repetition(
            self.sender,
            said.delivery_id,
            said.body_sha256,
            update.task_id,
            said.task_id,
            update.kind,
            said.seq,
        )


# --- the steps -----------------------------------------------------------------------------------


def verify(
    head: Head,
    place: Place,  # where it arrived: the senders there, with their keys as far as they are known
    *,
    now: datetime,
    # The limits and the memory of the service; None for who has seen to step 1, and has none.
    house: House | None = None,
    facts: Facts,  # takes up what is proven
) -> Generator[Question, Any, Verified | Repetition]:
    """Do steps 1 to 6; ask for keys, for what was handed out, and for the body, in this order.

    Nothing is asked that is at hand. Where a service accepted this id with this body just now, the
    body was read before, and is not read again.

    Raises:
        InboundError: Refused: `status` is the answer, `code` the row in `receiver.refusals`, the
            message is for the log alone.
    """
    headers = head.headers
    if house is not None:
        house.check_head(head)  # 1
    if head.method != "POST":
        raise MethodNotAllowedError(f"method {printable(head.method)}, expected POST")
    keys = keys_to_ask_for(place, headers)  # 2
    held = at_hand(keys)
    if held is None:
        held = yield keys
    selected = select(place, keys, held)
    sender = selected.sender
    proven = verify_head(selected, head, own_url=place.url, now=now)  # 3, 4
    facts["sender"] = sender.name
    secret = presented(headers, sender, selected.jwt)  # 5
    handed_out: Sequence[HandedOut] = ()
    if secret.credentials or (secret.token is not None and not secret.static_token):
        known = None if house is None else house.handed_out(sender, secret)
        handed_out = (yield HandedOutTo(sender, secret)) if known is None else known
    stands_on = check_presented(sender, secret, handed_out)
    limit = 0 if house is None else house.max_body_bytes(sender)
    body = head.body  # 1, the body's part
    if body is None:
        body = yield WholeBody(sender, limit)
    if house is not None and len(body) > limit:
        raise body_too_large(f"{len(body)} bytes", limit, sender)
    sha256 = body_sha256(body)
    verify_body(proven, body, sha256)  # 3, the body's part
    if house is not None:
        house.admit_sender(sender)  # 6
        if proven.delivery_id is not None:
            before = house.accepted_before(sender.name, proven.delivery_id, sha256, now)
            if before is not None and _is_retry(proven, before):
                return before  # 7, without a look into the store
    notification = read_notification(proven, body, sha256)
    facts["task"], facts["delivery_id"] = notification.task_id, notification.delivery_id
    _check_ids(notification.delivery_id, notification.config_id, notification.task_id)
    return Verified(sender=sender, secret=stands_on, body=body, notification=notification)


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
    path = path or request.target.partition("?")[0]
    head = Head(
        method=request.method,
        path=path,
        target=request.target,
        headers=request.headers,
        body=request.body,
    )
    steps = verify(head, trust.at(path), now=now, facts={})
    try:
        next(steps)  # keys and body are at hand: it asks for what was handed out, if for anything
        steps.send([HandedOut(token=hash_token(one)) for one in tokens])
    except StopIteration as done:
        verified: Verified = done.value
        return verified.notification
    raise AssertionError("it asks for nothing else")


def _is_retry(head: VerifiedHead, before: Repetition) -> bool:
    """Say whether reading its body again would change nothing."""
    claims = head.claims
    if claims is None:
        return True
    _check_ids(claims.config_id, claims.task_id)
    return not before.task_in_body or claims.task_id in (None, before.task_in_body)


# --- 3 and 4 -------------------------------------------------------------------------------------


def verify_head(selected: Selected, head: Head, *, own_url: str, now: datetime) -> VerifiedHead:
    """Do steps 3 and 4, as far as they need no body, by every scheme that the sender must use.

    Args:
        own_url: The URL of this webhook, from the configuration, as an audience names it.

    Raises:
        InvalidSignatureError: A signature is missing or does not hold.
        ClaimError: Outside the window, or for another issuer or audience.
        MalformedRequestError: The ids disagree, or the headers of a signature cannot be read.
    """
    sender, headers = selected.sender, head.headers
    audiences = sender.audiences or (own_url,)
    claims = _verified_jwt(selected, head, audiences, now)
    signature = webhook = None
    if selected.signatures:
        signature = _verified_signature(selected, head, audiences, now)
    if Scheme.STANDARD_WEBHOOKS in sender.signing:
        webhook = read_unverified_webhook(headers)
        check_timestamp(webhook.timestamp, now, sender.tolerance)
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
        sender=sender, claims=claims, signature=signature, webhook=webhook, delivery_id=delivery_id
    )


def verify_body(head: VerifiedHead, body: bytes, sha256: str) -> None:
    """Do what is left of step 3: hold the body, and its hash, against what is signed.

    Raises:
        DigestMismatchError: The signature is over another body.
        InvalidSignatureError: No Standard Webhooks signature holds.
    """
    claims = head.claims
    if claims is not None:
        if head.sender.profile is SenderProfile.A2A_SAMPLES and claims.body_sha256 != sha256:
            sha256 = body_sha256(_reserialised(body))
        check_body(claims, sha256)
    if head.signature is not None:
        check_content_digest(head.signature.digests, body)
    if head.webhook is not None:
        check_webhook_signature(head.webhook, body, head.sender.verifiers)


def read_notification(head: VerifiedHead, body: bytes, sha256: str) -> VerifiedNotification:
    """Do step 6: parse the body, and hold it against what is signed.

    Raises:
        MalformedBodyError: No JSON within the limits.
        UnrecognisedBodyError: JSON of no A2A version.
        MalformedRequestError: The body speaks of another task than the signature.
    """
    update, claims = decode_update(body), head.claims
    task_id = config_id = seq = kid = issued_at = None
    if claims is not None:
        task_id, config_id, seq = claims.task_id, claims.config_id, claims.seq
        kid, issued_at = claims.kid, claims.issued_at
    elif head.signature is not None:
        kid, issued_at = head.signature.keyid, head.signature.issued_at
    elif head.webhook is not None:
        issued_at = head.webhook.timestamp
    if update.task_id and task_id and update.task_id != task_id:
        raise MalformedRequestError("the signed `taskId` is another task than the body's")
    return VerifiedNotification(
        sender=head.sender.name,
        delivery_id=head.delivery_id or _id_in_body(body, head.sender),
        body_sha256=sha256,
        update=update,
        task_id=update.task_id or task_id,
        config_id=config_id,
        seq=seq,
        kid=kid,
        issued_at=issued_at,
    )


# --- 5 -------------------------------------------------------------------------------------------

# Tokens and static credentials are secrets that prove who speaks, and are treated as one: stored as
# hashes, looked up by their hashes, bound to tasks. Hashes of 256 random bits need no salt; and how
# far two hashes agree, which a look-up's time may tell, says nothing of the secret.


def presented(headers: Headers, sender: TrustedSender, jwt: UnverifiedJwt | None) -> Presented:
    """Read the secrets of a request; its JWT may stand in `Authorization`, and is none.

    Raises:
        TokenError: The token headers carry different tokens.
        MalformedRequestError: `Authorization` or `X-Api-Key` stands twice.
    """
    found = read_token(headers)
    token = None if found is None else hash_token(found)
    new, are_static = [], False
    for name in ("Authorization", "X-Api-Key"):
        value = headers.one(name)
        if value and (jwt is None or not value.endswith(jwt.token)):
            hashed = hash_credentials(value)
            if hashed in sender.credential_hashes:
                are_static = True
            else:
                new.append(hashed)
    return Presented(token, token in sender.token_hashes, tuple(new), are_static)


def check_presented(
    sender: TrustedSender, secret: Presented, handed_out: Sequence[HandedOut]
) -> ProvenSecret | None:
    """Do step 5: hold the secrets of a request against those that the sender was given.

    A sender that was handed credentials must send them. It may drop the token then, as the
    JavaScript SDK does: the credentials say as much. A secret that is wrong is wrong also where it
    is optional.

    Args:
        handed_out: What `expect()` handed to this sender, as far as it could be what was sent.

    Returns:
        What the notification stands on; None if a signature or static credentials alone.

    Raises:
        TokenError: A secret is missing or wrong.
    """
    by_token, by_credentials, lacks_credentials = False, None, False
    for one in handed_out:
        is_stated = one.credentials in secret.credentials
        if is_stated:
            by_credentials = by_credentials or one.credentials
        if secret.token and one.token == secret.token:
            by_token = True
            lacks_credentials |= bool(one.credentials) and not is_stated
    if secret.token and not secret.static_token and not by_token:
        raise TokenError(f"the token is none that was handed to sender {sender.name}")
    if lacks_credentials:
        raise TokenError("the credentials are not those that were handed out with the token")
    if sender.credentials and not secret.static_credentials and not by_credentials:
        raise TokenError("the credentials are not those that were handed to this sender")
    if secret.token is None and not by_credentials:
        _check_optional_token(sender, secret)
    if secret.token is not None:
        return ProvenSecret(secret.token, static=not by_token)
    return ProvenSecret(by_credentials, static=False) if by_credentials else None


def _check_optional_token(sender: TrustedSender, secret: Presented) -> None:
    if sender.token_required:
        raise TokenError("no token, expected the one that was handed to this sender")
    if not sender.profile.signed and not secret.static_credentials:
        raise TokenError("neither token nor credentials, and this sender does not sign")


# --- by scheme ----------------------------------------------------------------------------------


def _verified_jwt(
    selected: Selected, head: Head, audiences: Sequence[str], now: datetime
) -> VerifiedJwt | None:
    sender, jwt, key, _ = selected
    if jwt is None or key is None:
        return None
    claims = verify_signature(jwt, key, algorithms=sender.algorithms)
    check_times(claims, now, tolerance=sender.tolerance)
    if sender.profile is SenderProfile.STANDARD:
        if claims.delivery_id is None or claims.expires_at is None:
            raise ClaimError("the JWT must state `jti` and `exp`")
        if "." in claims.delivery_id:
            raise ClaimError("`jti` has a `.`, which Standard Webhooks forbids")
        if sender.issuer is not None:
            check_issuer(claims, sender.issuer)
        check_audience(claims, audiences, head.target)
    check_webhook_id(claims, head.headers)
    return claims


def _verified_signature(
    selected: Selected, head: Head, audiences: Sequence[str], now: datetime
) -> VerifiedHttpSignature:
    """Return the first HTTP message signature that holds."""
    refusal = InvalidSignatureError("no HTTP message signature")
    for unverified, key in selected.signatures:
        try:
            verified = verify_http_signature(
                unverified,
                key,
                method=head.method,
                # From the configuration, never from `Host`: this is what binds it to us.
                target_uris=[audience_with_query(url, head.target) for url in audiences],
                headers=head.headers,
                algorithms=selected.sender.algorithms,
            )
        except InvalidSignatureError as exc:
            refusal = exc
            continue
        check_times(verified, now, tolerance=selected.sender.tolerance)
        return verified
    own = " or ".join(masked_url(url) for url in audiences)
    raise InvalidSignatureError(f"{refusal} (its @target-uri must be {own})") from refusal


def _id_of_signed(token: UnverifiedJwt) -> str:
    """Return an id for a sender without ids: the hash of what it signed.

    Without the signature itself, of which an attacker could make other spellings.
    """
    signing_input = token.token.rpartition(".")[0]
    return f"jws_{hashlib.sha256(signing_input.encode()).hexdigest()}"


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


def _check_ids(*ids: str | None) -> None:
    """Refuse what cannot be a key in every database: an index has its limits, PostgreSQL no NUL."""
    for found in ids:
        if found is not None and ("\0" in found or len(found.encode()) > _MAX_ID_BYTES):
            raise MalformedRequestError(
                f"an id has a NUL, or more than {_MAX_ID_BYTES} bytes: {printable(found)}"
            )
