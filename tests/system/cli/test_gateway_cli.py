"""`pushkit gateway` as a process of its own."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from pushkit import KeyRing, save_key_ring
from pushkit.cards import TrustedKeys, sign_card, verify_card
from pushkit.keys.jwks import jwks_document
from tests.eventually import eventually
from tests.forked import forked
from tests.served import answering, served
from tests.system.cli.conftest import ISSUER, running

pytestmark = pytest.mark.slow


async def test_a_card_is_signed_while_the_key_file_cannot_be_read(own_folder: Path) -> None:
    now = datetime.now(UTC)
    theirs, ours = KeyRing.create(now), KeyRing.create(now)
    save_key_ring("keys.json", ours)
    (own_folder / "jwks.json").write_bytes(jwks_document(theirs, now))

    async def answer(request: web.Request) -> web.Response:
        card = {"name": "a", "url": f"http://{request.host}/"}
        return web.json_response(body=sign_card(card, theirs, now=now).content)

    async with served(answering(answer)) as agent, aiohttp.ClientSession() as client:
        (own_folder / "trust.toml").write_text(
            f'[[origins."{agent}".keys]]\nfile = "jwks.json"\n', encoding="utf-8"
        )
        options = ["--upstream", agent, "--issuer", ISSUER, "--trust", "trust.toml"]
        more = ["--database", "outbox.db", "--shared-configs", "--listen", "127.0.0.1:0"]
        command = [*forked("pushkit.cli.main"), "gateway", *options, *more]
        with running(own_folder, *command) as (_, output):
            await eventually(lambda: " serves " in output.read_text())
            [serving] = [line for line in output.read_text().splitlines() if " serves " in line]
            (own_folder / "keys.json").write_text("spoilt", encoding="utf-8")
            url = f"http://{serving.split()[-1]}/.well-known/agent-card.json"
            async with client.get(url) as answered:
                card = await answered.read()
    assert json.loads(card)["url"] == f"{ISSUER}/"
    trusted = TrustedKeys.pinned(ours.signing_key(now).to_verification_key())
    assert verify_card(card, trusted, now=now).verified
