"""The calls of `PushSender`, their arguments and their errors, from opening to closing."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pushkit import (
    Authentication,
    KeyRing,
    MessageUpdate,
    NotifyResult,
    PushConfig,
    PushSender,
    Role,
    Subscription,
    TaskUpdate,
    TextPart,
)
from pushkit import Message as A2AMessage
from pushkit.errors import (
    ConfigError,
    DestinationRefusedError,
    IdempotencyConflictError,
    InvalidPushConfigError,
    InvalidUpdateError,
    PushkitError,
    StorageError,
    UnsupportedVersionError,
)
from pushkit.outbox.states import DeliveryState
from pushkit.storage.script import Row
from pushkit.subscriptions import store
from pushkit.subscriptions.store import read_subscription
from tests.clock import Clock
from tests.eventually import DEADLINE, eventually
from tests.unit.pushkit.delivery.conftest import (
    ARTIFACT,
    HOOK,
    Senders,
    Webhook,
    enqueue,
    status,
    task,
)
from tests.unit.pushkit.delivery.sides import write

MESSAGE = MessageUpdate(
    message=A2AMessage(
        message_id="m",
        role=Role.AGENT,
        parts=(TextPart(text="hi"),),
        task_id="task-1",
        context_id="context-1",
    )
)


async def seqs(sender: PushSender, task_id: str = "task-1") -> list[int]:
    return [delivery.seq for delivery in await sender.deliveries(task_id)]


# --- subscribe ---------------------------------------------------------------------------------


async def test_only_a_new_destination_costs_reading_the_backlog(
    traced: list[str], sender: PushSender
) -> None:
    for url, moves in (("/a", 0), ("/a", 0), ("/b", 0), (":8443/b", 1), (":8443/b", 0)):
        traced.clear()
        await sender.subscribe("task-1", {"url": f"https://client.example.com{url}"}, version="1.0")
        assert sum(each.startswith("UPDATE pushkit_deliveries") for each in traced) == moves


async def test_two_configs_without_an_id_are_one_and_a_warning_is_logged(
    sender: PushSender, caplog: pytest.LogCaptureFixture
) -> None:
    first = await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    assert not first.replaced
    same = await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    assert same.replaced
    assert "registered config" not in caplog.text
    other = {"url": "https://other.example.com/?canary"}
    second = await sender.subscribe("task-1", other, version="0.3", owner="alice")
    assert (second.replaced, second.id) == (True, first.id)
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    await sender.subscribe("task-1", other, version="0.3", owner="alice")
    # Whoever does it again and again does not fill the log.
    [line] = [each for each in caplog.records if "registered config" in each.getMessage()]
    assert line.levelno == logging.WARNING
    assert "'alice' registered config 'task-1' again with another URL and version" in caplog.text
    assert "canary" not in caplog.text
    [found] = await sender.subscriptions("task-1", owner="alice")
    assert found.config.url == other["url"]


async def test_configs_with_different_ids_are_separate(
    sender: PushSender, caplog: pytest.LogCaptureFixture
) -> None:
    for config_id in ("1", "2"):
        found = await sender.subscribe("task-1", HOOK | {"id": config_id}, version="1.0")
        assert not found.replaced
    assert len((await sender.notify(status())).ids) == 2
    assert "registered config" not in caplog.text


async def test_owners_and_tenants_do_not_see_each_other(sender: PushSender) -> None:
    mine = await sender.subscribe("task-1", HOOK, version="1.0", owner="alice", tenant="acme")
    for owner, tenant in (("bob", "acme"), ("alice", ""), ("", "")):
        assert await sender.subscriptions("task-1", owner=owner, tenant=tenant) == []
        assert await sender.unsubscribe("task-1", owner=owner, tenant=tenant) == 0
        theirs = await sender.subscribe("task-1", HOOK, version="1.0", owner=owner, tenant=tenant)
        assert theirs.id != mine.id
    assert await sender.subscriptions("task-1", owner="alice", tenant="acme") == [mine]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        pytest.param({}, InvalidPushConfigError, id="no url"),
        pytest.param({"url": ""}, InvalidPushConfigError, id="an empty url"),
        pytest.param({"url": 1}, InvalidPushConfigError, id="a url that is no string"),
        pytest.param(
            {"url": "https://a.example.com/ canary"},
            InvalidPushConfigError,
            id="a url with a space",
        ),
        pytest.param({"url": "http://a.example.com/?canary"}, DestinationRefusedError, id="http"),
        pytest.param({"url": "https://127.0.0.1/"}, DestinationRefusedError, id="an address"),
        pytest.param({"url": "http\u017f://a.example.com/"}, DestinationRefusedError, id="long s"),
        pytest.param({**HOOK, "token": "canary\r\nb: c"}, InvalidPushConfigError, id="two lines"),
        pytest.param(
            {**HOOK, "token": ["canary"]}, InvalidPushConfigError, id="a list for a token"
        ),
        pytest.param({**HOOK, "id": "x" * 513}, InvalidPushConfigError, id="an endless id"),
        pytest.param({**HOOK, "id": "a\nb"}, InvalidPushConfigError, id="an id of two lines"),
        *(
            pytest.param({**HOOK, "authentication": found}, InvalidPushConfigError, id=repr(found))
            for found in (
                {"scheme": "Bearer", "credentials": "canary\nb"},
                {"scheme": "canary canary", "credentials": "canary"},
                {"credentials": "canary"},
            )
        ),
    ],
)
async def test_an_invalid_config_is_refused_without_its_secrets_and_not_stored(
    senders: Senders, config: dict[str, Any], error: type[PushkitError]
) -> None:
    sender = await senders.open(allow=())
    with pytest.raises(error) as caught:
        await sender.subscribe("task-1", config, version="1.0")
    assert "canary" not in str(caught.value)
    assert await sender.subscriptions("task-1") == []


@pytest.mark.parametrize("version", ["", "2.0", "0.4", "1.0; x", "\u0661.0"])
async def test_an_unknown_version_is_refused(sender: PushSender, version: str) -> None:
    with pytest.raises(UnsupportedVersionError):
        await sender.subscribe("task-1", HOOK, version=version)


async def test_an_unknown_profile_is_refused(sender: PushSender) -> None:
    with pytest.raises(ConfigError, match="standard, a2a-samples"):
        await sender.subscribe("task-1", HOOK, version="1.0", profile="samples")


@pytest.mark.parametrize("task_id", ["", "a\nb", "\ud800", "x" * 513, "ü" * 257])
async def test_a_task_id_must_be_printable(sender: PushSender, task_id: str) -> None:
    with pytest.raises(InvalidPushConfigError):
        await sender.subscribe(task_id, HOOK, version="1.0")


async def test_an_owner_that_cannot_be_stored_is_a_storage_error(sender: PushSender) -> None:
    with pytest.raises(StorageError):
        await sender.subscribe("task-1", HOOK, version="1.0", owner="\ud800")


# --- unsubscribe -------------------------------------------------------------------------------


async def test_unsubscribing_cancels_unfinished_deliveries(
    sender: PushSender, webhook: Webhook
) -> None:
    await enqueue(sender, webhook.url(), owner="alice")
    await sender.worker.run_once()
    await sender.notify(status())
    assert await sender.unsubscribe("task-1", "task-1", owner="alice") == 1
    assert await sender.worker.run_once() == 0
    assert [delivery.state for delivery in await sender.deliveries("task-1")] == [
        DeliveryState.DELIVERED,
        DeliveryState.CANCELLED,
    ]


async def test_unsubscribing_without_a_config_id_removes_all_of_the_owner(
    sender: PushSender,
) -> None:
    for config_id, owner in (("a", "alice"), ("b", "alice"), ("a", "bob")):
        await sender.subscribe("task-1", {**HOOK, "id": config_id}, version="1.0", owner=owner)
    assert await sender.unsubscribe("task-1", "missing", owner="alice") == 0
    assert await sender.unsubscribe("task-1", owner="alice") == 2
    assert await sender.unsubscribe("task-1", owner="alice") == 0
    assert len(await sender.subscriptions("task-1", owner="bob")) == 1


async def test_subscribing_after_unsubscribing_continues_the_seq(sender: PushSender) -> None:
    first = await sender.subscribe("task-1", HOOK, version="1.0")
    await sender.notify(status())
    await sender.unsubscribe("task-1")
    second = await sender.subscribe("task-1", HOOK, version="1.0")
    other = await sender.subscribe("task-1", {**HOOK, "id": "other"}, version="1.0")
    await sender.notify(status())
    assert second.id != first.id
    assert (second.last_seq, other.last_seq) == (1, 0)
    # Receivers count by task and config: they would take a second delivery 1 for a late one.
    assert sorted(await seqs(sender)) == [1, 1, 2]


async def test_no_seq_is_taken_twice_while_a_config_of_a_large_task_is_set_and_removed(
    sender: PushSender,
) -> None:
    await sender.subscribe("task-1", {**HOOK, "id": "other"}, version="1.0")
    for _ in range(11):
        await asyncio.gather(*[sender.notify(status()) for _ in range(100)])
    await check_seqs_of_rivals([sender])


async def test_no_seq_is_taken_twice_while_processes_set_and_remove_a_config(
    on_postgres: Senders,
) -> None:
    await check_seqs_of_rivals([await on_postgres.open() for _ in range(2)])


async def check_seqs_of_rivals(senders: Sequence[PushSender]) -> None:
    """Let clients set and remove one config, and send updates; check that no `seq` occurs twice."""

    async def set_notify_and_remove(sender: PushSender) -> None:
        for _ in range(8):
            await sender.subscribe("task-1", HOOK, version="1.0")
            await sender.notify(status())
            await sender.unsubscribe("task-1", "task-1")

    await asyncio.gather(*[set_notify_and_remove(each) for each in senders for _ in range(8)])
    deliveries = await senders[0].deliveries("task-1")
    found = [each.seq for each in deliveries if each.config_id == "task-1"]
    assert found
    assert len(found) == len(set(found))


async def test_setting_getting_and_removing_a_config_does_not_read_the_others(
    sender: PushSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        await sender.subscribe("task-1", HOOK | {"id": str(number)}, version="1.0")
    read = 0

    def counted(row: Row) -> Subscription:
        nonlocal read
        read += 1
        return read_subscription(row)

    monkeypatch.setattr(store, "read_subscription", counted)
    await sender.subscribe("task-1", HOOK | {"id": "another"}, version="1.0")
    [found] = await sender.subscriptions("task-1", "another")
    assert found.key.config_id == "another"
    assert await sender.unsubscribe("task-1", "another") == 1
    assert read == 4  # as stored, as found, and twice to remove it


# --- notify ------------------------------------------------------------------------------------


async def test_an_update_without_a_task_is_refused(sender: PushSender) -> None:
    message = A2AMessage(message_id="m", role=Role.AGENT, parts=())
    with pytest.raises(InvalidUpdateError, match="task_id: found none"):
        await sender.notify(MessageUpdate(message=message))


async def test_without_a_snapshot_a_0_3_subscription_gets_a_status_as_a_task_without_history(
    sender: PushSender,
) -> None:
    await sender.subscribe("task-1", HOOK, version="0.3")
    await sender.notify(status())
    [delivery] = await sender.deliveries("task-1")
    assert json.loads(delivery.body) == {
        "id": "task-1",
        "contextId": "context-1",
        "kind": "task",
        "status": {"state": "working"},
    }


@pytest.mark.parametrize("version", ["0.1", "0.3"])
@pytest.mark.parametrize(
    "update",
    [
        pytest.param(ARTIFACT, id="an artifact"),
        pytest.param(MESSAGE, id="a message"),
    ],
)
async def test_without_a_snapshot_only_recipients_that_need_one_are_refused(
    sender: PushSender, update: TaskUpdate, version: str
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0", owner="new")
    await sender.subscribe("task-1", HOOK, version=version, owner="old")
    result = await sender.notify(update)
    assert [each.owner for each in result.deliveries] == ["new"]
    assert [(each.owner, each.code) for each in result.refused] == [("old", "snapshot_required")]
    assert f"A2A {version}" in result.refused[0].message
    assert [each.id for each in await sender.deliveries("task-1")] == result.ids


async def test_a_snapshot_of_another_task_is_refused(sender: PushSender) -> None:
    with pytest.raises(InvalidUpdateError, match="expected the task"):
        await sender.notify(status(), snapshot=task("task-2"))


async def test_a_body_over_the_limit_is_refused_for_its_recipient_and_takes_no_seq(
    senders: Senders,
) -> None:
    sender = await senders.open(max_body_bytes=500)
    await sender.subscribe("task-1", HOOK, version="0.3", owner="alice")
    await sender.subscribe("task-1", HOOK, version="1.0", owner="bob")
    large = replace(task(), metadata={"log": "x" * 500})
    result = await sender.notify(ARTIFACT, snapshot=large)
    assert [(each.owner, each.code) for each in result.refused] == [("alice", "payload_too_large")]
    assert [each.owner for each in await sender.deliveries("task-1")] == ["bob"]
    [subscription] = await sender.subscriptions("task-1", owner="alice")
    assert subscription.last_seq == 0


async def test_updates_are_numbered_in_the_order_of_the_calls(sender: PushSender) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0")
    results = await asyncio.gather(*(sender.notify(status()) for _ in range(50)))
    found = [delivery.id for delivery in await sender.deliveries("task-1")]
    assert found == [delivery_id for result in results for delivery_id in result.ids]
    assert await seqs(sender) == list(range(1, 51))


# --- idempotency -------------------------------------------------------------------------------


async def test_repeating_an_update_with_its_key_stores_nothing(sender: PushSender) -> None:
    for owner in ("alice", "bob"):
        await sender.subscribe("task-1", HOOK, version="1.0", owner=owner)
    first = await sender.notify(status(), idempotency_key="key")
    again = await asyncio.gather(
        *(sender.notify(status(), idempotency_key="key") for _ in range(10))
    )
    assert again == [first] * 10
    assert len(await sender.deliveries("task-1")) == 2


async def test_the_same_key_with_another_update_is_a_conflict_and_nothing_is_stored(
    sender: PushSender,
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    await sender.notify(status(), idempotency_key="key")
    # Only alice has a delivery with the key; the conflict refuses the update for bob as well.
    await sender.subscribe("task-1", HOOK, version="1.0", owner="bob")
    with pytest.raises(IdempotencyConflictError):
        await sender.notify(status("completed"), idempotency_key="key")
    assert await seqs(sender) == [1]
    [subscription] = await sender.subscriptions("task-1", owner="bob")
    assert subscription.last_seq == 0


async def test_the_order_of_members_and_how_it_was_read_do_not_change_an_update(
    sender: PushSender,
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0")
    one = replace(status(), metadata={"a": 1, "b": {"c": [1, 2.5], "d": None}})
    same = replace(status(), metadata={"b": {"d": None, "c": [1, 2.5]}, "a": 1})
    same = replace(same, left_out=("TaskStatus.timestamp: expected a time",))
    first = await sender.notify(one, idempotency_key="key")
    assert await sender.notify(same, idempotency_key="key") == first
    for other in ({"a": 2, "b": one.metadata["b"]}, {"a": True, "b": one.metadata["b"]}, {}):
        with pytest.raises(IdempotencyConflictError):
            await sender.notify(replace(status(), metadata=other), idempotency_key="key")


@pytest.mark.parametrize("stored", [hashlib.sha256(b"repr()").hexdigest(), None])
async def test_a_key_stored_by_an_older_version_matches_any_digest(
    sender: PushSender, stored: str | None
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0")
    first = await sender.notify(status(), idempotency_key="key")
    await write(sender, "UPDATE pushkit_deliveries SET update_sha256 = $1", stored)
    assert await sender.notify(status(), idempotency_key="key") == first


async def test_an_update_with_a_key_that_json_cannot_represent_is_refused(
    sender: PushSender,
) -> None:
    impossible = replace(status(), metadata={"number": 10**5000})
    with pytest.raises(InvalidUpdateError, match="JSON cannot represent"):
        await sender.notify(impossible, idempotency_key="key")


async def test_a_repeated_update_with_a_newer_snapshot_is_the_same_update(
    sender: PushSender,
) -> None:
    await sender.subscribe("task-1", HOOK, version="0.3")
    first = (await sender.notify(status(), snapshot=task(), idempotency_key="key")).ids
    moved_on = task(state="input-required")
    assert (await sender.notify(status(), snapshot=moved_on, idempotency_key="key")).ids == first


async def test_the_last_update_can_be_repeated_after_its_subscription_is_removed(
    sender: PushSender,
) -> None:
    await sender.subscribe("task-1", {"url": "https://client.example.com/", "id": "1"}, version="1")
    last = (await sender.notify(status("completed"), idempotency_key="key")).ids
    await sender.unsubscribe("task-1")
    assert (await sender.notify(status("completed"), idempotency_key="key")).ids == last
    with pytest.raises(IdempotencyConflictError):
        await sender.notify(status("failed"), idempotency_key="key")


# --- bodies ------------------------------------------------------------------------------------


async def test_encoding_ahead_for_an_unused_version_fails_no_update(sender: PushSender) -> None:
    await sender.subscribe("task-1", HOOK, version="0.3")
    await sender.subscribe("task-2", HOOK, version="1.0")
    await sender.notify(status(), snapshot=task())  # 0.3 is now encoded ahead of time
    assert (await sender.notify(replace(ARTIFACT, task_id="task-2"))).ids  # 0.3 needs a snapshot
    assert not (await sender.notify(ARTIFACT)).ids


# --- opening and closing -----------------------------------------------------------------------


async def test_open_starts_no_worker(sender: PushSender, webhook: Webhook) -> None:
    await enqueue(sender, webhook.url())
    assert not [each for each in asyncio.all_tasks() if each.get_name() == "pushkit-worker"]
    await sender.worker.run_once()
    assert len(webhook.received) == 1


async def test_a_sender_starts_on_its_first_call(senders: Senders, webhook: Webhook) -> None:
    sender = senders.new()
    await asyncio.gather(
        *(sender.subscribe("task-1", {"url": webhook.url(), "id": i}, version="1.0") for i in "abc")
    )
    await sender.notify(status())
    await webhook.until(lambda: len(webhook.received) == 3)


async def test_a_sender_that_is_not_open_has_no_worker(senders: Senders) -> None:
    with pytest.raises(ConfigError, match="not open"):
        _ = senders.new().worker


async def test_a_closed_sender_stays_closed_until_it_is_started_again(
    sender: PushSender, webhook: Webhook
) -> None:
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    await sender.close()
    await sender.close()
    with pytest.raises(ConfigError, match="closed"):
        await sender.notify(status())
    async with sender:
        await sender.notify(status())
        await webhook.until(lambda: len(webhook.received) == 1)


async def test_closing_during_start_leaves_no_thread_or_task(senders: Senders) -> None:
    sender = senders.new()
    before = set(threading.enumerate())
    starting = asyncio.create_task(sender.start())
    await asyncio.sleep(0)
    await sender.close()
    await starting

    began = set(threading.enumerate()) - before
    assert [each for each in began if each.name.startswith("pushkit")] == []
    assert [each for each in asyncio.all_tasks() if each.get_name().startswith("pushkit")] == []


@pytest.mark.parametrize("issuer", ["", " ", "https://a.example.com\n", "a\0b", "\udcff"])
async def test_an_unprintable_issuer_is_refused(tmp_path: Path, clock: Clock, issuer: str) -> None:
    with pytest.raises(ConfigError, match="issuer"):
        PushSender(issuer=issuer, keys=KeyRing.create(clock.now), database=tmp_path / "o.db")


async def attempting(senders: Senders, webhook: Webhook) -> tuple[PushSender, asyncio.Event]:
    """Return a sender with an attempt under way, and the event that lets the webhook answer."""
    sender, answered = await senders.open(), webhook.replies_after()
    await sender.start()
    await enqueue(sender, webhook.url())
    await webhook.until_received(1)
    return sender, answered


async def test_close_cancels_slow_attempts_and_the_next_start_sends_them(
    senders: Senders, webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    first = await senders.open(drain=timedelta(0))
    await first.start()

    webhook.replies_after()
    await enqueue(first, webhook.url())
    await webhook.until(lambda: len(webhook.received) == 1)
    runner = first.worker.runner
    await first.close()
    async with asyncio.timeout(DEADLINE):
        await runner.drain()  # no attempt is left
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    second = await senders.open()
    assert await second.worker.run_once() == 1  # the lock of the first worker is free
    assert webhook.received[0].id == webhook.received[1].id


async def test_close_stores_or_refuses_updates_that_arrive_meanwhile(senders: Senders) -> None:
    # Tasks may still end while an agent shuts down.
    sender = await senders.open()
    await sender.start()
    await sender.subscribe("task-1", HOOK, version="1.0")
    late = [asyncio.create_task(sender.notify(status())) for _ in range(20)]
    await asyncio.sleep(0)
    await sender.close()
    results = await asyncio.gather(*late, return_exceptions=True)
    stored = [result for result in results if isinstance(result, NotifyResult)]
    reopened = await senders.open()
    assert len(await reopened.deliveries("task-1")) == len(stored)
    assert all(isinstance(result, NotifyResult | PushkitError) for result in results)


async def test_close_delivers_an_update_that_is_being_stored_in_a_slot(
    on_postgres: Senders, webhook: Webhook, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pushkit.delivery.worker._LAST_WRITES", DEADLINE)
    sender = await on_postgres.open()
    await sender.start()
    await enqueue(sender, webhook.url())
    await webhook.until(lambda: len(webhook.received) == 1)

    async def is_settled() -> bool:
        return [d.state for d in await sender.deliveries("task-1")] == [DeliveryState.DELIVERED]

    async def it_waits() -> bool:
        return bool(await own.fetchval("SELECT COUNT(*) FROM pg_locks WHERE NOT granted"))

    await eventually(is_settled)
    own = await asyncpg.connect(postgres_dsn)
    transaction = own.transaction()
    await transaction.start()
    await own.execute("LOCK TABLE pushkit_bodies IN SHARE MODE")
    notifying = asyncio.create_task(sender.notify(status()))
    await eventually(it_waits)
    closing = asyncio.create_task(sender.close())
    await asyncio.wait([closing], timeout=0.2)  # as far as it gets while the update waits
    await transaction.rollback()
    await asyncio.gather(notifying, closing)
    await own.close()

    second = await on_postgres.open()
    found = [d.state for d in await second.deliveries("task-1")]
    assert found == [DeliveryState.DELIVERED] * 2


# --- secrets -----------------------------------------------------------------------------------


async def test_no_token_or_credential_is_in_a_repr_an_error_or_the_log(
    sender: PushSender, webhook: Webhook, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    config = PushConfig(
        url=webhook.url("/hook?key=canary"),
        token="canary",
        authentication=Authentication(schemes=("Bearer",), credentials="canary"),
    )
    webhook.replies_with(500, 401, 409, path="/hook?key=canary")
    subscription = await sender.subscribe("task-1", config, version="1.0")
    await sender.notify(status())
    for _ in range(3):
        await sender.worker.run_once()
        clock.advance(3600)
    await enqueue(sender, "http://127.0.0.1:1/?canary", "task-2")
    await sender.worker.run_once()

    assert len(webhook.received) == 3
    assert len([r for r in caplog.records if r.name == "pushkit.delivery"]) >= 4
    ours = [r for r in caplog.records if r.name != "aiohttp.access"]  # the webhook's own log
    assert not [record for record in ours if "canary" in caplog.handler.format(record)]
    assert "canary" not in repr(subscription).replace(config.url, "")
    assert "canary" not in repr(await sender.deliveries("task-1"))


async def test_a_worker_whose_lock_file_fails_at_first_still_delivers(
    sender: PushSender, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file, refused = os.open, list[str]()

    def full_at_first(path: str | Path, *args: Any, **more: Any) -> int:
        if str(path).endswith(".lock") and not refused:
            refused.append(str(path))
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_file(path, *args, **more)

    monkeypatch.setattr(os, "open", full_at_first)
    await sender.subscribe("task-1", {"id": "1", "url": webhook.url()}, version="1.0")
    await sender.start()
    await sender.notify(status())

    await webhook.until(lambda: len(webhook.received) == 1)
    assert refused


async def test_two_senders_with_different_paths_to_one_file_respect_each_others_leases(
    senders: Senders, webhook: Webhook, tmp_path: Path
) -> None:
    link = tmp_path / "app" / "link.db"
    link.parent.mkdir()
    link.symlink_to(senders.database)
    answered = webhook.replies_after()
    first, second = await senders.open(), await replace(senders, database=link).open()
    await first.subscribe("task-1", {"id": "1", "url": webhook.url()}, version="1.0")
    await first.notify(status())
    under_way = asyncio.create_task(first.worker.run_once())
    await webhook.until(lambda: len(webhook.received) == 1)

    assert await second.worker.run_once() == 0
    answered.set()
    await under_way
    [delivery] = await first.deliveries("task-1")
    assert (delivery.state, delivery.attempts) == (DeliveryState.DELIVERED, 1)


async def test_closing_twice_cancels_no_attempt(senders: Senders, webhook: Webhook) -> None:
    sender, answered = await attempting(senders, webhook)
    closings = [asyncio.create_task(sender.close()) for _ in range(2)]
    await asyncio.wait(closings, timeout=0.05)
    starting = asyncio.create_task(sender.start())
    await asyncio.wait([starting], timeout=0.05)
    assert not any(task.done() for task in (*closings, starting))
    answered.set()
    await asyncio.gather(*closings, starting)

    [delivery] = await sender.deliveries("task-1")
    assert (delivery.state, delivery.attempts) == (DeliveryState.DELIVERED, 1)


async def test_a_cancelled_close_still_completes(senders: Senders, webhook: Webhook) -> None:
    sender, answered = await attempting(senders, webhook)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sender.close(), 0.05)
    answered.set()
    await sender.close()

    [delivery] = await (await senders.open()).deliveries("task-1")
    assert (delivery.state, delivery.attempts) == (DeliveryState.DELIVERED, 1)
