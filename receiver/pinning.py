"""From a sender's verified agent card to trust in that sender: once, by the operator's own act.

A card says where its signer publishes keys, and which schemas its data has. Both are worth as much
as the signature on the card; so the card is verified strictly, under keys that the operator trusts,
and what it says is then written down, in the configuration, where all other trust stands.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from pushkit.bounded_json import JsonObject
from pushkit.cards import FULL_COVERAGE, CardPolicy, CardTrust, card_url, fetch_card, verify_card
from pushkit.errors import ConfigError
from pushkit.net.transport import Transport
from pushkit.url import Url


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedCard:
    """What a verified card says of its agent."""

    url: str  # where it was served
    issuer: str  # the agent's base URL: what its notifications state as `iss`
    jwks_url: str  # where its signer publishes keys; it is one that the operator trusts
    # The card itself, for `TrustedSender(card=...)`: the schemas of its data are in it.
    card: JsonObject
    warnings: tuple[str, ...] = ()  # what the signature leaves open


async def pin_card(
    url: str,
    trust: CardTrust,
    *,
    transport: Transport,
    now: datetime,
    policy: CardPolicy = FULL_COVERAGE,
) -> PinnedCard:
    """Fetch the card at a URL, or of the agent there, verify it, and return what it pins.

    Raises:
        CardRefusedError: No signature counts; the message says why.
        ConfigError: It is verified, but no trusted URL holds its signer's keys.
        PushkitError: It cannot be fetched, or is no card.
    """
    url = card_url(url)
    content = await fetch_card(transport, url)
    keys = await trust.keys_for(url, content)
    verdict = await asyncio.to_thread(verify_card, content, keys, now=now, policy=policy)
    verdict.require()
    if verdict.jwks_url is None:
        raise ConfigError(
            f"{url}: verified, but its signer's keys are pinned and not published at a URL that is"
            " trusted: name one in jwks_urls, or give the sender a jwks_file"
        )
    served_at = Url.parse(url)
    return PinnedCard(
        url=url,
        issuer=f"{served_at.scheme}://{served_at.authority}",
        jwks_url=verdict.jwks_url,
        card=verdict.card,
        warnings=verdict.warnings,
    )
