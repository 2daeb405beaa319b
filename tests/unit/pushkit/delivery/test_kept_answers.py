"""The answers of webhooks that are kept with their attempts: of which, masked, and sealed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import web

from pushkit import DeliveryState, PushSender, SecretKeys
from pushkit.bounded_json import JsonValue
from pushkit.delivery.signatures import Signing
from pushkit.errors import ConfigError
from pushkit.secrets.sealing import SecretKey
from pushkit.secrets.vault import SecretsAdmin
from tests.unit.pushkit.delivery.conftest import (
    Senders,
    Webhook,
    deliver_due,
    report_of,
    status,
)

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL

KEYS = SecretKeys([SecretKey.generate()])
SECRETS = ("a-token/of-the-client", "of/the+client==", "the-key-in-the-query")


async def deliver(sender: PushSender, webhook: Webhook, *, path: str = "/hook") -> str:
    config: dict[str, JsonValue] = {
        "url": webhook.url(path),
        "token": SECRETS[0],
        "authentication": {"scheme": "Basic", "credentials": SECRETS[1]},
    }
    await sender.subscribe("task-1", config, version="1.0")
    [delivery_id] = (await sender.notify(status())).ids
    await sender.worker.run_once()
    return delivery_id


async def answer_to(sender: PushSender, delivery_id: str) -> bytes | None:
    report = await report_of(sender, delivery_id)
    return report.attempts[-1].answer


async def answers_in(senders: Senders) -> list[bytes]:
    rows = await senders.execute("SELECT answer FROM pushkit_attempts")
    return [bytes(row["answer"]) for row in rows]


@pytest.mark.parametrize(
    ("keep", "of_success", "of_failure"),
    [
        pytest.param({}, None, b"said", id="by default of failed attempts"),
        pytest.param({"keep_answers": "all"}, b"said", b"said", id="all"),
        pytest.param({"keep_answers": "none"}, None, None, id="none"),
    ],
)
async def test_answers_are_kept_as_configured(
    senders: Senders,
    webhook: Webhook,
    keep: dict[str, Any],
    of_success: bytes | None,
    of_failure: bytes | None,
) -> None:
    sender = await senders.open(**keep)
    for code, kept in ((200, of_success), (400, of_failure), (410, of_failure)):
        webhook.replies_with(lambda code=code: web.Response(status=code, body=b"said"))
        assert await answer_to(sender, await deliver(sender, webhook)) == kept


async def test_only_the_first_kib_of_an_answer_is_kept(
    sender: PushSender, webhook: Webhook
) -> None:
    webhook.replies_with(lambda: web.Response(status=500, body=b"x" * 5000))
    assert await answer_to(sender, await deliver(sender, webhook)) == b"x" * 1024


async def test_an_unknown_word_for_the_kept_answers_is_refused(senders: Senders) -> None:
    with pytest.raises(ConfigError, match="keep_answers: found True, expected one of none, failed"):
        senders.new(keep_answers=True)


@pytest.mark.parametrize(
    "slash", [pytest.param("/", id="as sent"), pytest.param(r"\/", id="as PHP writes JSON")]
)
async def test_what_a_webhook_repeats_is_masked_before_it_is_stored(
    senders: Senders, webhook: Webhook, slash: str
) -> None:
    signing = Signing(
        schemes=["jwt", "standard-webhooks", "http-message-signatures"],
        webhook_secrets=["whsec_" + "c2VjcmV0" * 8],
    )
    sender = await senders.open(signing=signing)
    path = f"/hook?key={SECRETS[2]}&n=1"
    names = ("X-A2A-Token", "Authorization", "X-A2A-Signature", "webhook-signature", "Signature")

    def sent() -> list[str]:
        request = webhook.received[-1]
        fields = [f"{name}: {request.headers.one(name)}" for name in names]
        return [request.path, *fields]

    def echo() -> web.Response:
        return web.Response(status=500, text=json.dumps(sent()).replace("/", slash))

    webhook.replies_with(echo, path=path)
    kept = await answer_to(sender, await deliver(sender, webhook, path=path))
    assert kept is not None
    assert json.loads(kept) == [
        "/hook?***",
        "X-A2A-Token: ***",
        "Authorization: ***",
        "X-A2A-Signature: ***",
        "webhook-signature: ***",
        "Signature: a2a=***",
    ]


async def test_a_jwt_that_is_cut_off_is_masked(sender: PushSender, webhook: Webhook) -> None:
    webhook.replies_with(
        lambda: web.Response(
            status=401,
            text="bad token: " + (webhook.received[-1].headers.one("X-A2A-Signature") or "")[:90],
        )
    )
    assert await answer_to(sender, await deliver(sender, webhook)) == b"bad token: ***"


async def test_with_secret_keys_answers_are_sealed_and_shown(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(secrets=KEYS)
    webhook.replies_with(lambda: web.Response(status=400, body=b"no such tenant"))
    delivery_id = await deliver(sender, webhook)
    assert await answer_to(sender, delivery_id) == b"no such tenant"
    [answer] = await answers_in(senders)
    assert b"tenant" not in answer
    keyless = await senders.open()
    report = await report_of(keyless, delivery_id)
    [attempt] = report.attempts
    assert (attempt.answer, attempt.is_sealed) == (None, True)


async def test_a_rotation_seals_answers_that_were_kept_plain(
    senders: Senders, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pushkit.secrets.vault._BATCH", 2)
    sender = await senders.open()
    for number in range(5):
        webhook.replies_with(lambda n=number: web.Response(status=400, body=f"{n} said".encode()))
        delivery_id = await deliver(sender, webhook)
    async with senders.stored() as database:
        rotated = await SecretsAdmin(database).rotate(KEYS)
        counted = await SecretsAdmin(database).status()
    assert (rotated.answers, rotated.unopened) == (5, [])
    assert counted.answers == {KEYS.ids[0]: 5}
    found = await answers_in(senders)
    assert len(found) == 5
    assert not any(b"said" in answer for answer in found)
    opened = await senders.open(secrets=KEYS)
    assert await answer_to(opened, delivery_id) == b"4 said"


async def test_an_answer_that_looks_sealed_is_no_sealed_one(
    sender: PushSender, webhook: Webhook
) -> None:
    webhook.replies_with(lambda: web.Response(status=400, body=b"\0sl1" + bytes(100)))
    assert await answer_to(sender, await deliver(sender, webhook)) == b"?sl1" + bytes(100)


async def test_a_sealed_answer_is_not_sent_as_a_body(senders: Senders, webhook: Webhook) -> None:
    sender = await senders.open(secrets=KEYS, seal_bodies=True)
    webhook.replies_with(lambda: web.Response(status=400, body=b'{"chosen": "by the webhook"}'))
    delivery_id = await deliver(sender, webhook)
    moved = "UPDATE pushkit_bodies SET body = (SELECT answer FROM pushkit_attempts) WHERE id = $1"
    await senders.execute(moved, delivery_id)
    await sender.outbox.redrive([delivery_id])
    await deliver_due(sender)
    assert len(webhook.received) == 1
    report = await report_of(sender, delivery_id)
    assert report.delivery.state is DeliveryState.PENDING
    assert report.delivery.last_error == "sealed_secret"
