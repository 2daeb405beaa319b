"""`pin_card`: pins a sender by its verified agent card, as `receiver pin` does.

A card says where its signer publishes keys, and which schemas its data has. Neither can be trusted
more than the signature on the card: the card is verified strictly, under keys that the operator
trusts, and the operator then copies the result into the configuration.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from pushkit.bounded_json import JsonObject
from pushkit.cards import (
    FULL_COVERAGE,
    CardPolicy,
    CardTrust,
    TrustedKey,
    card_url,
    fetch_card,
    verify_card,
)
from pushkit.url import Url


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedCard:
    """The facts of a verified card that a configuration needs."""

    url: str  # of the card
    issuer: str  # the agent's base URL: the `iss` of its notifications
    # Where its signer publishes keys: one of the URLs that the operator trusts, if any.
    jwks_url: str | None
    key: TrustedKey | None  # that signed it
    card: JsonObject  # for `TrustedSender(card=...)`: it has the schemas of the agent's data
    warnings: tuple[str, ...] = ()  # about members that the signature does not cover


async def pin_card(
    url: str,
    trust: CardTrust,
    *,
    now: datetime,
    policy: CardPolicy = FULL_COVERAGE,
) -> PinnedCard:
    """Fetch and verify the card at a URL, or the one of the agent at that URL.

    Raises:
        CardRefusedError: No signature is accepted; the message says why.
        PushkitError: It cannot be fetched, or is no card.
        ConfigError: The trust has no transport.
    """
    url = card_url(url)
    content = await fetch_card(trust.transport, url)
    keys = await trust.keys_for(url, content)
    verdict = await asyncio.to_thread(verify_card, content, keys, now=now, policy=policy)
    verdict.require()
    served_at = Url.parse(url)
    return PinnedCard(
        url=url,
        issuer=f"{served_at.scheme}://{served_at.authority}",
        jwks_url=verdict.jwks_url,
        key=verdict.best.key if verdict.best else None,
        card=verdict.card,
        warnings=verdict.warnings,
    )
