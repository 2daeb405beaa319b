"""The signature schemes. Each has its own headers, so a request may be signed by several."""

from __future__ import annotations

from enum import StrEnum


class Scheme(StrEnum):
    """How a notification is signed (wire profile §3)."""

    JWT = "jwt"
    """The notification JWT: names issuer, webhook, delivery and body. The default."""
    STANDARD_WEBHOOKS = "standard-webhooks"
    """Id, time and body, by a shared secret (`v1`) or an Ed25519 key (`v1a`). It names no audience:
    a request for one webhook is valid at every other one with the same secret or key."""
    HTTP_MESSAGE_SIGNATURES = "http-message-signatures"
    """RFC 9421: method, URL, the headers that matter, and the body by its Content-Digest."""
