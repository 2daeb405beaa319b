"""The signatures of a notification, and their headers (wire profile §3)."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from pushkit.errors import ConfigError, PushkitError, SigningError
from pushkit.keys.jwk import RemoteKey, SigningKey
from pushkit.keys.primitives import JOSE, Methods, sign_bytes
from pushkit.options import check_options
from pushkit.scheduling.event_loop import IterationBatches
from pushkit.signing.http_message_signatures import sign_http_message
from pushkit.signing.jose import Sign, sign
from pushkit.signing.notification_jwt import SIGNATURE_HEADER as JWT_HEADER
from pushkit.signing.notification_jwt import body_sha256, sign_notification
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import (
    ID_HEADER,
    TIMESTAMP_HEADER,
    WebhookSigner,
    read_signers,
    sign_webhook,
)
from pushkit.subscriptions.model import Subscription
from pushkit.webhook import A2A_VERSION, Headers, WebhookRequest

if TYPE_CHECKING:
    from pushkit.delivery.route import Route
    from pushkit.outbox.model import Delivery

_log = logging.getLogger("pushkit.delivery")

_AUTHORIZATION = "Authorization"
_JWT_ALONE = frozenset({Scheme.JWT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """How notifications are signed. Each scheme has its own headers: several may be used together.

    Standard Webhooks names no audience: a notification signed for one webhook verifies at every
    other webhook with the same secret or key. Give each client, better each webhook, its own secret
    (see `SenderOptions.signing`), and use another scheme in addition where you can.

    Attributes:
        schemes: `jwt` (the default), `http-message-signatures` (signed by the key ring, like the
            JWT), `standard-webhooks`.
        webhook_secrets: The secrets of Standard Webhooks: `whsec_…` for v1, `whsk_…` for v1a.
            Give several while one is being replaced: each makes a signature.
        signers: The parsed secrets.

    Raises:
        ConfigError: No scheme, an unknown one, or secrets that do not fit the schemes.
    """

    schemes: Collection[Scheme | str] = _JWT_ALONE
    webhook_secrets: Sequence[str] = field(default=(), repr=False)
    signers: tuple[WebhookSigner, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options(self)
        if not self.schemes:
            raise ConfigError(f"schemes: expected at least one of {', '.join(Scheme)}")
        if bool(self.webhook_secrets) != (Scheme.STANDARD_WEBHOOKS in self.schemes):
            raise ConfigError(
                f"webhook_secrets: expected with scheme {Scheme.STANDARD_WEBHOOKS}, and only then"
                " (on the command line: --webhook-secrets-file)"
            )
        object.__setattr__(self, "signers", read_signers(self.webhook_secrets))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what was given: a parsed key cannot be pickled."""
        return functools.partial(
            Signing, schemes=self.schemes, webhook_secrets=self.webhook_secrets
        ), ()


SigningChoice: TypeAlias = Signing | Callable[[Subscription], Signing]


def signing_of(choice: SigningChoice, subscription: Subscription) -> Signing:
    """Return how the notifications of a subscription are signed.

    Raises:
        PushkitError: The `signing` function raised it.
        SigningError: The function raised another exception, or returned something else.
    """
    if isinstance(choice, Signing):
        return choice
    try:
        found = choice(subscription)
    except PushkitError:
        raise
    # The application's code failed: the attempt will be retried.
    except (Exception, asyncio.CancelledError) as exc:
        raise SigningError(f"signing: the function raised {type(exc).__name__}") from exc
    if not isinstance(found, Signing):
        raise SigningError(
            f"signing: the function returned {type(found).__name__}, expected a Signing"
        )
    return found


def warn_of_no_audience(choice: SigningChoice) -> None:
    """Log a warning if Standard Webhooks is used with the same secrets for every webhook."""
    if isinstance(choice, Signing) and Scheme.STANDARD_WEBHOOKS in choice.schemes:
        _log.warning(
            "Standard Webhooks is on with one set of secrets for every webhook: its signatures"
            " name no audience, so a webhook can replay to another one what it was sent"
        )


class BatchSigner:
    """Signs together what one round of the event loop asks to be signed.

    A signature reads a table of 150 KB: right after another one it takes two thirds of the time.
    """

    def __init__(self) -> None:
        self._batches = IterationBatches(_sign_all)

    def sign(
        self, data: bytes, key: SigningKey | RemoteKey, methods: Methods = JOSE, /
    ) -> Awaitable[bytes]:
        """Return the signature of data; a remote key signs at once, beside others."""
        if not isinstance(key, SigningKey):
            return sign(data, key, methods)
        signature = asyncio.get_running_loop().create_future()
        self._batches.add((signature, key, data, methods))
        return signature


def _sign_all(unsigned: Sequence[_Unsigned]) -> None:
    signed: list[tuple[asyncio.Future[bytes], bytes]] = []
    for signature, key, data, methods in unsigned:
        try:
            signed.append((signature, sign_bytes(key, data, methods)))
        except Exception as exc:  # noqa: BLE001  # the attempt gets it
            if not signature.done():
                signature.set_exception(exc)
    for signature, made in signed:
        if not signature.done():  # the attempt may have been cancelled
            signature.set_result(made)


_Unsigned: TypeAlias = "tuple[asyncio.Future[bytes], SigningKey, bytes, Methods]"


async def signed_headers(
    route: Route,
    delivery: Delivery,
    body: bytes,
    *,
    token: str | None = None,  # the token of the operator's OAuth client, if there is one
    signing: Signing,
    key: SigningKey | RemoteKey,
    now: datetime,  # the time of this request
    sign: Sign = sign,
) -> list[tuple[str, str]]:
    """Return the header fields of one request (wire profile §2), with its signatures.

    Raises:
        SigningError: A remote key did not sign.
    """
    version = delivery.version
    fields = [("Content-Type", version.content_type), (A2A_VERSION, version.value), *route.headers]
    if token is not None:
        fields.append((_AUTHORIZATION, f"Bearer {token}"))
    issued_at = int(now.timestamp())
    if Scheme.JWT in signing.schemes:
        jwt = await sign_notification(
            route.claims,
            key,
            issued_at=issued_at,
            delivery_id=delivery.id,
            seq=delivery.seq,
            body_sha256=body_sha256(body),
            sign=sign,
        )
        fields.append(
            (JWT_HEADER, jwt) if route.has_authorization else (_AUTHORIZATION, f"Bearer {jwt}")
        )
    # Id and timestamp are sent with every scheme.
    if Scheme.STANDARD_WEBHOOKS in signing.schemes:
        fields += sign_webhook(body, delivery_id=delivery.id, now=now, signers=signing.signers)
    else:
        fields += [(ID_HEADER, delivery.id), (TIMESTAMP_HEADER, str(issued_at))]
    if Scheme.HTTP_MESSAGE_SIGNATURES in signing.schemes:
        target = route.destination.url.audience
        request = WebhookRequest(target=target, headers=Headers(fields), body=body)
        fields += await sign_http_message(request, key, now=now, sign=sign)
    return fields
