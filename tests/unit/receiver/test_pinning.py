"""The issuer and keys that a verified card pins for an agent with a public name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from pushkit import KeyRing
from pushkit.cards import CardTrust, OriginTrust, sign_card
from pushkit.keys.jwks import jwks_document
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport, closing
from receiver.pinning import pin_card
from tests.internet import Internet
from tests.unit.pushkit.cards.vectors import load

AGENT = "agent.example.com"
CARD: dict[str, Any] = {**load("cards_v10")["c21_spec_85_sample"], "description": ""}


@pytest.mark.parametrize(
    ("port", "issuer"),
    [
        pytest.param(443, f"https://{AGENT}", id="of-the-scheme"),
        pytest.param(8443, f"https://{AGENT}:8443", id="of-its-own"),
    ],
)
async def test_the_issuer_is_the_base_url_as_agents_write_it(
    internet: Internet, port: int, issuer: str
) -> None:
    now = datetime.now(UTC)
    ring = KeyRing.create(now)
    jwks_url = f"{issuer}/.well-known/jwks.json"
    card = sign_card(CARD, ring, now=now, jku=jwks_url).content

    async def serve(request: web.Request) -> web.Response:
        is_keys = request.path.endswith("jwks.json")
        return web.Response(body=jwks_document(ring, now) if is_keys else card)

    await internet.serve(serve, name=AGENT, port=port)
    options = ConnectionOptions(resolver=internet.network.names, ca_file=internet.ca_file)
    async with closing(Transport(DestinationPolicy(), options)) as transport:
        origins = {issuer: OriginTrust(jwks_urls=(jwks_url,))}
        async with closing(CardTrust(origins, transport=transport)) as trust:
            pinned = await pin_card(f"https://{AGENT}:{port}", trust, now=now)

    assert (pinned.issuer, pinned.jwks_url) == (issuer, jwks_url)
