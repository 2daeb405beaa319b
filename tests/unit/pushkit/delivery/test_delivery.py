"""Deliveries over HTTP: the requests that a webhook receives, and the effects of its answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from pushkit import KeyRing, PushSender
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import Transport
from pushkit.outbox.states import DeliveryState
from tests.clock import Clock
from tests.eventually import DEADLINE
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, enqueue, only, status, task

DELIVERED, PENDING, DEAD = DeliveryState.DELIVERED, DeliveryState.PENDING, DeliveryState.DEAD


async def subscribe(
    sender: PushSender,
    webhook: Webhook,
    path: str = "/hook",
    *,
    task_id: str = "task-1",
    owner: str = "alice",
    **options: Any,
) -> None:
    config = {"url": webhook.url(path), "id": options.pop("id", "config-1")}
    config |= options.pop("config", {})
    version = options.pop("version", "1.0")
    await sender.subscribe(task_id, config, version=version, owner=owner, **options)


async def attempt(
    sender: PushSender, webhook: Webhook, path: str = "/hook", **options: Any
) -> None:
    """Subscribe to a task, notify of an update, and attempt its delivery."""
    await subscribe(sender, webhook, path, **options)
    await sender.notify(status())
    await sender.worker.run_once()


# --- the request (wire profile §2) -------------------------------------------------------------


async def test_the_stored_bytes_are_sent_unchanged(sender: PushSender, webhook: Webhook) -> None:
    await subscribe(sender, webhook, version="0.3")
    named = task()
    await sender.notify(status(), snapshot=named)
    stored = (await only(sender)).body
    await sender.worker.run_once()
    assert webhook.received[0].body == stored
    assert webhook.received[0].headers.one("Content-Type") == "application/json"
    assert webhook.received[0].headers.one("Content-Length") == str(len(stored))
    assert webhook.received[0].headers.one("Accept-Encoding") == "identity"


async def test_an_option_adds_the_token_header_of_go_and_rust(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(go_token_spelling=True)
    await attempt(sender, webhook, config={"token": "t"})
    assert webhook.received[0].headers.one("A2A-Notification-Token") == "t"


async def test_a_delivery_waits_without_a_key_of_its_algorithm(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    sender = await senders.open(keys=KeyRing.create(clock.now))
    await attempt(sender, webhook, profile="a2a-samples")
    delivery = await only(sender)
    assert (delivery.state, delivery.last_error) == (PENDING, "no_signing_key")
    assert webhook.received == []


# --- answers (wire profile §5) -----------------------------------------------------------------


async def test_a_retry_keeps_id_and_body_and_signs_anew(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    sender = await senders.open()
    webhook.replies_with(500)
    await attempt(sender, webhook)
    clock.advance(6)
    await sender.worker.run_once()
    first, second = webhook.received
    old, new = (request.claims(senders.public_keys()) for request in (first, second))
    assert (first.id, first.body) == (second.id, second.body)
    assert old.delivery_id == new.delivery_id
    assert new.issued_at - old.issued_at == timedelta(seconds=6)
    assert first.headers.one("Authorization") != second.headers.one("Authorization")
    assert second.headers.one("webhook-timestamp") == str(int(clock.now.timestamp()))
    assert (await only(sender)).state is DELIVERED


async def test_a_410_disables_the_subscription_and_cancels_its_other_deliveries(
    sender: PushSender, webhook: Webhook
) -> None:
    webhook.replies_with(410)
    await subscribe(sender, webhook)
    await subscribe(sender, webhook, "/other", owner="bob")
    await sender.notify(status())
    await sender.notify(status())
    await sender.worker.run_once()
    await sender.worker.run_once()

    assert len(webhook.at("/hook")) == 1
    [subscription] = await sender.subscriptions("task-1", owner="alice")
    assert not subscription.active
    states = {(d.owner, d.seq): d.state for d in await sender.deliveries("task-1")}
    assert states == {
        ("alice", 1): DEAD,
        ("alice", 2): DeliveryState.CANCELLED,
        ("bob", 1): DELIVERED,
        ("bob", 2): DELIVERED,
    }
    assert len((await sender.notify(status())).ids) == 1


async def test_a_410_from_a_url_replaced_during_the_attempt_disables_nothing(
    sender: PushSender, webhook: Webhook
) -> None:
    async def move() -> web.Response:
        await subscribe(sender, webhook, "/new")
        return web.Response(status=410)

    webhook.replies_with(move)
    await attempt(sender, webhook)
    await sender.worker.run_once()
    [subscription] = await sender.subscriptions("task-1", owner="alice")
    assert subscription.active
    assert (await only(sender)).state is DELIVERED
    assert [request.path for request in webhook.received] == ["/hook", "/new"]


async def test_a_410_to_an_attempt_that_lost_its_lease_disables_nothing(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    slow, other = await senders.open(), await senders.open()

    async def answer_too_late() -> web.Response:
        clock.advance(31)
        await other.worker.run_once()
        return web.Response(status=410)

    webhook.replies_with(answer_too_late)
    await attempt(slow, webhook)
    [subscription] = await slow.subscriptions("task-1", owner="alice")
    assert subscription.active
    assert (await only(slow)).state is DELIVERED


async def test_a_subscription_removed_during_an_attempt_stays_removed(
    sender: PushSender, webhook: Webhook
) -> None:
    async def remove() -> web.Response:
        await sender.unsubscribe("task-1", owner="alice")
        return web.Response(status=500)

    webhook.replies_with(remove)
    await attempt(sender, webhook)
    assert (await only(sender)).state is DeliveryState.CANCELLED


async def test_retry_after_applies_though_the_subscription_was_removed_meanwhile(
    sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    async def remove() -> web.Response:
        await sender.unsubscribe("task-1", owner="alice")
        return web.Response(status=429, headers={"Retry-After": "60"})

    webhook.replies_with(remove, path="/asks")
    await attempt(sender, webhook, "/asks")
    await subscribe(sender, webhook, "/beside", task_id="task-2")
    await sender.notify(status(task_id="task-2"))
    await sender.worker.run_once()
    assert [request.path for request in webhook.received] == ["/asks"]
    clock.advance(60)
    await sender.worker.run_once()
    assert [request.path for request in webhook.received] == ["/asks", "/beside"]


@pytest.mark.parametrize(
    ("headers", "least", "most"), [({"Retry-After": "12"}, 12, 12), ({}, 4, 6)]
)
async def test_the_wait_for_the_next_attempt_counts_from_the_answer(
    sender: PushSender,
    webhook: Webhook,
    clock: Clock,
    *,
    headers: dict[str, str],
    least: int,
    most: int,
) -> None:
    def slow() -> web.Response:
        clock.advance(14)
        return web.Response(status=503, headers=headers)

    webhook.replies_with(slow)
    await attempt(sender, webhook)
    waits = (await only(sender)).not_before - clock.now
    assert timedelta(seconds=least) <= waits <= timedelta(seconds=most)


# --- dead letters ------------------------------------------------------------------------------


async def test_the_age_of_a_delivery_counts_across_restarts(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    webhook.replies_with(500)
    first = await senders.open()
    await attempt(first, webhook)
    await first.close()
    clock.advance(91 * 3600)
    second = await senders.open()
    await second.worker.run_once()
    delivery = await only(second)
    assert (delivery.state, delivery.last_error, delivery.last_status) == (DEAD, "too_old", 500)
    assert len(webhook.received) == 1


async def test_a_delivery_too_old_before_its_first_attempt_is_tried_once(
    sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    webhook.replies_with(500)
    await subscribe(sender, webhook)
    await sender.notify(status())
    clock.advance(91 * 3600)
    await sender.worker.run_once()
    assert (await only(sender)).state is DEAD
    assert len(webhook.received) == 1


# --- order and independence --------------------------------------------------------------------


async def test_updates_of_a_task_arrive_in_order(
    sender: PushSender, senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    webhook.replies_with(500, 500)
    await subscribe(sender, webhook)
    for state in ("submitted", "working", "completed"):
        await sender.notify(status(state))
    for _ in range(10):
        await sender.worker.run_once()
        clock.advance(400)
    found = [request.claims(senders.public_keys()).seq for request in webhook.received]
    assert found == [1, 1, 1, 2, 3]


async def test_notify_does_not_wait_for_the_webhook(sender: PushSender, webhook: Webhook) -> None:
    gate = webhook.replies_after()
    await sender.start()
    await subscribe(sender, webhook)
    await sender.notify(status())
    await webhook.until(lambda: len(webhook.received) == 1)
    for _ in range(5):
        await asyncio.wait_for(sender.notify(status()), DEADLINE)
    assert len(webhook.received) == 1
    gate.set()
    await webhook.until(lambda: len(webhook.received) == 6)


async def test_a_delivery_of_a_dead_worker_is_sent_again_under_its_id(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    dying, living = await senders.open(drain=timedelta(0)), await senders.open()

    async def die() -> web.Response:
        next(iter(dying.worker.runner._turns)).cancel()
        await asyncio.Event().wait()
        raise AssertionError

    webhook.replies_with(die)
    await attempt(dying, webhook)
    assert await living.worker.run_once() == 0
    clock.advance(31)
    assert await living.worker.run_once() == 1
    first, second = webhook.received
    assert (first.id, first.body) == (second.id, second.body)
    assert (await only(living)).state is DELIVERED


async def drip(request: web.Request, *, status: int = 200) -> web.StreamResponse:
    """Answer with a head at once, then send a body byte by byte while the client reads."""
    response = web.StreamResponse(status=status)
    await response.prepare(request)
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        while True:
            await response.write(b"x")
            await asyncio.sleep(0.05)
    return response


@pytest.mark.parametrize(("answer", "state"), [(200, DELIVERED), (500, PENDING)])
async def test_a_response_body_that_never_ends_does_not_keep_the_slot(
    senders: Senders, aiohttp_server: Any, *, answer: int, state: DeliveryState
) -> None:
    app = web.Application()
    app.router.add_post("/hook", functools.partial(drip, status=answer))
    server = await aiohttp_server(app)
    sender = await senders.open(timeout=timedelta(minutes=10))
    await enqueue(sender, str(server.make_url("/hook")))
    async with asyncio.timeout(DEADLINE):
        await sender.worker.run_once()
    delivery = await only(sender)
    assert (delivery.state, delivery.last_status) == (state, answer)


async def test_a_response_body_is_read_for_at_most_a_second(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(timeout=timedelta(minutes=10))
    post, given = sender._client.post, []

    def watched(*arguments: Any, **options: Any) -> Any:
        given.append(options["body_within"])
        return post(*arguments, **options)

    sender._client.post = watched  # type: ignore[method-assign]
    await attempt(sender, webhook)
    assert (await only(sender)).state is DELIVERED
    assert given == [timedelta(seconds=1)]


@pytest.mark.parametrize(("size", "complete"), [(64 * 1024, True), (64 * 1024 + 1, False)])
async def test_64_kib_of_an_answer_are_read(webhook: Webhook, *, size: int, complete: bool) -> None:
    webhook.replies_with(lambda: web.Response(body=b"x" * size))
    transport = Transport(DestinationPolicy(["127.0.0.1:*"]))
    destination = transport.policy.check(webhook.url())
    answer = await transport.post(destination, [], b"{}", timeout=timedelta(seconds=20))
    assert (answer.status, len(answer.body), answer.complete) == (200, 64 * 1024, complete)
    await transport.close()
