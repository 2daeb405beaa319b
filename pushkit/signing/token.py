"""The notification token: the client chooses it, and gets it back with its task's notifications.

A2A 0.1 spells the header `X-A2A-Token`, the SDKs `X-A2A-Notification-Token`, the Go and Rust SDKs
`A2A-Notification-Token` (wire profile §2).
"""

from __future__ import annotations

import hashlib

from pushkit.errors import TokenError
from pushkit.webhook import Headers

_API_KEY = "apikey"

TOKEN_HEADERS = ("X-A2A-Token", "X-A2A-Notification-Token", "A2A-Notification-Token")
_IN_LOWER_CASE = tuple(name.lower() for name in TOKEN_HEADERS)


def token_headers(token: str | None, *, go_spelling: bool = False) -> list[tuple[str, str]]:
    """Return the header fields that carry a token; an empty list for no token."""
    if not token:
        return []
    names = TOKEN_HEADERS if go_spelling else TOKEN_HEADERS[:2]
    return [(name, token) for name in names]


def read_token(headers: Headers) -> str | None:
    """Return the token of a request, in whichever header.

    Raises:
        TokenError: Two headers carry different tokens.
    """
    values, repeated = headers.values(), headers.repeated()
    stated = {values[name].strip(" \t") for name in _IN_LOWER_CASE if name in values}
    if repeated:
        stated.update(v.strip(" \t") for name in _IN_LOWER_CASE for v in repeated.get(name, ()))
    if len(stated) > 1:
        raise TokenError("the token headers carry different tokens, expected one token")
    return stated.pop() if stated else None


def hash_token(token: str) -> str:
    """Return the SHA-256 of a token in hex, which is stored and compared in place of the token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def hash_credentials(value: str) -> str:
    """Return the hash of an `Authorization` value, or of a bare API key."""
    # RFC 9110 §11.1: only the name of a scheme is case-insensitive.
    scheme, space, credentials = value.partition(" ")
    if not space or scheme.lower() == _API_KEY:
        return hash_token(credentials if space else value)
    return hash_token(f"{scheme.lower()} {credentials}")
