"""The verification of a notification: ten steps, in this order (wire profile §4).

| step | what is checked | from | refused with |
|---|---|---|---|
| 1 | rate of the address; size of the head, declared length, type | the head | 429 431 413 415 |
| 2 | which trusted sender: path, `iss`, `kid` (`receiver.selection`) | the head | 403 |
| 3 | the signatures that this sender must make | the head | 401; 503 without its keys |
| 4 | times, audience, issuer; the ids agree | the head | 401 400 |
| 5 | token and credentials | the head | 401 |
| 1 | the body: its size, within the deadline | the body | 413 408 400 |
| 3 | its hash is the signed one | the body | 401 |
| 6 | rate of the sender; the body is an update, of the signed task | the body | 429 400 422 |
| 7 | replay: an accepted id with this body is a retry, with another a conflict | the store | 409 |
| 8 | the task is expected | the store | 404 |
| 9 | capacity; id, binding and notification are stored in one transaction | the store | 429 503 |
| 10 | callbacks, in the order of the task | the inbox | |

The body of an unproven request is never read. `verify` below does steps 1 to 6 without I/O: it is a
generator that yields a question for each input it lacks (keys, registered tokens, the body), so
that the service (`receiver.edge`) and `verify_notification`, for applications with a store of
their own, run the same code. Steps 7 to 9 are `receiver.accepting`, step 10 is
`receiver.callbacks`. Every refusal has its row in `receiver.refusals`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pushkit.a2a import TaskUpdate, decode_update
from pushkit.arguments import check_list, check_type
from pushkit.bounded_json import JsonValue, read_json
from pushkit.errors import (
    ClaimError,
    ConfigError,
    InboundError,
    InvalidSignatureError,
    MalformedJsonError,
    MalformedRequestError,
    TokenError,
)
from pushkit.logs import printable
from pushkit.record import field, record
from pushkit.signing.http_message_signatures import (
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
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import (
    UnverifiedWebhook,
    check_webhook_signature,
    read_unverified_webhook,
)
from pushkit.signing.times import check_not_before, check_times, check_timestamp
from pushkit.signing.token import hash_credentials, hash_token, read_token
from pushkit.url import audience_with_query, masked_url
from pushkit.webhook import Headers, WebhookRequest
from receiver.selection import (
    Endpoint,
    KeysOf,
    Selected,
    at_hand,
    keys_to_ask_for,
    select,
    signed_by,
)
from receiver.senders import SenderProfile, TrustedSender
from receiver.service_state import ServiceState, body_too_large
from receiver.steps import Step, Trail

if TYPE_CHECKING:
    from receiver.trust import TrustSnapshot

# A pass over a larger body takes longer than a thread costs: 0.6 ms for 1 MiB, and there is one
# for its hash, one for each secret, and up to four for each `whpk_` key.
_HASHED_AT_ONCE = 256 * 1024
_MAX_ID_CHARS = 256
_MAX_ID_BYTES = 512
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")  # RFC 6901 §4

# --- input, and questions ------------------------------------------------------------------------


@record(frozen=True, slots=True, kw_only=True)
class Head:
    """The head of a request."""

    method: str
    path: str  # the path, percent-decoded, without the prefix of a mount
    target: str  # path and query as received
    headers: Headers  # the header fields, repeated ones as often as they came
    socket_peer: str = ""  # the address of the socket's other end
    # The body, if all of it arrived with the head; None if it has yet to be read.
    body: bytes | None = field(default=None, repr=False)
    trail: Trail = field(default_factory=Trail)  # the steps that it comes to


Remembered: TypeAlias = tuple[str, str | None, str | None, str, int | None]
"""What is kept of an accepted notification: the hash of its body, the task in the body, its task,
its kind, its `seq`. A plain tuple: the collector need not visit thousands of them."""


class Presented(NamedTuple):
    """The secrets that a request states, as hashes. Nothing of it is proven."""

    token: str | None  # None without a token
    static_token: bool  # whether it is one of the sender's configured tokens
    # `Authorization` and `X-Api-Key`, except the sender's configured credentials.
    credentials: tuple[str, ...]
    static_credentials: bool  # whether one of the configured credentials is stated


@record(frozen=True, slots=True, kw_only=True)
class HandedOut:
    """The secrets that one `expect()` handed out, as hashes."""

    token: str | None
    credentials: str | None = None


class ProvenSecret(NamedTuple):
    """The secret that authorises a notification: a token, or credentials."""

    sha256: str  # its hash
    static: bool  # whether it is configured; else `expect()` handed it out


class HandedOutTo(NamedTuple):
    """A question of `verify`: which registrations of this sender fit these secrets?"""

    sender: TrustedSender
    secret: Presented


class WholeBody(NamedTuple):
    """A question of `verify`: what is the body?"""

    sender: TrustedSender
    limit: int  # bytes; a longer body need not be read to its end


class BodyProof(NamedTuple):
    """A question of `verify` about a large body: does `prove()` raise, and what does it return?

    It takes milliseconds, most of them without Python's lock: a thread may do it.
    """

    head: VerifiedHead
    body: bytes

    def prove(self) -> str:
        """Compare the body with what is signed, and return its hash. Raises as `verify_body`."""
        sha256 = body_sha256(self.body)
        verify_body(self.head, self.body, sha256)
        return sha256


Question: TypeAlias = KeysOf | HandedOutTo | WholeBody | BodyProof | None
"""What `verify` lacks; None if it lacks nothing, and others may have their turn."""


class MethodNotAllowedError(InboundError, code="method_not_allowed", status=405):
    """The request is no POST."""


# --- results -------------------------------------------------------------------------------------


class Signed(NamedTuple):
    """What the valid signatures of a head are over; None for a scheme that the sender omits."""

    claims: VerifiedJwt | None
    signature: VerifiedHttpSignature | None
    webhook: UnverifiedWebhook | None  # not proven before `verify_body`


@record(frozen=True, slots=True, kw_only=True)
class VerifiedHead:
    """What the head of a request proves, before its body is read."""

    sender: TrustedSender
    # The claims of each scheme that the sender signs by; None for the others.
    claims: VerifiedJwt | None = None
    signature: VerifiedHttpSignature | None = None
    # Standard Webhooks proves nothing before `verify_body`.
    webhook: UnverifiedWebhook | None = None
    # With a JWT its `jti`, or the hash of its signing input; else the signed `webhook-id`; for an
    # unsigned sender the id that its headers state, if any.
    delivery_id: str | None

    @property
    def is_signed(self) -> bool:
        """Whether a signature of the head is valid."""
        return self.claims is not None or self.signature is not None


@record(frozen=True, slots=True, kw_only=True)
class VerifiedNotification:
    """A notification whose sender, body and time are proven, as far as its sender proves them.

    Attributes:
        sender: The name of the trusted sender.
        delivery_id: The same on every retry; unique together with the sender. None for an unsigned
            sender that states none: its repetitions cannot be recognised.
        body_sha256: The hash of the raw body. The same id with another hash is a conflict, to be
            answered 409.
        update: What happened, version-free.
        task_id: The task, from the signature or the body.
        config_id: The signed `configId`, if any.
        seq: The signed `seq`, if any.
        kid: The key that signed it; None if unsigned, or signed by Standard Webhooks alone.
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

    def repeated(self) -> Remembered:
        """Return what has to be remembered to recognise it when it arrives again."""
        update = self.update
        return self.body_sha256, update.task_id, self.task_id, str(update.kind), self.seq


