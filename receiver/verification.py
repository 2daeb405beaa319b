"""The verification of a notification: ten steps, in this order (wire profile §4).

| step | what is checked | from | refused with |
|---|---|---|---|
| 1 | rate of the address; size of the head, declared length, type | the head | 429 431 413 415 |
| 2 | which trusted sender: path, `iss`, `kid` (`selection.select`) | the head | 403 |
| 3 | the signatures that this sender must make | the head | 401, 503 without its keys |
| 4 | times, audience, issuer; the ids agree | the head | 401 400 |
| 5 | token and credentials (`credentials.check_presented`) | the head | 401 |
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

import functools
import hashlib
import json
import re
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from pushkit.a2a import TaskUpdate, UpdateKind, decode_update
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
from pushkit.signing.token import hash_token
from pushkit.url import audience_of, audience_with_query, masked_url
from pushkit.webhook import Headers, WebhookRequest
from receiver.credentials import HandedOut, Presented, ProvenSecret, check_presented, presented
from receiver.limits import Limits, RateLimit, RateLimiter
from receiver.peers import rate_key
from receiver.selection import KeysOf, Selected, TrustSnapshot, select
from receiver.trust import SenderProfile, TrustedSender

_MAX_ID_CHARS = 256
_MAX_ID_BYTES = 512
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")  # RFC 6901 §4
_CONTENT_TYPES = frozenset({"application/json", "application/a2a+json", ""})
_DIGITS = re.compile(r"[0-9]+")
_LONGEST_LENGTH = 18  # digits: far over any limit, and quickly read

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


class HandedOutTo(NamedTuple):
    """What `verify` asks: what `expect()` handed to a sender, as far as it fits what came."""

    sender: TrustedSender
    secret: Presented


class WholeBody(NamedTuple):
    """What `verify` asks: the body, of which no more than the limit needs to be read."""

    sender: TrustedSender
    limit: int


class AcceptedBefore(NamedTuple):
    """What `verify` asks: what is known of this id and body, if they were accepted just now."""

    sender: TrustedSender
    delivery_id: str
    body_sha256: str


Question: TypeAlias = KeysOf | HandedOutTo | WholeBody | AcceptedBefore


class House:
    """What a service has besides the senders: its limits, and its rates."""

    def __init__(self, limits: Limits, clock: Callable[[], datetime]) -> None:
        self.limits = limits
        self._clock = clock
        self._peers = RateLimiter(limits.peer_rate)
        self._senders = RateLimiter(limits.sender_rate)
        self._own_rates: dict[tuple[str, RateLimit], RateLimiter] = {}

    def admit_peer(self, peer: str, now: datetime) -> None:
        """Count one request of an address.

        Raises:
            RateLimitedError: It is over its rate.
        """
        self._peers.take(rate_key(peer), now)

    def admit_sender(self, sender: TrustedSender) -> None:
        """Count one notification of a sender.

        Raises:
            RateLimitedError: It is over its rate.
        """
        rates = self._senders
        if sender.rate is not None:
            key = sender.name, sender.rate
            rates = self._own_rates.setdefault(key, RateLimiter(sender.rate))
        rates.take(sender.name, self._clock())

    def check_head(self, head: Head) -> None:
        """Hold the head against what all senders have to keep to.

        Raises:
            InboundError: Too long, or of a type or coding that is no notification's.
        """
        headers = head.headers
        size, limit = headers.size(), self.limits.max_body_bytes
        if size > self.limits.max_header_bytes:
            raise HeadersTooLargeError(f"{size} bytes of headers")
        declared = _declared_length(headers) if head.body is None else len(head.body)
        if declared is not None and declared > limit:
            raise body_too_large(f"{declared} bytes", limit, None)
        media_type = (headers.one("Content-Type") or "").partition(";")[0].strip().lower()
        if media_type not in _CONTENT_TYPES:
            raise MediaTypeError("expected application/json or application/a2a+json")
        # RFC 9110 §8.4: what is signed is what is sent; a coding would also let a bomb in.
        if (headers.one("Content-Encoding") or "identity").lower() != "identity":
            raise MediaTypeError("the body is compressed, expected Content-Encoding identity")

    def max_body_bytes(self, sender: TrustedSender) -> int:
        """Return how much of a body a sender may send."""
        own, common = sender.max_body_bytes, self.limits.max_body_bytes
        return common if own is None else min(own, common)


class BodyTooLargeError(InboundError, code="body_too_large", status=413):
    """The body is longer than the limit."""


class BodyTimeoutError(InboundError, code="body_timeout", status=408):
    """The body did not come in time."""


class IncompleteBodyError(InboundError, code="incomplete_body"):
    """The body broke off."""


class HeadersTooLargeError(InboundError, code="headers_too_large", status=431):
    """The header section is longer than the limit."""


class MediaTypeError(InboundError, code="unsupported_media_type", status=415):
    """The content type is none of a notification."""


class MethodNotAllowedError(InboundError, code="method_not_allowed", status=405):
    """A notification is a POST, and nothing else."""


def body_too_large(found: str, limit: int, sender: TrustedSender | None) -> BodyTooLargeError:
    """Return the refusal of a body, with whose limit it breaks; None for the receiver's."""
    is_own = sender is not None and sender.max_body_bytes == limit
    whose = f"sender {sender.name}" if is_own and sender else "the receiver"
    return BodyTooLargeError(
        f"a body of {found}, expected at most {limit}: max_body_bytes of {whose}"
    )


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
            self.sender, said.delivery_id, update.task_id, said.task_id, update.kind, said.seq
        )


