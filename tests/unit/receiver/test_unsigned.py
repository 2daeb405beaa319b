"""Senders that do not sign: what they prove, what they do not, and how their repetitions are known.

The A2A SDKs as they are send a token, or a static `Authorization`, and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, generate_key
from pushkit.signing.notification_jwt import SIGNATURE_HEADER
from receiver import (
    SenderProfile,
    TaskPolicy,
    TaskState,
    TrustedSender,
    load_trust,
    verify_notification,
)
from receiver.testing import Draft
from tests.eventually import DEADLINE
from tests.unit.receiver.drafts import sending

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

UNSIGNED: dict[str, Any] = {
    "profile": SenderProfile.UNSIGNED_SECRET_ONLY,
    "issuer": None,
    "keys": None,
}
TOKEN = "the-notification-token-is-private"
CREDENTIALS = "Bearer the.static.credentials-is-private"
BASE = "https://client.example.com"


@pytest.fixture
def make_unsigned(make_world: WorldFactory) -> Callable[..., World]:
    def make(**changes: Any) -> World:
        return make_world(**{**UNSIGNED, **changes})

    return make


@pytest.fixture
def unsigned(make_unsigned: Callable[..., World]) -> World:
    return make_unsigned()


def bare(world: World, number: int = 1, **arguments: str) -> Draft:
    """Return what the Python SDK sends: the body, its type, and a token."""
    left_out = dict.fromkeys(("webhook-id", "webhook-timestamp", "X-A2A-Token"), ())
    return replace(world.draft(number, **arguments), signed=False, headers_sent=left_out)


def without_token(draft: Draft) -> Draft:
    return replace(draft, token="")


def another(token: str) -> Callable[[Draft], Draft]:
    return lambda draft: sending(draft, "X-A2A-Notification-Token", token)


# --- what is proven -------------------------------------------------------------------------------


async def test_the_token_admits_an_unsigned_sender(unsigned: World) -> None:
    verdict = await unsigned.receive(bare(unsigned))
    found = await unsigned.receiver.wait("task-1", until={TaskState.WORKING}, timeout=DEADLINE)

    assert (verdict.status, verdict.code) == (202, "accepted")
    assert (found.sender, found.kid, found.issued_at) == ("agent", "", unsigned.clock.now)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(another(""), id="empty"),
        pytest.param(another(TOKEN[:-1]), id="prefix"),
        pytest.param(lambda draft: sending(draft, "X-A2A-Token", "other"), id="two"),
        pytest.param(
            lambda draft: replace(draft, token="", authorization=f"Bearer {TOKEN}"),
            id="the-token-in-another-place",
        ),
    ],
)
async def test_without_its_secret_it_is_refused(
    unsigned: World, caplog: pytest.LogCaptureFixture, change: Callable[[Draft], Draft]
) -> None:
    verdict = await unsigned.receive(change(bare(unsigned)))

    assert (verdict.status, verdict.code) == (401, "invalid_token")
    assert not any(unsigned.rows().values())
    assert TOKEN[:-1] not in caplog.text
    assert " sender=" not in caplog.records[-1].getMessage()  # a stranger


@pytest.mark.parametrize("token_required", [True, False])
async def test_with_nothing_at_all_it_is_refused(
    make_unsigned: Callable[..., World], token_required: bool
) -> None:
    world = make_unsigned(tokens=(), token_required=token_required)

    verdict = await world.receive(without_token(bare(world)))

    assert (verdict.status, verdict.code) == (401, "invalid_token")


async def test_static_credentials_admit_one_that_drops_the_token(
    make_unsigned: Callable[..., World],
) -> None:
    # With two dots in it, as a JWT has: it is a secret all the same.
    world = make_unsigned(tokens=(), token_required=False, credentials=[CREDENTIALS])
    good, bad = without_token(bare(world, 1)), without_token(bare(world, 2))
    good = sending(good, "Authorization", CREDENTIALS)
    bad = sending(bad, "Authorization", "Bearer some.other.credentials")

    verdicts = [await world.receive(draft) for draft in (good, bad)]

    assert [verdict.status for verdict in verdicts] == [202, 401]


async def test_a_token_of_one_task_says_nothing_about_another(
    make_unsigned: Callable[..., World],
) -> None:
    world = make_unsigned(tokens=(), tasks=TaskPolicy.BIND)
    token = (await world.receiver.expect()).config.token or ""

    verdicts = [
        await world.receive(bare(world, task_id=task, token=token)) for task in ("task-1", "task-2")
    ]

    assert [verdict.status for verdict in verdicts] == [202, 404]


async def test_a_signature_that_nobody_asked_for_is_not_looked_at(unsigned: World) -> None:
    draft = sending(bare(unsigned), SIGNATURE_HEADER, "no JWT at all")

    assert (await unsigned.receive(draft)).status == 202


# --- what is said about it ------------------------------------------------------------------------


async def test_an_unsigned_sender_is_logged_at_the_start_and_at_each_acceptance(
    unsigned: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    await unsigned.receive(bare(unsigned))

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "sender agent is trusted as unsigned-secret-only" in warnings[0]
    assert "accepted sender=agent profile=unsigned-secret-only" in caplog.text


# --- ids ------------------------------------------------------------------------------------------


async def codes(world: World, *drafts: Draft) -> list[str]:
    return [(await world.receive(draft)).code for draft in drafts]


async def test_without_an_id_a_repetition_is_not_recognised(unsigned: World) -> None:
    found = await codes(unsigned, bare(unsigned), bare(unsigned))

    assert found == ["accepted", "accepted"]
    assert unsigned.rows()["pushkit_inbox"] == 2


@pytest.mark.parametrize(
    ("sender", "header"),
    [
        pytest.param({}, "webhook-id", id="webhook-id"),
        pytest.param({"id_field": "X-Event-Id"}, "x-event-id", id="a-header-that-is-configured"),
    ],
)
async def test_an_id_in_a_header_makes_a_repetition_known(
    make_unsigned: Callable[..., World], sender: dict[str, str], header: str
) -> None:
    world = make_unsigned(**sender)
    events = zip((1, 1, 2, 3), "AABA", strict=True)
    drafts = [sending(bare(world, number), header, event) for number, event in events]
    drafts[3] = replace(drafts[3], body=drafts[3].body + b" ")

    assert await codes(world, *drafts) == ["accepted", "duplicate", "accepted", "id_conflict"]


async def test_an_id_in_the_body_makes_a_repetition_known(
    make_unsigned: Callable[..., World],
) -> None:
    world = make_unsigned(id_field="/statusUpdate/metadata/event~1ids/0")
    draft = bare(world)
    drafts = [
        replace(draft, body=draft.body.replace(b'"note"', b'"event/ids": ["%c"], "note"' % event))
        for event in b"AABA"
    ]
    drafts[3] = replace(drafts[3], body=drafts[3].body + b" ")

    assert await codes(world, *drafts) == ["accepted", "duplicate", "accepted", "id_conflict"]


@pytest.mark.parametrize(
    "pointer", ["/task/id/x", "/statusUpdate/9", "/statusUpdate", "/statusUpdate/metadata/none"]
)
async def test_an_id_that_is_not_there_is_none(
    make_unsigned: Callable[..., World], pointer: str
) -> None:
    world = make_unsigned(id_field=pointer)

    assert await codes(world, bare(world), bare(world)) == ["accepted", "accepted"]


@pytest.mark.parametrize("name", ["webhook-id", "X-Event-Id"])
async def test_only_the_configured_field_is_the_id(
    make_unsigned: Callable[..., World], name: str
) -> None:
    world = make_unsigned(id_field="X-Event-Id")
    drafts = [sending(bare(world, number), name, "the-same") for number in (1, 2)]

    expected = "accepted" if name == "webhook-id" else "id_conflict"
    drafts[1] = replace(drafts[1], body=drafts[1].body + b" ")
    assert await codes(world, *drafts) == ["accepted", expected]


@pytest.mark.parametrize("value", ["x" * 257, "\x7f", "a\x00b", "tab\tinside"])
async def test_an_id_that_cannot_be_stored_is_refused(unsigned: World, value: str) -> None:
    draft = sending(bare(unsigned), "webhook-id", value)

    verdict = await unsigned.receive(draft)

    assert (verdict.status, verdict.code) == (400, "malformed_request")


# --- configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"issuer": "https://agent.example.com"}, id="an-issuer"),
        pytest.param({"jwks_url": "https://agent.example.com/jwks.json"}, id="keys"),
        pytest.param({"audience": ["https://client.example.com/"]}, id="an-audience"),
        pytest.param({"id_field": "no header"}, id="an-id-field-that-is-no-header"),
        pytest.param({"id_field": "/a~2b"}, id="an-id-field-that-is-no-pointer"),
        pytest.param({"id_field": ""}, id="an-empty-id-field"),
    ],
)
def test_an_unsigned_sender_with_unusable_options_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TrustedSender(**{"name": "agent", **UNSIGNED, **changes})


def test_a_signing_sender_has_no_id_field() -> None:
    key = generate_key(Algorithm.ES256).to_verification_key()

    with pytest.raises(ConfigError, match="id_field"):
        TrustedSender(name="agent", issuer="x", keys=[key], id_field="X-Event-Id")


def test_an_unsigned_sender_needs_a_path_of_its_own(world: World) -> None:
    other = TrustedSender(name="other", tokens=["x"], **UNSIGNED)

    with pytest.raises(ConfigError, match="path of its own"):
        load_trust(BASE, [world.sender, other])


# --- as a pure function ---------------------------------------------------------------------------


def test_the_pure_function_accepts_an_unsigned_sender(unsigned: World) -> None:
    trust = load_trust(BASE, [unsigned.sender])

    verified = verify_notification(bare(unsigned).request(), trust, now=unsigned.clock.now)

    assert (verified.delivery_id, verified.kid, verified.issued_at) == (None, None, None)
    assert verified.task_id == "task-1"
