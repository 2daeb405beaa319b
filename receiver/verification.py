"""The verification of a notification: ten steps, in this order (wire profile §4).

| step | what is checked | from | refused with |
|---|---|---|---|
| 1 | rate of the address; size of the head, declared length, type | the head | 429 431 413 415 |
| 2 | which trusted sender: path, `iss`, `kid` (`receiver.selection`) | the head | 403 |
| 3 | the signatures that this sender must make (`receiver.signatures`) | the head | 401; 503 |
| 4 | times, audience, issuer; the ids agree | the head | 401 400 |
| 5 | token and credentials (`receiver.tokens`) | the head | 401 |
| 1 | the body: its size, within the deadline | the body | 413 408 400 |
| 3 | its hash is the signed one | the body | 401 |
| 6 | rate of the sender; the body is an update, of the signed task | the body | 429 400 422 |
| 7 | replay: an accepted id with this body is a retry, with another a conflict | the store | 409 |
| 8 | the task is expected | the store | 404 |
| 9 | capacity; id, binding and notification are stored in one transaction | the store | 429 503 |
| 10 | callbacks, in the order of the task | the inbox | |

The body of an unproven request is never read. `Verification.verify` does steps 1 to 6 for the
service; `verify_notification`, for applications with a store of their own, does 2 to 6 by the same
functions in the same order. Each function notes its step in the request's trail (`receiver.steps`).
Steps 7 to 9 are one transaction, `Acceptance.store` in `receiver.accepting`; step 10 is
`receiver.callbacks`. Every refusal has its row in `receiver.refusals`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from pushkit.errors import ConfigError, InboundError
from pushkit.logs import printable
from pushkit.options import check_list, check_type
from pushkit.scheduling.event_loop import LoopLock, in_own_thread
from pushkit.webhook import Headers, WebhookRequest, hash_token
from receiver.notification import Accepted, Verified, VerifiedNotification, read_notification
from receiver.refusals import REFUSALS
from receiver.request import LARGE_BODY, Request, turn_to_decode
from receiver.selection import ReceiverPath, keys_at_hand, read_signatures, select_sender
from receiver.senders import TrustedSender
from receiver.service_state import ServiceState, body_too_large, read_in_time
from receiver.signatures import SignedClaims, check_claims, prove_body, verify_signatures
from receiver.steps import Step, Trail
from receiver.tokens import HandedOut, check_secrets, read_secrets
from receiver.trust import TrustSnapshot, fetch_keys

# A pass over a larger body takes longer than a thread costs: 0.6 ms for 1 MiB, and there is one
# for its hash, one for each secret, and up to four for each `whpk_` key.
_HASHED_AT_ONCE = 256 * 1024


class MethodNotAllowedError(
    InboundError, code="method_not_allowed", status=REFUSALS["method_not_allowed"].status
):
    """The request is no POST."""


class Verification:
    """Verifies the notifications of a service."""

    def __init__(
        self,
        state: ServiceState,  # limits, rates and caches
        clock: Callable[[], datetime],
    ) -> None:
        self._state = state
        self._clock = clock
        self._decoding = LoopLock()

    async def verify(
        self, request: Request, endpoint: ReceiverPath, *, peer: str
    ) -> Verified | Accepted:
        """Do steps 1 to 6 on a POST to the path of trusted senders.

        Args:
            request: The request.
            endpoint: The senders at its path, and the sources of their keys.
            peer: The address that it came from, behind trusted proxies.

        Returns:
            What is to be accepted; or what this process accepted before under the same id.

        Raises:
            InboundError: Refused: `status` is the answer, `code` the row in `receiver.refusals`,
                the message is for the log alone.
            StorageError: The registrations could not be read.
        """
        state, trail, now = self._state, request.trail, self._clock()
        state.count_peer(peer, now)  # 1
        state.check_head(request)  # 1
        stated = read_signatures(endpoint, request.headers, trail)  # 2
        keys = keys_at_hand(stated)
        if keys is None:
            keys = await fetch_keys(stated)
        held = select_sender(endpoint, stated, keys)  # 2
        sender = held.sender
        headers, audiences = request.headers, sender.audiences or (endpoint.url,)
        claims = verify_signatures(held, stated, request, audiences)  # 3
        delivery_id = check_claims(claims, request, audiences, now)  # 4
        secrets = read_secrets(claims, request)  # 5
        registered = await state.registered(sender, secrets)
        secret = check_secrets(claims, secrets, registered, trail)  # 5
        body = await self._body(request, sender)  # 1
        sha256 = await self._proven(claims, body, trail)  # 3
        state.count_sender(sender, trail)  # 6
        before = state.accepted_before(claims, delivery_id, sha256, now)
        if before is not None:
            trail.begun.append(Step.REPLAY)  # 7, without a query
            return Accepted(sender, delivery_id, before, None)
        notification = read_notification(  # 6
            claims, delivery_id, body, sha256, trail, headers=headers
        )
        return Verified(sender, secret, notification, body)

    async def _body(self, request: Request, sender: TrustedSender) -> bytes:
        """Return the body, read within the deadline, and bounded."""
        request.trail.begun.append(Step.SIZE)
        limits, body = self._state.limits, request.body
        limit = min(sender.max_body_bytes or limits.max_body_bytes, limits.max_body_bytes)
        if body is None:
            body = await read_in_time(request, limit, limits.request_timeout)
            if body is None:
                raise body_too_large(f"more than {limit} bytes", limit, sender)
            if len(body) > LARGE_BODY:
                await turn_to_decode(self._decoding)
        if len(body) > limit:
            raise body_too_large(f"{len(body)} bytes", limit, sender)
        return body

    async def _proven(self, claims: SignedClaims, body: bytes, trail: Trail) -> str:
        """Compare the body with what is signed; return its hash. See `prove_body`."""
        if len(body) <= _HASHED_AT_ONCE:
            return prove_body(claims, body, trail)
        async with self._decoding.here:  # one at a time: strangers may send many
            return await in_own_thread(prove_body, claims, body, trail)


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
    same functions verify inside `Receiver`.

    Args:
        request: The request, with the raw body.
        trust: The trusted senders and their current keys.
        now: The current time, aware.
        path: The sender's path, if the request's own path has a prefix before it.
        tokens: Tokens that the caller handed out, in addition to the senders' own `tokens`.
        trail: Gets the steps that the request comes to, and what is proven of it.

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
    trail = trail or Trail()
    if request.method != "POST":
        raise MethodNotAllowedError(f"method {printable(request.method)}, expected POST")
    path = path or request.target.partition("?")[0]
    asked = Request.of(request, path, trail=trail)
    endpoint = trust.at(path)
    stated = read_signatures(endpoint, request.headers, trail)  # 2
    keys = keys_at_hand(stated) or ()
    held = select_sender(endpoint, stated, keys)  # 2
    audiences = held.sender.audiences or (endpoint.url,)
    claims = verify_signatures(held, stated, asked, audiences)  # 3
    delivery_id = check_claims(claims, asked, audiences, now)  # 4
    secrets = read_secrets(claims, asked)  # 5
    registered = [HandedOut(token=hash_token(token)) for token in tokens]
    check_secrets(claims, secrets, registered, trail)  # 5
    sha256 = prove_body(claims, request.body, trail)  # 3
    headers, body = request.headers, request.body
    return read_notification(claims, delivery_id, body, sha256, trail, headers=headers)  # 6


def check_request(request: WebhookRequest) -> None:
    """Check the types of a request that a caller made; raises ConfigError."""
    check_type("request", request, WebhookRequest)
    check_type("request: target", request.target, str)
    check_type("request: headers", request.headers, Headers)
    check_type("request: body", request.body, bytes)  # the raw bytes: a text is not what was signed
