"""Where a subscription's own credentials go (wire profile §2)."""

from __future__ import annotations

from pushkit.a2a import Authentication

__all__ = ["credential_header"]

_API_KEY = "apikey"


def credential_header(authentication: Authentication | None) -> tuple[str, str] | None:
    """Return the header field that carries a client's static credentials, or None.

    `Authorization` is exactly `{scheme} {credentials}` (A2A 1.0 §4.3.3); an API key travels in
    `X-Api-Key`. A scheme without credentials gives nothing to send.
    """
    if authentication is None or not authentication.scheme or not authentication.credentials:
        return None
    if authentication.scheme.lower() == _API_KEY:
        return ("X-Api-Key", authentication.credentials)
    return ("Authorization", f"{authentication.scheme} {authentication.credentials}")
