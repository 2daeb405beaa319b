"""Cards that are signed by a key in a service."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from pushkit.cards import (
    CardPublisher,
    SignedCard,
    TrustedKeys,
    sign_card,
    sign_card_with,
    verify_card,
)
from pushkit.errors import ConfigError, NoSigningKeyError, SigningError
from pushkit.keys.jwk import Algorithm
from pushkit.keys.remote import RemoteKey
from pushkit.keys.ring import KeyRing
from tests.kms import Kms
from tests.unit.pushkit.cards.vectors import NOW, headers, load

CARD: dict[str, Any] = {**load("cards_v10")["c21_spec_85_sample"], "description": ""}
HOUR = timedelta(hours=1)


def trust(*services: Kms) -> TrustedKeys:
    return TrustedKeys.pinned(*(service.key.to_verification_key() for service in services))


@pytest.mark.parametrize("algorithm", Algorithm)
async def test_a_service_signs_a_card(algorithm: Algorithm) -> None:
    kms = Kms(algorithm)
    key = RemoteKey.of(kms)
    for keys in (kms, key, KeyRing.create(NOW, key=key)):
        signed = await sign_card_with(CARD, keys, now=NOW)
        assert signed.kids == (kms.key.kid,)
        verdict = verify_card(signed.content, trust(kms), now=NOW)
        assert verdict.verified
        assert [entry.accepted for entry in verdict.signatures] == [True, True]


async def test_it_signs_what_a_key_here_would_sign() -> None:
    kms = Kms(Algorithm.EDDSA)  # the same bytes for the same input
    jku = "https://agent.example.com/jwks.json"
    here = sign_card(CARD, kms.key, ("spec", "raw"), now=NOW, jku=jku).card
    for key in (kms.key, kms):
        assert (await sign_card_with(CARD, key, ("spec", "raw"), now=NOW, jku=jku)).card == here
    assert '"pushkit-form":"spec"' in json.dumps(headers(here), separators=(",", ":"))


async def test_a_ring_replaces_what_its_former_service_signed() -> None:
    old, new = Kms(), Kms()
    ring = KeyRing.create(NOW, key=RemoteKey.of(old))
    first = await sign_card_with(CARD, ring, now=NOW)
    ring = ring.add(NOW, key=RemoteKey.of(new)).rotate(NOW)
    second = await sign_card_with(first.content, ring, now=NOW + HOUR)
    assert second.kids == (new.key.kid,)
    assert len(second.card["signatures"]) == 2  # type: ignore[arg-type]


async def test_a_service_that_does_not_sign_says_so_without_its_words() -> None:
    kms = Kms()
    kms.fails = True
    with pytest.raises(SigningError, match="ConnectionError") as refused:
        await sign_card_with(CARD, kms, now=NOW)
    assert "canary" not in str(refused.value)
    with pytest.raises(ConfigError, match="at least one form"):
        await sign_card_with(CARD, kms, (), now=NOW)


def test_without_waiting_a_key_in_a_service_cannot_sign() -> None:
    with pytest.raises(NoSigningKeyError, match="a remote signer keeps"):
        sign_card(CARD, KeyRing.create(NOW, key=RemoteKey.of(Kms())), now=NOW)


async def test_a_card_is_served_that_a_service_signed_once() -> None:
    kms = Kms()
    publisher = CardPublisher(CARD, kms)
    answers = await asyncio.gather(*(publisher.response(NOW) for _ in range(10)))
    assert len({answer.body for answer in answers}) == 1
    assert len(kms.asked) == 2  # in two forms
    assert verify_card(answers[0].body, trust(kms), now=NOW).verified


async def test_while_a_service_does_not_sign_the_card_of_the_former_key_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, new = Kms(), Kms()
    ring = KeyRing.create(NOW, key=RemoteKey.of(old))
    ring = ring.add(NOW, key=RemoteKey.of(new)).rotate(NOW)
    publisher = CardPublisher(CARD, ring)
    first = await publisher.response(NOW)
    new.fails = True
    handover = NOW + ring.activation_lead
    assert await publisher.response(handover) == first
    assert "the previous key" in caplog.text
    with pytest.raises(SigningError):
        await publisher.response(handover + ring.grace)  # it is not published any more
    new.fails = False
    answer = await publisher.response(handover)
    assert verify_card(answer.body, trust(new), now=handover).verified


@pytest.mark.parametrize("has_previous", [True, False])
async def test_a_service_that_fails_is_asked_once_in_ten_seconds(has_previous: bool) -> None:
    old, new = Kms(), Kms()
    ring = KeyRing.create(NOW, key=RemoteKey.of(old))
    ring = ring.add(NOW, key=RemoteKey.of(new)).rotate(NOW)
    publisher = CardPublisher(CARD, ring)
    if has_previous:
        await publisher.response(NOW)
    new.fails, handover = True, NOW + ring.activation_lead
    for seconds in (0, 0, 1, 9):
        requests = [publisher.signed(handover + timedelta(seconds=seconds)) for _ in range(10)]
        for answer in await asyncio.gather(*requests, return_exceptions=True):
            if has_previous:
                assert isinstance(answer, SignedCard)
                assert answer.kids == (old.key.kid,)
            else:
                assert isinstance(answer, SigningError)
                assert "ConnectionError" in str(answer)
    assert len(new.asked) == 1
    new.fails = False
    signed = await publisher.signed(handover + timedelta(seconds=10))
    assert signed.kids == (new.key.kid,)