class Repetition(NamedTuple):
    """A notification that was accepted before and arrives again."""

    sender: TrustedSender
    delivery_id: str | None
    body_sha256: str
    task_in_body: str | None
    task_id: str | None
    kind: str
    seq: int | None


@record(frozen=True, slots=True, kw_only=True)
class Verified:
    """The result of steps 1 to 6, for the steps after them."""

    sender: TrustedSender
    secret: ProvenSecret | None  # the token or the credentials that authorise it, if any
    body: bytes = field(repr=False)
    notification: VerifiedNotification

    def repeated(self) -> Repetition:
        """Return it as it will be when it arrives again."""
        said = self.notification
        return Repetition(self.sender, said.delivery_id, *said.repeated())


# --- the steps -----------------------------------------------------------------------------------


def verify(  # noqa: PLR0912, PLR0915  # one step after another
    head: Head,
    endpoint: Endpoint,  # the senders at its path, and the sources of their keys
    *,
    now: datetime,
    # The limits and caches of the service; None for a caller that does step 1 itself.
    service: ServiceState | None = None,
) -> Generator[Question, Any, Verified | Repetition]:
    """Do steps 1 to 6; ask for keys, for registrations, and for the body, in this order.

    It does not ask for what is in memory. A body is not parsed again if this service recently
    accepted it under the same id. It yields None around what reads most code and tables, the
    signatures and the body: several notifications then take turns (`receiver.edge.in_turn`).

    Raises:
        InboundError: Refused: `status` is the answer, `code` the row in `receiver.refusals`, the
            message is for the log alone.
    """
    headers, trail = head.headers, head.trail
    begin = trail.begun.append
    if service is not None:
        service.check_head(head)  # 1
    if head.method != "POST":
        raise MethodNotAllowedError(f"method {printable(head.method)}, expected POST")
    try:
        keys = keys_to_ask_for(endpoint, headers)  # 2
    except InboundError:
        begin(Step.SIGNATURE)  # it cannot be read, so it is not known whose it is
        raise
    begin(Step.SENDER)
    held = at_hand(keys)
    if held is None:
        held = yield keys
    found = select(endpoint, keys, held)
    sender = found.sender
    audiences = sender.audiences or (endpoint.url,)
    if sender.has_keys:
        begin(Step.SIGNATURE)  # 3
    selected = signed_by(found, keys)
    yield None
    signed = verify_signatures(selected, head, audiences)
    yield None
    proven = check_head(selected, signed, head, audiences, now)  # 4
    if proven.is_signed:
        trail.sender = sender.name
    begin(Step.TOKEN)  # 5
    stated = presented(headers, sender, selected.jwt)
    handed_out: Sequence[HandedOut] = ()
    if stated.credentials or (stated.token is not None and not stated.static_token):
        known = None if service is None else service.handed_out(sender, stated)
        handed_out = (yield HandedOutTo(sender, stated)) if known is None else known
    secret = check_presented(sender, stated, handed_out)
    if proven.webhook is None:  # unsigned: its secret is the proof
        trail.sender = sender.name
    begin(Step.SIZE)  # 1, the body's part
    limit = 0 if service is None else service.max_body_bytes(sender)
    body = head.body
    if body is None:
        body = yield WholeBody(sender, limit)
    if service is not None and len(body) > limit:
        raise body_too_large(f"{len(body)} bytes", limit, sender)
    if proven.is_signed or proven.webhook is not None:
        begin(Step.BODY)  # 3, the body's part
    proof = BodyProof(proven, body)
    sha256 = proof.prove() if len(body) <= _HASHED_AT_ONCE else (yield proof)
    if proven.webhook is not None and not proven.is_signed:
        begin(Step.SIGNATURE)  # 3: it is over the body
    trail.sender = sender.name
    if service is not None:
        begin(Step.RATE)  # 6
        service.count_sender(sender)
        if proven.delivery_id is not None:
            before = service.accepted_before(sender.name, proven.delivery_id, sha256, now)
            if before is not None:
                repetition = Repetition(sender, proven.delivery_id, *before)
                if _is_retry(proven, repetition):
                    begin(Step.REPLAY)  # 7, without a query
                    return repetition
    yield None
    begin(Step.CONTENT)
    notification = read_notification(proven, body, sha256)
    trail.task_id, trail.delivery_id = notification.task_id, notification.delivery_id
    _check_ids(notification.delivery_id, notification.task_id)  # those of the body
    return Verified(sender=sender, secret=secret, body=body, notification=notification)


