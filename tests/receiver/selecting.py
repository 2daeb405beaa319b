"""Step 2 alone: which of the trusted senders a request is from, and by which of its keys."""

from __future__ import annotations

from pushkit.errors import JwksError
from pushkit.keys.jwk import VerificationKey
from pushkit.keys.jwks import keys_by_kid
from pushkit.net.connection import Answer
from pushkit.net.jwks_client import JwksClient
from pushkit.webhook import Headers
from receiver import TrustedSender
from receiver.selection import (
    Entry,
    HeldKeys,
    Selected,
    at_hand,
    keys_to_ask_for,
    select,
    signed_by,
)
from receiver.trust import Trust, TrustSnapshot, keys_of


def holding(sender: TrustedSender, *keys: VerificationKey) -> Entry:
    return Entry(sender, HeldKeys(sender, keys_by_kid(keys)))


def unreachable(sender: TrustedSender) -> Entry:
    """Return a sender whose JWK Set cannot be fetched."""

    async def fetch(_url: str, _etag: str | None) -> Answer:
        raise JwksError("down")

    return Entry(sender, JwksClient("https://agent.example.com/jwks.json", fetch=fetch))


def selected_of(trust: TrustSnapshot, path: str, headers: Headers) -> Selected:
    asked = keys_to_ask_for(trust.at(path), headers)
    held = at_hand(asked)
    assert held is not None
    return signed_by(select(trust.at(path), asked, held), asked)


async def selected_by(trust: Trust, path: str, headers: Headers) -> Selected:
    """Do the same with keys that are fetched where that is due."""
    asked = keys_to_ask_for(trust.at(path), headers)
    return signed_by(select(trust.at(path), asked, await keys_of(asked)), asked)
