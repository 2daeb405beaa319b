"""Pins a sender by its verified agent card.

A card says where its signer publishes keys, and which schemas its data has. Neither can be trusted
more than the signature on the card: the card is verified strictly, under keys that the operator
trusts, and the operator then copies the result into the configuration.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from pushkit.bounded_json import JsonObject
from pushkit.cards import FULL_COVERAGE, CardTrust, card_url, fetch_card, verify_card
from pushkit.errors import ConfigError
from pushkit.net.transport import Transport
from pushkit.url import Url


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedCard:
    """The facts of a verified card that a configuration needs."""

    url: str  # of the card
    issuer: str  # the agent's base URL: the `iss` of its notifications
    jwks_url: str  # where its signer publishes keys; one of the URLs that the operator trusts
    card: JsonObject  # for `TrustedSender(card=...)`: it has the schemas of the agent's data
    warnings: tuple[str, ...] = ()  # about members that the signature does not cover


async def pin_card(
    url: str,
    trust: CardTrust,
    *,
    transport: Transport,
    now: datetime,
) -> PinnedCard:
    """Fetch and verify the card at a URL, or the one of the agent at that URL.

    Raises:
        CardRefusedError: No signature is accepted; the message says why.
        ConfigError: It is verified, but no trusted URL has its signer's keys.
        PushkitError: It cannot be fetched, or is no card.
    """
    url = card_url(url)
    content = await fetch_card(transport, url)
    keys = await trust.keys_for(url, content)
    verdict = await asyncio.to_thread(verify_card, content, keys, now=now, policy=FULL_COVERAGE)
    verdict.require()
    if verdict.jwks_url is None:
        raise ConfigError(
            f"{url}: verified, but its signer's keys are not published at a trusted URL: name one"
            " in jwks_urls, or give the sender a jwks_file"
        )
    served_at = Url.parse(url)
    return PinnedCard(
        url=url,
        issuer=f"{served_at.scheme}://{served_at.authority}",
        jwks_url=verdict.jwks_url,
        card=verdict.card,
        warnings=verdict.warnings,
    )