def check_request(request: WebhookRequest) -> None:
    """Check the types of a request that a caller made; raises ConfigError."""
    check_type("request", request, WebhookRequest)
    check_type("request: target", request.target, str)
    check_type("request: headers", request.headers, Headers)
    check_type("request: body", request.body, bytes)  # the raw bytes: a text is not what was signed


def verify_notification(
    request: WebhookRequest,
    trust: TrustSnapshot,
    *,
    now: datetime,
    path: str | None = None,
    tokens: Sequence[str] = (),
    trail: Trail | None = None,
) -> VerifiedNotification:
    """Do steps 2 to 6 on one request: no I/O, no clock, no event loop.

    The caller has to bound the body before (step 1), and afterwards, in one transaction, to insert
    (`sender`, `delivery_id`) uniquely and to check that the task is expected (steps 7 to 9). The
    same code verifies inside `Receiver`.

    Args:
        request: The request, with the raw body.
        trust: The trusted senders and their current keys.
        now: The current time, aware.
        path: The sender's path, if the request's own path has a prefix before it.
        tokens: Tokens that the caller handed out, in addition to the senders' own `tokens`.
        trail: Where to note the steps that the request comes to.

    Raises:
        InboundError: Refused: `status` is the answer, `code` is stable, the message is for the log
            alone.
        ConfigError: An argument has a wrong type, or `now` no time zone.
    """
    check_request(request)
    check_type("now", now, datetime)
    if now.utcoffset() is None:
        raise ConfigError("now: found a time without a zone, expected an aware one")
    check_list("tokens", tokens, of=str, shown=False)
    path = path or request.target.partition("?")[0]
    head = Head(
        method=request.method,
        path=path,
        target=request.target,
        headers=request.headers,
        body=request.body,
        trail=trail or Trail(),
    )
    steps = verify(head, trust.at(path), now=now)
    registered = [HandedOut(token=hash_token(one)) for one in tokens]
    try:
        question = next(steps)
        # Keys and body are in memory: they are no questions.
        while question is None or isinstance(question, HandedOutTo | BodyProof):
            if isinstance(question, BodyProof):
                question = steps.send(question.prove())
            else:
                question = steps.send(registered)
    except StopIteration as done:
        verified: Verified = done.value
        return verified.notification
    raise AssertionError("verify asked for something else")


