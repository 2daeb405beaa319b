"""Secrets and bodies at rest, end to end, on both databases."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from pushkit import DeliveryState, PushSender, SecretKeys
from pushkit.bounded_json import JsonObject
from pushkit.errors import ConfigError, IdempotencyConflictError, SealedSecretError
from pushkit.events import Event, LocalFault
from pushkit.secrets.sealing import SecretKey
from pushkit.secrets.vault import (
    CREDENTIALS,
    TOKEN,
    SecretsAdmin,
    before_all,
    find_other_keys,
    write_resealed,
)
from tests.clock import Clock
from tests.emitted import emitted
from tests.eventually import DEADLINE
from tests.unit.pushkit.delivery.conftest import (
    ON_POSTGRES,
    Received,
    Senders,
    Webhook,
    only,
    report_of,
    state_and_error,
    status,
)

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL

CONFIG: JsonObject = {
    "token": "canary-token",
    "authentication": {"scheme": "Basic", "credentials": "canary-credentials"},
}
OLD, NEW = SecretKey.generate(), SecretKey.generate()
KEYS = SecretKeys([NEW, OLD])


async def subscribe(sender: PushSender, webhook: Webhook, task_id: str = "task-1") -> str:
    config = {"url": webhook.url(), **CONFIG}
    return (await sender.subscribe(task_id, config, version="1.0", owner="alice")).id


async def secrets_in(senders: Senders) -> list[str]:
    rows = await senders.execute("SELECT token, credentials FROM pushkit_subscriptions")
    assert rows
    return [row[name] for row in rows for name in ("token", "credentials")]


async def bodies_in(senders: Senders) -> list[bytes]:
    by_seq = (
        "SELECT body FROM pushkit_bodies b JOIN pushkit_deliveries d ON d.id = b.id ORDER BY seq"
    )
    return [bytes(row["body"]) for row in await senders.execute(by_seq)]


def carries_the_secrets(request: Received) -> bool:
    return (
        request.headers.one("X-A2A-Token") == "canary-token"
        and request.headers.one("Authorization") == "Basic canary-credentials"
    )


# --- tokens and credentials --------------------------------------------------------------------


async def test_secrets_are_sealed_in_the_database_and_sent_as_they_are(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(secrets=KEYS)
    await subscribe(sender, webhook)
    assert all(value.startswith(" sealed:") for value in await secrets_in(senders))
    await sender.notify(status())
    assert await sender.worker.run_once() == 1
    [request] = webhook.received
    assert carries_the_secrets(request)


async def test_secrets_stored_plain_are_sent_and_sealed_at_the_next_registration(
    senders: Senders, webhook: Webhook
) -> None:
    await subscribe(await senders.open(), webhook)
    sender = await senders.open(secrets=KEYS)
    await sender.notify(status())
    assert await sender.worker.run_once() == 1
    assert carries_the_secrets(webhook.received[0])
    assert "canary-token" in await secrets_in(senders)
    await subscribe(sender, webhook)
    assert all(value.startswith(" sealed:") for value in await secrets_in(senders))


@pytest.mark.parametrize(
    ("secrets", "error"),
    [
        pytest.param(None, "secret_key_missing", id="no keys"),
        pytest.param(SecretKeys.generate(), "secret_key_missing", id="other keys"),
    ],
)
async def test_a_delivery_waits_while_its_secrets_cannot_be_opened(
    senders: Senders,
    webhook: Webhook,
    secrets: SecretKeys | None,
    error: str,
    events: list[Event],
) -> None:
    subscription_id = await subscribe(await senders.open(secrets=KEYS), webhook)
    other = await senders.open(secrets=secrets, on_event=events.append)
    [delivery_id] = (await other.notify(status())).ids
    assert await other.worker.run_once() == 1
    assert webhook.received == []
    assert await state_and_error(other) == (DeliveryState.PENDING, error)
    [event] = emitted(events, LocalFault)
    assert event.error == error
    assert (event.delivery_id, event.subscription_id) == (delivery_id, subscription_id)
    await senders.execute("UPDATE pushkit_deliveries SET not_before = 0")
    await senders.execute("UPDATE pushkit_subscriptions SET due_at = 0")
    again = await senders.open(secrets=KEYS)
    assert await again.worker.run_once() == 1
    assert carries_the_secrets(webhook.received[0])


async def test_secrets_that_cannot_be_opened_are_no_failure_of_the_destination(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    await subscribe(await senders.open(secrets=KEYS), webhook)
    sender = await senders.open(disable_after=timedelta(days=1))
    await sender.notify(status())
    for _ in range(8):
        await sender.worker.run_once()
        clock.advance(48 * 3600)
    [found] = await sender.subscriptions("task-1", owner="alice")
    assert (found.active, found.failing_since) == (True, None)


async def test_another_url_written_into_the_database_does_not_get_the_secrets(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(secrets=KEYS)
    await subscribe(sender, webhook)
    await senders.execute("UPDATE pushkit_subscriptions SET url = $1", webhook.url("/mallory"))
    await sender.notify(status())
    assert await sender.worker.run_once() == 1
    assert webhook.received == []
    assert (await only(sender)).last_error == "sealed_secret"


async def test_a_returned_subscription_contains_no_secret(
    sender: PushSender, webhook: Webhook
) -> None:
    returned = await sender.subscribe(
        "task-1", {"url": webhook.url(), **CONFIG}, version="1.0", owner="alice"
    )
    read = [
        returned,
        *await sender.subscriptions("task-1", owner="alice"),
        *await sender.subscribers("task-1"),
    ]
    for found in read:
        assert (found.has_token, found.has_credentials) == (True, True)
        assert found.config.token is None
        assert found.config.authentication is not None
        assert found.config.authentication.scheme == "Basic"
        assert found.config.authentication.credentials is None


async def test_configs_to_send_with_contain_the_secrets(senders: Senders, webhook: Webhook) -> None:
    sender = await senders.open(secrets=KEYS)
    await subscribe(sender, webhook)
    [config] = await sender.configs_to_send_with("task-1")
    assert (config.token, config.task_id) == ("canary-token", "task-1")
    assert config.authentication is not None
    assert config.authentication.credentials == "canary-credentials"


# --- bodies ------------------------------------------------------------------------------------


async def test_bodies_are_sealed_in_the_database_and_sent_and_shown_as_they_are(
    senders: Senders, webhook: Webhook
) -> None:
    plain = await senders.open()
    sender = await senders.open(secrets=KEYS, seal_bodies=True)
    await subscribe(sender, webhook)
    await plain.notify(status("working"))
    await sender.notify(status("working"))
    in_the_clear, sealed = await bodies_in(senders)
    assert b"TASK_STATE_WORKING" in in_the_clear
    assert sealed.startswith(b"\0sl1")
    assert await sender.worker.run_once() == 2
    first, second = webhook.received
    assert second.body == first.body == in_the_clear
    keys = senders.public_keys()
    assert second.claims(keys).body_sha256 == first.claims(keys).body_sha256
    assert [found.body for found in await sender.deliveries("task-1")] == [first.body] * 2
    for found in await sender.outbox.find():
        assert found.body_bytes == len(first.body)
        report = await report_of(sender, found.id)
        assert report.body == first.body


async def test_a_sealed_body_is_not_shown_without_its_key(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(secrets=KEYS, seal_bodies=True)
    await subscribe(sender, webhook)
    [delivery_id] = (await sender.notify(status())).ids
    without = await senders.open()
    report = await report_of(without, delivery_id)
    assert report.body is None
    with pytest.raises(SealedSecretError, match=delivery_id):
        await without.deliveries("task-1")


async def test_a_sealed_body_moved_to_another_delivery_is_not_sent(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(secrets=KEYS, seal_bodies=True)
    await subscribe(sender, webhook)
    [first] = (await sender.notify(status("working"))).ids
    await sender.notify(status("input-required"))
    move = (
        "UPDATE pushkit_bodies SET body ="
        " (SELECT body FROM pushkit_bodies b WHERE b.id <> $1) WHERE id = $1"
    )
    await senders.execute(move, first)
    assert await sender.worker.run_once() == 1
    assert webhook.received == []


async def test_the_body_limit_counts_the_bytes_sent(senders: Senders, webhook: Webhook) -> None:
    plain = await senders.open()
    await subscribe(plain, webhook)
    await plain.notify(status())
    [body] = await bodies_in(senders)
    fitting = await senders.open(secrets=KEYS, seal_bodies=True, max_body_bytes=len(body))
    assert (await fitting.notify(status())).ids
    tight = await senders.open(secrets=KEYS, seal_bodies=True, max_body_bytes=len(body) - 1)
    [refused] = (await tight.notify(status())).refused
    assert refused.code == "payload_too_large"
    assert f"would be {len(body)} bytes" in refused.message


async def test_an_idempotency_key_matches_a_sealed_update(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(secrets=KEYS, seal_bodies=True)
    await subscribe(sender, webhook)
    ids = (await sender.notify(status(), idempotency_key="once")).ids
    assert (await sender.notify(status(), idempotency_key="once")).ids == ids
    with pytest.raises(IdempotencyConflictError):
        await sender.notify(status("failed"), idempotency_key="once")


async def test_bodies_cannot_be_sealed_without_keys(senders: Senders) -> None:
    with pytest.raises(ConfigError, match="seal_bodies: expected secret keys"):
        await senders.open(seal_bodies=True)


async def test_a_sender_reads_its_secret_keys_from_the_environment(
    senders: Senders, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUSHKIT_SECRET_KEYS", NEW.to_text())
    await subscribe(await senders.open(), webhook)
    assert all(value.startswith(" sealed:") for value in await secrets_in(senders))


# --- rotation ----------------------------------------------------------------------------------


async def rotated(
    senders: Senders, keys: SecretKeys, *, bodies: bool = False, vacuum: bool = False
) -> tuple[int, int]:
    async with senders.stored() as database:
        found = await SecretsAdmin(database).rotate(keys, bodies=bodies, vacuum=vacuum)
    assert (found.unopened, found.held) == ([], 0)
    return found.secrets, found.bodies


async def test_rotation_reseals_everything_under_the_new_key(
    senders: Senders, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pushkit.secrets.vault._BATCH", 2)
    before = await senders.open(secrets=SecretKeys([OLD]), seal_bodies=True)
    for number in range(5):
        await subscribe(before, webhook, f"task-{number}")
        await before.notify(status(task_id=f"task-{number}"))
    assert await rotated(senders, KEYS) == (10, 5)
    assert await rotated(senders, KEYS) == (0, 0)
    after = await senders.open(secrets=SecretKeys([NEW]))
    assert await after.worker.run_once() > 0
    assert webhook.received
    assert all(map(carries_the_secrets, webhook.received))


async def test_rotation_seals_plain_secrets_and_on_request_plain_bodies(
    senders: Senders, webhook: Webhook
) -> None:
    plain = await senders.open()
    await subscribe(plain, webhook)
    await plain.notify(status())
    assert await rotated(senders, KEYS) == (2, 0)
    assert b"TASK_STATE" in (await bodies_in(senders))[0]
    assert await rotated(senders, KEYS, bodies=True) == (0, 1)
    assert b"TASK_STATE" not in (await bodies_in(senders))[0]
    assert "canary-token" not in await secrets_in(senders)


async def test_rotation_reports_what_it_cannot_open_and_leaves_it_unchanged(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(secrets=SecretKeys([OLD]), seal_bodies=True)
    await subscribe(sender, webhook)
    await sender.notify(status())
    before = await secrets_in(senders), await bodies_in(senders)
    async with senders.stored() as database:
        found = await SecretsAdmin(database).rotate(SecretKeys([NEW]))
        counted = await SecretsAdmin(database).status()
    assert (found.secrets, found.bodies, len(found.unopened)) == (0, 0, 3)
    assert all(OLD.id in reason for reason in found.unopened)
    assert (await secrets_in(senders), await bodies_in(senders)) == before
    assert (counted.secrets, counted.bodies) == ({OLD.id: 2}, {OLD.id: 1})


async def test_rotation_skips_rows_that_changed_meanwhile(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(secrets=SecretKeys([OLD]))
    await subscribe(sender, webhook)
    async with senders.stored() as database:
        pages = [
            (
                column,
                await database.read(
                    find_other_keys(column, KEYS, plain=True, after=before_all(column), limit=10)
                ),
            )
            for column in (TOKEN, CREDENTIALS)
        ]
        config: JsonObject = {"url": webhook.url(), "token": "another-token"}
        await sender.subscribe("task-1", config, version="1.0", owner="alice")
        for column, [row] in pages:
            assert await database.write(write_resealed(column, [(row, " sealed:AAAA")])) == 0
    [config_now] = await sender.configs_to_send_with("task-1")
    assert config_now.token == "another-token"


@ON_POSTGRES
async def test_rotation_never_waits_for_a_locked_row(
    senders: Senders, connection: asyncpg.Connection, webhook: Webhook
) -> None:
    sender = await senders.open(secrets=SecretKeys([OLD]))
    for number in range(3):
        await subscribe(sender, webhook, f"task-{number}")
    async with connection.transaction():
        await connection.execute(
            "SELECT 1 FROM pushkit_subscriptions WHERE task_id = 'task-1' FOR UPDATE"
        )
        async with asyncio.timeout(DEADLINE):
            async with senders.stored() as database:
                found = await SecretsAdmin(database).rotate(KEYS)
        assert (found.secrets, found.held) == (4, 2)
    assert await rotated(senders, KEYS) == (2, 0)


@ON_POSTGRES
async def test_postgresql_is_not_vacuumed(senders: Senders) -> None:
    await senders.open()
    with pytest.raises(ConfigError, match="expected a SQLite file"):
        await rotated(senders, KEYS, vacuum=True)


async def test_after_a_rotation_the_file_contains_no_plain_text(
    tmp_path: Path, clock: Clock, webhook: Webhook
) -> None:
    senders = Senders(tmp_path / "outbox.db", clock)
    plain = await senders.open()
    for number in range(50):
        await subscribe(plain, webhook, f"task-{number}")
        await plain.notify(status(task_id=f"task-{number}"))
    assert b"canary-" in everything_in(tmp_path)
    assert b"TASK_STATE" in everything_in(tmp_path)
    await rotated(senders, KEYS, bodies=True, vacuum=True)
    assert b"task-49" in everything_in(tmp_path)
    assert b"canary-" not in everything_in(tmp_path)
    assert b"TASK_STATE" not in everything_in(tmp_path)
    await plain.close()


def everything_in(folder: Path) -> bytes:
    """Return the content of all files of a folder: the database, its log, and others."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
