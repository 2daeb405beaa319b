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
    stated_names, token = headers.values(), None
    for name in _IN_LOWER_CASE:
        for value in headers.all(name) if name in stated_names else ():
            stated = value.strip(" \t")
            if token is not None and stated != token:
                raise TokenError("the token headers carry different tokens, expected one token")
            token = stated
    return token


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
