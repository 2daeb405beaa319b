"""The card that an agent serves: signed, cached, and signed again on rotation."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pushkit.cards import CardPublisher, TrustedKeys, verify_card
from pushkit.errors import KeyFileError, MalformedCardError, NoSigningKeyError
from pushkit.keys.files import save_key_ring, update_key_ring
from pushkit.keys.ring import KeyRing
from tests.unit.pushkit.cards.vectors import NOW, load

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
