"""The log of a refusal: enough to correct a wrong setting, once, and no secret."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from pushkit.keys.jwk import Algorithm, generate_key
from pushkit.signing.scheme import Scheme
from receiver import InboundError, Limits, RateLimit, SenderProfile, load_trust, verify_notification
from receiver.refusals import Refusals
from receiver.steps import Trail
from tests.unit.receiver.drafts import claiming

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

BASE = "https://client.example.com"
SLOW = RateLimit(per_second=0.001, burst=1)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the refusals in the log."""
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if message.startswith("refused ")]


async def test_a_member_of_a_wrong_type_is_reported_once_and_the_update_is_accepted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        draft = world.draft(number)
        draft = replace(
            draft, body=draft.body.replace(b'"contextId": "context-1"', b'"contextId": ["secret"]')
        )
        assert (await world.receive(draft)).code == "accepted"

    [line] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line == (
        "left out of sender=agent task=task-1 id=delivery-task-1-1:"
        " StatusUpdate.contextId: expected a valid string"
    )


# --- what came, and what is expected ---------------------------------------------------------


async def test_a_wrong_audience_is_shown_beside_the_right_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    draft = replace(world.draft(), audience="https://old.example.com/a2a/push")
    assert (await world.receive(draft)).code == "wrong_audience"
    [line] = said(caplog)
    assert "`aud` is https://old.example.com/a2a/push" in line
    assert f"expected {BASE}/a2a/push" in line