def _is_retry(head: VerifiedHead, before: Repetition) -> bool:
    """Return whether a request with the same id and body is a retry of what was accepted."""
    claims = head.claims
    if claims is None:
        return True
    return not before.task_in_body or claims.task_id in (None, before.task_in_body)


# --- 3 and 4 -------------------------------------------------------------------------------------


def verify_signatures(selected: Selected, head: Head, audiences: Sequence[str]) -> Signed:
    """Do step 3, as far as it needs no body, by every scheme that the sender must use.

    Args:
        audiences: The URLs of this webhook, from the configuration, as the sender may name it.

    Raises:
        InvalidSignatureError: A signature is missing or invalid.
        MalformedRequestError: The headers of a signature cannot be read.
    """
    sender, jwt, key, signatures = selected
    claims = signature = None
    if jwt is not None and key is not None:
        claims = verify_signature(jwt, key, algorithms=sender.algorithms)
    if signatures:
        signature = _verified_signature(selected, head, audiences)
    return Signed(claims, signature, _stated_webhook(sender, head))


def check_head(
    selected: Selected, signed: Signed, head: Head, audiences: Sequence[str], now: datetime
) -> VerifiedHead:
    """Do step 4: compare what is signed with the request, the configuration and the time.

    Raises:
        ClaimError: Outside the window, or for another issuer or audience.
        MalformedRequestError: The ids disagree, or cannot be stored.
    """
    sender, begin = selected.sender, head.trail.begun.append
    claims, signature, webhook = signed
    if claims is not None or signature is not None or webhook is not None:
        begin(Step.TIME)
    if claims is not None:
        _check_times(claims, sender, now)
    if signature is not None:
        check_times(signature, now, tolerance=sender.tolerance)
    if webhook is not None:
        check_timestamp(webhook.timestamp, now, sender.tolerance)
    if claims is not None and sender.profile is SenderProfile.STANDARD:
        if sender.issuer is not None:
            begin(Step.ISSUER)
            check_issuer(claims, sender.issuer)
        begin(Step.AUDIENCE)
        check_audience(claims, audiences, head.target)
    elif signature is not None:
        begin(Step.AUDIENCE)  # its `@target-uri`, which is proven by now
    begin(Step.IDS)
    if claims is not None and selected.jwt is not None:
        _check_signed_ids(claims, sender, head.headers)
        # Every scheme signs `webhook-id`, and `jti` was compared with it.
        delivery_id = claims.delivery_id or _id_of_signed(selected.jwt)
    elif signature is not None:
        delivery_id = _bounded_id(signature.delivery_id)
    elif webhook is not None:
        delivery_id = webhook.delivery_id
    else:
        return VerifiedHead(sender=sender, delivery_id=_stated_id(head.headers, sender))
    return VerifiedHead(
        sender=sender, claims=claims, signature=signature, webhook=webhook, delivery_id=delivery_id
    )


