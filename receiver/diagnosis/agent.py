"""The agent of the kit: drafts of notifications, signed as a pushkit sender signs them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from pushkit.a2a import WireVersion
from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.clock import utc_now
from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key, public_jwk
from pushkit.signing.http_message_signatures import sign_http_message
from pushkit.signing.jose import at_once, b64url_decode, sign_detached
from pushkit.signing.notification_jwt import body_sha256, sign_notification, static_claims
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import (
    WebhookSigner,
    generate_webhook_secret,
    read_signer,
    read_signers,
    sign_webhook,
)
from pushkit.signing.token import token_headers
from pushkit.url import audience_of
from pushkit.version import USER_AGENT
from pushkit.webhook import A2A_VERSION, Headers, WebhookRequest

_MIN_TOKEN_CHARS = 16
_JWT_ALONE = frozenset({Scheme.JWT})


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A notification that a receiver must accept; a check replaces one member."""

    url: str  # the webhook
    issuer: str  # `iss`
    audience: str  # `aud`
    key: SigningKey = field(repr=False)  # the key that signs it
    token: str = field(repr=False)  # the notification token; empty for none
    delivery_id: str  # `jti` and `webhook-id`
    task_id: str  # the signed `taskId`
    seq: int  # the signed `seq`
    body: bytes = field(repr=False)  # the raw bytes that are signed
    # The raw bytes that are sent instead, if any.
    body_sent: bytes | None = field(default=None, repr=False)
    # When this attempt is signed; None for the moment of `request()`.
    issued_at: datetime | None = None
    # Members of the JWS header, in addition to or instead of `typ`, `alg` and `kid`.
    header: Mapping[str, JsonValue] = field(default_factory=dict)
    signed: bool = True  # whether there is any signature
    schemes: frozenset[Scheme] = _JWT_ALONE  # of its signatures
    # The signers of Standard Webhooks.
    signers: tuple[WebhookSigner, ...] = field(default=(), repr=False)

    def request(self) -> WebhookRequest:
        """Return the request of an attempt, signed now unless `issued_at` is given."""
        moment = self.issued_at or utc_now()
        schemes = self.schemes if self.signed else ()
        headers = [
            ("Content-Type", WireVersion.V1_0.content_type),
            (A2A_VERSION, WireVersion.V1_0.value),
            ("User-Agent", USER_AGENT),
            *token_headers(self.token),
        ]
        if Scheme.JWT in schemes:
            headers.append(("Authorization", f"Bearer {self._jwt(moment)}"))
        if Scheme.STANDARD_WEBHOOKS in schemes:
            headers += sign_webhook(
                self.body, delivery_id=self.delivery_id, now=moment, signers=self.signers
            )
        else:
            headers.append(("webhook-id", self.delivery_id))
            headers.append(("webhook-timestamp", str(int(moment.timestamp()))))
        if Scheme.HTTP_MESSAGE_SIGNATURES in schemes:
            signed = WebhookRequest(target=self.audience, headers=Headers(headers), body=self.body)
            headers += at_once(sign_http_message(signed, self.key, now=moment))
        body = self.body if self.body_sent is None else self.body_sent
        return WebhookRequest(target=self.url, headers=Headers(headers), body=body)

    def forged(self) -> Draft:
        """Return a copy that another key signs, under the known kid."""
        return replace(
            self,
            key=replace(generate_key(Algorithm.ES256), kid=self.key.kid),
            signers=(read_signer(generate_webhook_secret()),),
        )

    def _jwt(self, moment: datetime) -> str:
        compact = at_once(
            sign_notification(
                static_claims(
                    issuer=self.issuer,
                    audience=self.audience,
                    task_id=self.task_id,
                    config_id="receiver-testing",
                ),
                self.key,
                issued_at=int(moment.timestamp()),
                delivery_id=self.delivery_id,
                seq=self.seq,
                body_sha256=body_sha256(self.body),
            )
        )
        return self._with_header(compact) if self.header else compact

    def _with_header(self, compact: str) -> str:
        _, payload, _ = compact.split(".")
        claims = b64url_decode(payload, "payload")
        jws = at_once(sign_detached(claims, {"typ": "JWT", **self.header}, self.key))
        unsigned = self.header.get("alg") == "none"  # RFC 7515 §8: an empty signature
        return f"{jws.protected}.{payload}.{'' if unsigned else jws.signature}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningAgent:
    """The agent that the receiver trusts. Raises ConfigError: a short token, a wrong secret."""

    webhook_url: str  # where the receiver accepts notifications; also the audience
    issuer: str = "https://agent.example.com"  # `iss`
    # The notification token that the receiver expects; at least 16 characters.
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    # Its signing key.
    key: SigningKey = field(default_factory=lambda: generate_key(Algorithm.ES256), repr=False)
    schemes: frozenset[Scheme] = _JWT_ALONE  # of its signatures
    # Its secrets or keys of Standard Webhooks, `whsec_…` or `whsk_…`.
    webhook_secrets: tuple[str, ...] = field(default=(), repr=False)
    signers: tuple[WebhookSigner, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signers", read_signers(self.webhook_secrets))
        # Half of a shorter one might occur in an answer by chance.
        if len(self.token) < _MIN_TOKEN_CHARS:
            raise ConfigError(
                f"token: found {len(self.token)} characters, expected at least {_MIN_TOKEN_CHARS}"
            )

    def jwks(self) -> JsonObject:
        """Return the JWK Set that the receiver is to trust."""
        return {"keys": [public_jwk(self.key)]}

    def draft(self, task_id: str, seq: int = 1) -> Draft:
        """Return a genuine notification with an id of its own: a status update, A2A 1.0."""
        event: JsonObject = {
            "taskId": task_id,
            "contextId": "context-1",
            "status": {"state": "TASK_STATE_WORKING"},
            "metadata": {"seq": seq},
        }
        return Draft(
            url=self.webhook_url,
            issuer=self.issuer,
            audience=audience_of(self.webhook_url),
            key=self.key,
            token=self.token,
            delivery_id=f"dlv_{secrets.token_hex(16)}",
            task_id=task_id,
            seq=seq,
            body=json.dumps({"statusUpdate": event}, separators=(",", ":")).encode(),
            schemes=self.schemes,
            signers=self.signers,
        )
