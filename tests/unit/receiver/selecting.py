"""Step 2 alone: which of the trusted senders a request is from, and by which of its keys."""

from __future__ import annotations

from pushkit.errors import JwksError
from pushkit.keys.jwk import VerificationKey
from pushkit.keys.jwks import keys_by_kid
from pushkit.net.connection import HttpAnswer
from pushkit.net.jwks_client import JwksClient
from pushkit.webhook import Headers, WebhookRequest
from receiver import TrustedSender
from receiver.request import Request
from receiver.selection import (
    Entry,
    HeldKeys,
    ReceiverPath,
    keys_at_hand,
    read_signatures,
    select_sender,
)
from receiver.signatures import SignedClaims, verify_signatures
from receiver.steps import Trail
from receiver.trust import Trust, TrustSnapshot, fetch_keys


def holding(sender: TrustedSender, *keys: VerificationKey) -> Entry:
    return Entry(sender, HeldKeys(sender, keys_by_kid(keys)))


def unreachable(sender: TrustedSender) -> Entry:
    """Return a sender whose JWK Set cannot be fetched."""

    async def fetch(_url: str, _etag: str | None) -> HttpAnswer:
        raise JwksError("down")

    return Entry(sender, JwksClient("https://agent.example.com/jwks.json", fetch=fetch))


def endpoint_of(trust: Trust | TrustSnapshot, path: str) -> ReceiverPath:
    return trust.endpoints[path] if isinstance(trust, Trust) else trust.at(path)


def selected_of(trust: TrustSnapshot, path: str, headers: Headers) -> HeldKeys:
    stated = read_signatures(trust.at(path), headers, Trail())
    keys = keys_at_hand(stated)
    assert keys is not None
    return select_sender(trust.at(path), stated, keys)


async def selected_by(trust: Trust, path: str, headers: Headers) -> HeldKeys:
    """Do the same with keys that are fetched where that is due."""
    stated = read_signatures(endpoint_of(trust, path), headers, Trail())
    return select_sender(endpoint_of(trust, path), stated, await fetch_keys(stated))


async def signed_by(trust: Trust | TrustSnapshot, path: str, headers: Headers) -> SignedClaims:
    """Select the sender, and verify the signatures of a head."""
    stated = read_signatures(endpoint_of(trust, path), headers, Trail())
    held = select_sender(endpoint_of(trust, path), stated, await fetch_keys(stated))
    whole = WebhookRequest(target=path, headers=headers, body=b"")
    return verify_signatures(held, stated, Request.of(whole, path, trail=Trail()), [path])