async def test_the_query_of_an_audience_is_not_shown(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    draft = claiming(
        world.draft(),
        aud=[f"https://user:canary@client.example.com/?key=canary{n}" for n in range(5)],
    )
    assert (await world.receive(draft)).code == "wrong_audience"
    [line] = said(caplog)
    assert "`aud` is https://***@client.example.com/?*** or " in line
    assert "and 2 more" in line
    assert "canary" not in line


async def test_an_unknown_issuer_is_shown_beside_those_that_are_trusted(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.add_sender("other", "https://other.example.com", generate_key(Algorithm.ES256))
    draft = replace(world.draft(), issuer="https://agent.example.com/\n")
    assert (await world.receive(draft)).code == "unknown_sender"
    [line] = said(caplog)
    assert "iss https://agent.example.com/\\n kid " in line
    assert "agent (iss https://agent.example.com), other (iss https://other.example.com)" in line


async def test_a_key_that_nobody_has_is_shown_with_the_senders_of_the_path(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(profile=SenderProfile.A2A_SAMPLES, issuer=None)
    other = generate_key(Algorithm.ES256)
    keys = [other.to_verification_key()]
    world.options["more_senders"] = [dataclasses.replace(world.sender, name="other", keys=keys)]
    draft = replace(world.draft(), key=generate_key(Algorithm.ES256))
    assert (await world.receive(draft)).code == "unknown_sender"
    [line] = said(caplog)
    assert f"kid {draft.key.kid}, expected a trusted sender of this path: agent" in line
    assert "agent (by its keys), other (by its keys)" in line


async def test_senders_that_cannot_be_distinguished_are_named(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(profile=SenderProfile.A2A_SAMPLES, issuer=None)
    world.options["more_senders"] = [dataclasses.replace(world.sender, name="twin")]
    assert (await world.receive(world.draft())).code == "unknown_sender"
    assert "more than one sender of this path: agent (by its keys), twin" in said(caplog)[0]


async def test_a_request_without_a_signature_is_answered_that_one_is_expected(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    other = dataclasses.replace(world.sender, name="other", issuer="https://other.example.com")
    world.options["more_senders"] = [other]
    draft = replace(world.draft(), signed=False)
    assert (await world.receive(draft)).code == "unknown_sender"
    expected = "found no signature, expected one by a sender of this path: agent (iss "
    assert expected in said(caplog)[0]


# --- whose limit ------------------------------------------------------------------------------


async def test_a_senders_own_size_limit_is_logged_as_its_own(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    for edge in ("", "aiohttp", "asgi"):
        caplog.clear()
        world = make_world(max_body_bytes=100)
        if edge:
            world.edge = edge
            assert (await world.post(world.draft())).status == 413
        else:
            assert (await world.receive(world.draft())).status == 413
        [line] = said(caplog)
        assert "sender=agent" in line
        assert "expected at most 100: max_body_bytes of sender agent" in line


async def test_the_receivers_size_limit_is_logged_as_the_receivers(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world({"limits": Limits(max_body_bytes=100)}, max_body_bytes=10_000)
    assert (await world.receive(world.draft())).status == 413
    assert "expected at most 100: max_body_bytes of the receiver" in said(caplog)[0]


# --- how often --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "whose"),
    [
        pytest.param(Limits(peer_rate=SLOW), "peer=192.0.2.1: over peer_rate", id="peer"),
        pytest.param(Limits(sender_rate=SLOW), " sender=agent: over sender_rate", id="sender"),
    ],
)
async def test_one_address_or_sender_over_its_rate_is_one_line(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture, limits: Limits, whose: str
) -> None:
    world = make_world({"limits": limits})
    verdicts = [await world.receive(world.draft(number)) for number in range(1, 100)]
    assert {verdict.status for verdict in verdicts[1:]} == {429}
    [line] = said(caplog)
    assert f"{whose}, 0.001 a second, for another 1000 s" in line


async def test_a_sender_over_a_rate_of_its_own_is_said_to_have_one(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(rate=SLOW)
    await world.receive(world.draft(1))
    await world.receive(world.draft(2))
    [line] = said(caplog)
    assert "over the rate of sender agent, 0.001 a second" in line


async def test_keys_that_cannot_be_had_are_one_line(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    nowhere = f"http://127.0.0.1:{unused_tcp_port}/jwks.json"
    world = make_world({"allow": ["127.0.0.1:*"]}, keys=None, jwks_url=nowhere)
    for number in range(1, 20):
        assert (await world.receive(world.draft(number))).code == "keys_unavailable"
    assert len(said(caplog)) == 1


async def test_a_stranger_does_not_fill_the_log_under_its_rate_either(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    draft = replace(world.draft(), signed=False)
    for _ in range(300):
        assert (await world.receive(draft)).status == 401
    lines = said(caplog)
    assert 1 <= len(lines) < 100  # one a second, however slow this machine is


async def test_each_refusal_of_a_known_sender_is_a_line_of_its_own(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2, 3):
        await world.receive(world.draft(number, token="wrong"))
    assert len(said(caplog)) == 3


# --- the method -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "PUT", "post", "POST "])
async def test_a_method_other_than_post_is_refused_everywhere(
    world: World, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    await world.start()
    request = dataclasses.replace(world.draft().request(), method=method)
    verdict = await world.receiver.receive(request)
    assert (verdict.status, verdict.code) == (405, "method_not_allowed")
    with pytest.raises(InboundError) as caught:
        verify_notification(request, load_trust(BASE, [world.sender]), now=world.clock.now)
    assert (caught.value.status, caught.value.code) == (405, "method_not_allowed")
    assert f"method {method}, expected POST" in caplog.text


async def test_a_signature_that_does_not_hold_names_the_url_that_it_must_be_for(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world = make_world(schemes={Scheme.HTTP_MESSAGE_SIGNATURES}, issuer=None)
    draft = replace(world.draft(), audience="https://elsewhere.example.com/")
    assert (await world.receive(draft)).code == "invalid_signature"
    assert f"(its @target-uri must be {BASE}/a2a/push)" in said(caplog)[0]


def test_a_flood_from_many_networks_is_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for network in range(2_000):
        peer = f"2001:db8:0:{network:x}::1"
        refusals.refuse("not_found", "no sender posts to /", peer=peer)
    # Ten a second: of more than one if this machine is slow.
    assert 10 <= len(said(caplog)) <= 100


def test_a_fault_of_our_own_is_a_line_a_minute_whoever_meets_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals()
    for number in range(3):
        for trail in (None, Trail(sender=f"agent-{number}")):
            refusals.refuse("internal", peer=f"192.0.2.{number}", error=ValueError(), trail=trail)
    refusals.refuse("internal", peer="192.0.2.1", error=KeyError())  # another one

    assert len(said(caplog)) == 2


def test_a_flood_of_one_sender_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals()
    for sender in (*["mallory"] * 2_000, "alice"):
        trail = Trail(sender=sender)
        trail.task_id, trail.delivery_id = "task-1", "dlv_1"
        refusals.refuse("invalid_token", peer="192.0.2.1", trail=trail)
    lines = said(caplog)
    assert "alice" in lines[-1]
    assert 101 <= len(lines) <= 1_001
