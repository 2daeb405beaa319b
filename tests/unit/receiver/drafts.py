"""Changes of a genuine request, and senders that sign by one scheme or another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pushkit.bounded_json import JsonValue
from pushkit.signing.jose import at_once, b64url_encode, sign
from pushkit.signing.notification_jwt import SIGNATURE_HEADER
from pushkit.signing.standard_webhooks import generate_webhook_secret, read_signers
from receiver import Scheme
from receiver.testing import Draft

__all__ = [
    "BASE", "HTTP", "JWT", "PATH", "SECRET", "SIGNERS", "WEBHOOKS",
    "adding", "claiming", "sending", "signed_with", "trusted", "with_jwt", "with_payload",
]  # fmt: skip

BASE = "https://client.example.com"
PATH = "/a2a/push"
SECRET = generate_webhook_secret()
SIGNERS = read_signers([SECRET])
JWT, WEBHOOKS, HTTP = Scheme.JWT, Scheme.STANDARD_WEBHOOKS, Scheme.HTTP_MESSAGE_SIGNATURES


def sending(draft: Draft, name: str, *values: str) -> Draft:
    """Let a header field stand with these values, each in a line of its own."""
    return replace(draft, headers_sent={**draft.headers_sent, name: values})


def adding(draft: Draft, name: str, value: str) -> Draft:
    """Send a line more of a header field."""
    return sending(draft, name, *draft.request().headers.all(name), value)


def claiming(draft: Draft, **claims: JsonValue) -> Draft:
    """Sign other claims, or leave out those that are None."""
    return replace(draft, claims={**draft.claims, **claims})


def signed_with(draft: Draft, *schemes: Scheme) -> Draft:
    return replace(draft, schemes=frozenset(schemes))


def with_jwt(draft: Draft, compact: str) -> Draft:
    """Send this in place of the JWT."""
    if draft.authorization:
        return sending(draft, SIGNATURE_HEADER, compact)
    return sending(draft, "Authorization", f"Bearer {compact}")


def with_payload(draft: Draft, payload: bytes) -> Draft:
    """Sign these bytes in place of the claims."""
    signed = f"{draft.jwt().partition('.')[0]}.{b64url_encode(payload)}"
    return with_jwt(draft, f"{signed}.{b64url_encode(at_once(sign(signed.encode(), draft.key)))}")


def trusted(*schemes: Scheme) -> dict[str, Any]:
    """Return the settings of a sender that signs so."""
    settings: dict[str, Any] = {"schemes": frozenset(schemes)}
    if WEBHOOKS in schemes:
        settings["webhook_secrets"] = [SECRET]
    if set(schemes) == {WEBHOOKS}:
        settings.update(keys=None, issuer=None)
    return settings
