"""A request signed by any of the schemes, which a test changes after it is signed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pushkit.keys.jwk import SigningKey
from pushkit.signing.http_message_signatures import sign_http_message
from pushkit.signing.jose import at_once
from pushkit.signing.standard_webhooks import generate_webhook_secret, read_signer, sign_webhook
from pushkit.webhook import Headers, WebhookRequest
from receiver import Scheme

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import Draft, World

__all__ = [
    "BASE", "HTTP", "JWT", "PATH", "SECRET", "WEBHOOKS", "SchemesDraft", "drafted", "trusted",
]  # fmt: skip

Fields = list[tuple[str, str]]

BASE = "https://client.example.com"
PATH = "/a2a/push"
SECRET = generate_webhook_secret()
JWT, WEBHOOKS, HTTP = Scheme.JWT, Scheme.STANDARD_WEBHOOKS, Scheme.HTTP_MESSAGE_SIGNATURES


@dataclass
class SchemesDraft:
    """A request that would be accepted, signed by schemes of which the JWT need not be one.

    Attributes:
        draft: The request, and its JWT.
        schemes: What it is signed by.
        key: What makes the HTTP message signature.
        secrets: What make the Standard Webhooks signatures.
        url: The URL that is signed.
        method: The method that is signed.
        after: Header fields to replace once everything is signed; None to leave one out.
        added: Header fields to add once everything is signed.
    """

    draft: Draft
    schemes: frozenset[Scheme]
    key: SigningKey
    secrets: tuple[str, ...] = (SECRET,)
    url: str = f"{BASE}{PATH}"
    method: str = "POST"
    after: dict[str, str | None] = field(default_factory=dict)
    added: Fields = field(default_factory=list)

    def token(self) -> str:
        return self.draft.token()

    def request(self) -> WebhookRequest:
        if JWT not in self.schemes:
            self.draft.set(jwt_header=None)
        request = self.draft.request()
        body = self.draft.body
        fields = list(request.headers)
        if WEBHOOKS in self.schemes:
            signed = sign_webhook(
                body,
                delivery_id=self.draft.delivery_id,
                now=self.draft.issued_at,
                signers=[read_signer(secret) for secret in self.secrets],
            )
            fields = [one for one in fields if not one[0].startswith("webhook-")] + signed
        if HTTP in self.schemes:
            message = WebhookRequest(
                method=self.method, target=self.url, headers=Headers(fields), body=body
            )
            fields += at_once(sign_http_message(message, self.key, now=self.draft.issued_at))
        return WebhookRequest(
            target=request.target, headers=Headers(self._tampered(fields)), body=request.body
        )

    def _tampered(self, fields: Fields) -> Fields:
        changed = {name.lower() for name in self.after}
        kept = [one for one in fields if one[0].lower() not in changed]
        put = [(name, value) for name, value in self.after.items() if value is not None]
        return [*kept, *put, *self.added]


def trusted(*schemes: Scheme) -> dict[str, Any]:
    """Return the settings of a sender that signs so."""
    settings: dict[str, Any] = {"schemes": frozenset(schemes)}
    if WEBHOOKS in schemes:
        settings["webhook_secrets"] = [SECRET]
    if set(schemes) == {WEBHOOKS}:
        settings.update(keys=None, issuer=None)
    return settings


def drafted(world: World, *schemes: Scheme, number: int = 1) -> SchemesDraft:
    draft = world.draft(number)
    return SchemesDraft(
        draft=draft, schemes=frozenset(schemes or world.sender.schemes), key=draft.key
    )