def verify_body(head: VerifiedHead, body: bytes, sha256: str) -> None:
    """Do the rest of step 3: compare the body, and its hash, with what is signed.

    Raises:
        DigestMismatchError: The signature covers another body.
        InvalidSignatureError: No Standard Webhooks signature is valid.
    """
    claims = head.claims
    if claims is not None:
        if head.sender.profile is SenderProfile.A2A_SAMPLES and claims.body_sha256 != sha256:
            sha256 = body_sha256(_reserialised(body))
        check_body(claims, sha256, len(body))
    if head.signature is not None:
        check_content_digest(head.signature.digests, body, length=head.signature.length)
    if head.webhook is not None:
        check_webhook_signature(head.webhook, body, head.sender.verifiers)


def read_notification(head: VerifiedHead, body: bytes, sha256: str) -> VerifiedNotification:
    """Do step 6: parse the body, and compare it with what is signed.

    Raises:
        MalformedBodyError: No JSON within the limits.
        UnrecognisedBodyError: JSON of no A2A version.
        MalformedRequestError: The body names another task than the signature.
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

# Tokens and credentials are treated alike: stored as hashes, looked up by their hashes, bound to
# tasks. Hashes of 256 random bits need no salt. The time of a look-up may reveal how far two hashes
# agree, but that reveals nothing about the secret.


def presented(headers: Headers, sender: TrustedSender, jwt: UnverifiedJwt | None) -> Presented:
    """Read the secrets of a request; a JWT in `Authorization` is not one of them.

    Raises:
        TokenError: The token headers carry different tokens.
        MalformedRequestError: `Authorization` or `X-Api-Key` occurs twice.
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
    """Do step 5: compare the secrets of a request with those that the sender was given.

    A sender that was handed credentials must send them. It may then omit the token, as the
    JavaScript SDK does: the credentials prove as much. A wrong secret is refused even if the
    secret is optional.

    Args:
        handed_out: The sender's registrations that fit these secrets.

    Returns:
        The secret that authorises the notification; None if only a signature or configured
        credentials do.

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
        raise TokenError(
            f"found another token, expected one handed out to sender {sender.name}: the `token`"
            " of the push config"
        )
    if lacks_credentials:
        which = "other" if secret.credentials or secret.static_credentials else "no"
        raise TokenError(
            f"found {which} credentials, expected those handed out with the token: the"
            " `authentication` of the push config"
        )
    if sender.credentials and not secret.static_credentials and not by_credentials:
        raise TokenError(
            "found none of the credentials handed out to this sender, expected those of the"
            " `authentication` of the push config"
        )
    if secret.token is None and not by_credentials:
        if sender.token_required:
            raise TokenError("found no token, expected the `token` of the push config")
        if not sender.profile.signed and not secret.static_credentials:
            raise TokenError(
                "found neither token nor credentials: a sender that does not sign has to send the"
                " `token` or the `authentication` of the push config"
            )
    if secret.token is not None:
        return ProvenSecret(secret.token, static=not by_token)
    return ProvenSecret(by_credentials, static=False) if by_credentials else None


# --- by scheme ----------------------------------------------------------------------------------


def _stated_webhook(sender: TrustedSender, head: Head) -> UnverifiedWebhook | None:
    """Return what the headers of Standard Webhooks state; None for a sender without them.

    Raises:
        InvalidSignatureError: One is missing.
        MalformedRequestError: They cannot be read.
    """
    if Scheme.STANDARD_WEBHOOKS not in sender.signing:
        return None
    try:
        return read_unverified_webhook(head.headers)
    except InboundError:
        if head.trail.step is not Step.SIGNATURE:  # it has to wait for the body, which it is over
            head.trail.begun.append(Step.SIGNATURE)
        raise


def _check_times(claims: VerifiedJwt, sender: TrustedSender, now: datetime) -> None:
    check_times(claims, now, tolerance=sender.tolerance)
    if claims.not_before is not None:
        check_not_before(claims.not_before, now, sender.tolerance)
    if claims.expires_at is None and sender.profile is SenderProfile.STANDARD:
        raise ClaimError("the JWT must state `exp`")


def _check_signed_ids(claims: VerifiedJwt, sender: TrustedSender, headers: Headers) -> None:
    if sender.profile is SenderProfile.STANDARD:
        if claims.delivery_id is None:
            raise ClaimError("the JWT must state `jti`")
        if "." in claims.delivery_id:
            raise ClaimError("`jti` has a `.`, which Standard Webhooks forbids")
    check_webhook_id(claims, headers)
    _check_ids(claims.delivery_id, claims.config_id, claims.task_id)


def _verified_signature(
    selected: Selected, head: Head, audiences: Sequence[str]
) -> VerifiedHttpSignature:
    """Return the first valid HTTP message signature."""
    refusal = InvalidSignatureError("no HTTP message signature")
    for unverified, key in selected.signatures:
        try:
            return verify_http_signature(
                unverified,
                key,
                method=head.method,
                # From the configuration, never from `Host`: this binds the signature to us.
                target_uris=[audience_with_query(url, head.target) for url in audiences],
                headers=head.headers,
                algorithms=selected.sender.algorithms,
            )
        except InvalidSignatureError as exc:
            refusal = exc
    own = " or ".join(masked_url(url) for url in audiences)
    raise InvalidSignatureError(f"{refusal} (its @target-uri must be {own})") from refusal


def _id_of_signed(token: UnverifiedJwt) -> str:
    """Return an id for a sender without ids: the hash of the JWT's signing input.

    The signature is left out of the hash: an attacker could spell it in other ways.
    """
    signing_input = token.token.rpartition(".")[0]
    return f"jws_{hashlib.sha256(signing_input.encode()).hexdigest()}"


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


# --- ids of senders that do not sign ------------------------------------------------------------


def _stated_id(headers: Headers, sender: TrustedSender) -> str | None:
    """Return the id that the headers of an unsigned request state, if any.

    By default that is `webhook-id`, which Standard Webhooks keeps the same on every retry.
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
    """Refuse ids that not every database can index: too long, or with a NUL (PostgreSQL)."""
    for found in ids:
        if found is not None and ("\0" in found or len(found.encode()) > _MAX_ID_BYTES):
            raise MalformedRequestError(
                f"an id has a NUL, or more than {_MAX_ID_BYTES} bytes: {printable(found)}"
            )
