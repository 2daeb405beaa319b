"""The card that an agent serves: signed, cached, and signed again on rotation."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
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
from pushkit.errors import (
    ConfigError,
    KeyFileError,
    MalformedCardError,
    NoSigningKeyError,
    SigningError,
)
from pushkit.keys.files import save_key_ring, update_key_ring
from pushkit.keys.jwk import Algorithm, RemoteKey
from pushkit.keys.ring import KeyRing
from tests.kms import Kms
from tests.unit.pushkit.cards.vectors import NOW, headers, load

CARD = load("cards_v10")["c21_spec_85_sample"]
JWKS = "https://agent.example.com/.well-known/jwks.json"
HOUR = timedelta(hours=1)


def published(ring: KeyRing) -> TrustedKeys:
    return TrustedKeys.pinned(*(entry.key.to_verification_key() for entry in ring.published(NOW)))


async def test_an_answer_has_the_signed_card_and_may_be_cached() -> None:
    ring = KeyRing.create(NOW)
    answer = await CardPublisher(CARD, ring, jku=JWKS).response(NOW)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "public, max-age=300"
    verdict = verify_card(answer.body, published(ring), now=NOW)
    assert verdict.verified
    assert [found.jku for found in verdict.signatures] == [JWKS]


async def test_who_has_the_card_already_gets_no_body() -> None:
    publisher = CardPublisher(CARD, KeyRing.create(NOW))
    first = await publisher.response(NOW)
    for held in (first.headers["ETag"], f'"x", {first.headers["ETag"]}', "*"):
        answer = await publisher.response(NOW, held)
        assert (answer.status, answer.body) == (304, b"")
        assert answer.headers["ETag"] == first.headers["ETag"]
    assert (await publisher.response(NOW, '"x"')).status == 200


async def test_the_card_is_signed_once_for_each_key() -> None:
    ring = KeyRing.create(NOW).rotate(NOW)
    publisher = CardPublisher(CARD, ring)
    before, again, after = [await publisher.response(at) for at in (NOW, NOW, NOW + HOUR)]
    assert before == again
    assert after.body != before.body
    assert after.headers["ETag"] != before.headers["ETag"]
    assert verify_card(after.body, published(ring), now=NOW + HOUR).verified


async def test_processes_of_one_agent_agree_on_the_tag() -> None:
    ring = KeyRing.create(NOW)
    one, two = [await CardPublisher(CARD, ring).response(NOW) for _ in range(2)]
    assert one.body != two.body  # ECDSA
    assert one.headers["ETag"] == two.headers["ETag"]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"card": {**CARD, "name": "Other"}}, id="card"),
        pytest.param({"jku": JWKS}, id="jku"),
        pytest.param({"forms": ("raw",)}, id="forms"),
    ],
)
async def test_the_tag_changes_with_what_is_served(other: dict[str, Any]) -> None:
    ring = KeyRing.create(NOW)
    base: dict[str, Any] = {"card": CARD, "keys": ring}
    tags = {
        (await CardPublisher(**options).response(NOW)).headers["ETag"]
        for options in (base, {**base, **other})
    }
    assert len(tags) == 2


async def test_a_cached_card_does_not_outlive_its_key() -> None:
    ring = KeyRing.create(NOW, grace=timedelta(seconds=60))
    answer = await CardPublisher(CARD, ring, max_age=HOUR).response(NOW)
    assert answer.headers["Cache-Control"] == "public, max-age=60"


async def test_a_key_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    save_key_ring(path, KeyRing.create(NOW))
    publisher = CardPublisher(CARD, path)
    [first] = (await publisher.signed(NOW)).kids
    ring = update_key_ring(path, lambda ring: ring.revoke(first, NOW))
    [second] = (await publisher.signed(NOW)).kids
    assert second == ring.signing_key(NOW).kid != first


async def test_what_cannot_be_served_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(MalformedCardError):
        CardPublisher(b"[]", KeyRing.create(NOW))
    with pytest.raises(KeyFileError):
        CardPublisher(CARD, tmp_path / "none.json")
    with pytest.raises(NoSigningKeyError):
        await CardPublisher(CARD, KeyRing(keys=())).response(NOW)


# --- signed by a key in a service ----------------------------------------------------------------


IN_TWO_FORMS: dict[str, Any] = {**CARD, "description": ""}


def trust(*services: Kms) -> TrustedKeys:
    return TrustedKeys.pinned(*(service.key.to_verification_key() for service in services))


@pytest.mark.parametrize("algorithm", Algorithm)
async def test_a_service_signs_a_card(algorithm: Algorithm) -> None:
    kms = Kms(algorithm)
    key = RemoteKey.of(kms)
    for keys in (kms, key, KeyRing.create(NOW, key=key)):
        signed = await sign_card_with(IN_TWO_FORMS, keys, now=NOW)
        assert signed.kids == (kms.key.kid,)
        verdict = verify_card(signed.content, trust(kms), now=NOW)
        assert verdict.verified
        assert [entry.accepted for entry in verdict.signatures] == [True, True]


async def test_it_signs_what_a_key_here_would_sign() -> None:
    kms = Kms(Algorithm.EDDSA)  # the same bytes for the same input
    jku = "https://agent.example.com/jwks.json"
    here = sign_card(IN_TWO_FORMS, kms.key, ("spec", "raw"), now=NOW, jku=jku).card
    for key in (kms.key, kms):
        assert (
            await sign_card_with(IN_TWO_FORMS, key, ("spec", "raw"), now=NOW, jku=jku)
        ).card == here
    assert '"pushkit-form":"spec"' in json.dumps(headers(here), separators=(",", ":"))


async def test_a_ring_replaces_what_its_former_service_signed() -> None:
    old, new = Kms(), Kms()
    ring = KeyRing.create(NOW, key=RemoteKey.of(old))
    first = await sign_card_with(IN_TWO_FORMS, ring, now=NOW)
    ring = ring.add(NOW, key=RemoteKey.of(new)).rotate(NOW)
    second = await sign_card_with(first.content, ring, now=NOW + HOUR)
    assert second.kids == (new.key.kid,)
    assert len(second.card["signatures"]) == 2  # type: ignore[arg-type]


async def test_a_service_that_does_not_sign_says_so_without_its_words() -> None:
    kms = Kms()
    kms.fails = True
    with pytest.raises(SigningError, match="ConnectionError") as refused:
        await sign_card_with(IN_TWO_FORMS, kms, now=NOW)
    assert "canary" not in str(refused.value)
    with pytest.raises(ConfigError, match="at least one form"):
        await sign_card_with(IN_TWO_FORMS, kms, (), now=NOW)


def test_without_waiting_a_key_in_a_service_cannot_sign() -> None:
    with pytest.raises(NoSigningKeyError, match="a remote signer keeps"):
        sign_card(IN_TWO_FORMS, KeyRing.create(NOW, key=RemoteKey.of(Kms())), now=NOW)


async def test_a_card_is_served_that_a_service_signed_once() -> None:
    kms = Kms()
    publisher = CardPublisher(IN_TWO_FORMS, kms)
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
    publisher = CardPublisher(IN_TWO_FORMS, ring)
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
    publisher = CardPublisher(IN_TWO_FORMS, ring)
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


async def test_a_service_that_hangs_is_not_asked_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pushkit.cards.publishing._SIGNING_SECONDS", 1)
    monkeypatch.setattr("pushkit.cards.publishing._PAUSE_SECONDS", 1)  # both are 10 s
    kms = Kms()
    publisher = CardPublisher(CARD, KeyRing.create(NOW, key=RemoteKey.of(kms)))
    kms.hangs = True
    with pytest.raises(SigningError):
        await publisher.signed(NOW)  # ends a second later
    with pytest.raises(SigningError):
        await publisher.signed(NOW + timedelta(seconds=1.1))  # the next request
    assert len(kms.asked) == 1