# --- the steps -----------------------------------------------------------------------------------


def verify(
    head: Head,
    among: Sequence[TrustedSender],  # the trusted senders at the path where it arrived
    *,
    own_url: str,  # the URL of this webhook, from the configuration
    now: datetime,
    # The limits and rates of the service; None for who has seen to step 1, and has none.
    house: House | None = None,
    facts: Facts,  # takes up what is proven
) -> Generator[Question, Any, Verified | Repetition]:
    """Do steps 1 to 6; ask for keys, for what was handed out, and for the body, in this order.

    A service is asked besides if it accepted this id with this body just now: then the body was
    read before, and is not read again.

    Raises:
        InboundError: Refused: `status` is the answer, `code` the row in `receiver.refusals`, the
            message is for the log alone.
    """
    headers = head.headers
    if house is not None:
        house.check_head(head)  # 1
    if head.method != "POST":
        raise MethodNotAllowedError(f"method {printable(head.method)}, expected POST")
    selected = yield from select(among, headers)  # 2
    sender = selected.sender
    proven = verify_head(selected, head, own_url=own_url, now=now)  # 3, 4
    facts["sender"] = sender.name
    secret = presented(headers, sender, selected.jwt)  # 5
    handed_out: Sequence[HandedOut] = ()
    if not secret.settled:
        handed_out = yield HandedOutTo(sender, secret)
    stands_on = check_presented(sender, secret, handed_out)
    limit = 0 if house is None else house.max_body_bytes(sender)
    body: bytes = yield WholeBody(sender, limit)  # 1, the body's part
    if house is not None and len(body) > limit:
        raise body_too_large(f"{len(body)} bytes", limit, sender)
    sha256 = body_sha256(body)
    verify_body(proven, body, sha256)  # 3, the body's part
    if house is not None:
        house.admit_sender(sender)  # 6
        if proven.delivery_id is not None:
            before: Repetition | None = yield AcceptedBefore(sender, proven.delivery_id, sha256)
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
    head = Head(method=request.method, path=path, target=request.target, headers=request.headers)
    own_url = f"{trust.url}{path}"
    steps = verify(head, trust.at(path), own_url=own_url, now=now, facts={})
    try:
        question = next(steps)
        while True:
            match question:
                case KeysOf():
                    question = steps.send(trust.keys_of(question))
                case HandedOutTo():
                    question = steps.send([HandedOut(token=hash_token(one)) for one in tokens])
                case WholeBody():
                    question = steps.send(request.body)
    except StopIteration as done:
        verified: Verified = done.value
        return verified.notification


def _is_retry(head: VerifiedHead, before: Repetition) -> bool:
    """Say whether reading its body again would change nothing."""
    claims, signed = head.claims, head.task_id
    if claims is not None:
        _check_ids(claims.config_id, signed)
    return not (signed and before.task_in_body and signed != before.task_in_body)


def _declared_length(headers: Headers) -> int | None:
    # The server has refused what contradicts itself; here it only saves the reading.
    declared = [value for value in headers.all("Content-Length") if _DIGITS.fullmatch(value)]
    return max((int(value[:_LONGEST_LENGTH]) for value in declared), default=None)


# --- 3 and 4 -------------------------------------------------------------------------------------


def verify_head(selected: Selected, head: Head, *, own_url: str, now: datetime) -> VerifiedHead:
    """Do steps 3 and 4, as far as they need no body, by every scheme that the sender must use.

    Args:
        own_url: The URL of this webhook, from the configuration.

    Raises:
        InvalidSignatureError: A signature is missing or does not hold.
        ClaimError: Outside the window, or for another issuer or audience.
        MalformedRequestError: The ids disagree, or the headers of a signature cannot be read.
    """
    sender, headers = selected.sender, head.headers
    audiences = sender.audiences or (_audience(own_url),)
    claims = _verified_jwt(selected, headers, head.target, audiences, now)
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
    if head.claims is not None:
        _check_hash(head.claims, head.sender, body, sha256)
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
    update, claims, signed = decode_update(body), head.claims, head.task_id
    if update.task_id and signed and update.task_id != signed:
        raise MalformedRequestError("the signed `taskId` is another task than the body's")
    return VerifiedNotification(
        sender=head.sender.name,
        delivery_id=head.delivery_id or _id_in_body(body, head.sender),
        body_sha256=sha256,
        update=update,
        task_id=update.task_id or signed,
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


@functools.lru_cache(maxsize=256)  # there are as many as senders
def _audience(own_url: str) -> str:
    return audience_of(own_url)


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


def _check_hash(claims: VerifiedJwt, sender: TrustedSender, body: bytes, sha256: str) -> None:
    try:
        check_body(claims, sha256)
    except DigestMismatchError:
        if sender.profile is not SenderProfile.A2A_SAMPLES:
            raise
        check_body(claims, body_sha256(_reserialised(body)))


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


def _check_ids(*ids: str | None) -> None:
    """Refuse what cannot be a key in every database: an index has its limits, PostgreSQL no NUL."""
    for found in ids:
        if found is not None and ("\0" in found or len(found.encode()) > _MAX_ID_BYTES):
            raise MalformedRequestError(
                f"an id has a NUL, or more than {_MAX_ID_BYTES} bytes: {printable(found)}"
            )
