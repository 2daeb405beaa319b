"""Faults of this side back off, are logged, and count against no webhook and no delivery."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from aiohttp import web

from pushkit import KeyRing, PushSender, SecretKeys
from pushkit.delivery.answers import BreakerPolicy
from pushkit.delivery.signatures import Signing
from pushkit.errors import IdempotencyConflictError
from pushkit.events import DeliveryEvent, Event, LocalFault
from pushkit.outbox.states import DeliveryState
from tests.clock import Clock
from tests.emitted import emitted
from tests.internet import HOOKS, HOOKS_ADDRESS, Internet
from tests.ports import free_port
from tests.unit.pushkit.delivery.conftest import (
    Senders,
    Webhook,
    attempt_delivery,
    enqueue,
    key_ring,
    only,
    state_and_error,
    status,
)

WORDS = "canary: a mount is gone"


class Keys:
    """A key source that fails once the sender is open, until `broken` is False."""

    def __init__(self) -> None:
        self.is_open = self.broken = False

    def ring(self) -> KeyRing:
        if not self.is_open:
            self.is_open = self.broken = True
        elif self.broken:
            raise OSError(WORDS)
        return key_ring()


def unexpected(_: object) -> Signing:
    raise IdempotencyConflictError("nobody expects this one here")


def foreign_error(_: object) -> Signing:
    raise KeyError("canary")


FAULTS = [
    pytest.param({"keys": Keys()}, "unexpected_error", id="a key source out of reach"),
    pytest.param({"signing": lambda _: None}, "signing_failed", id="a function without a Signing"),
    pytest.param({"signing": unexpected}, "idempotency_conflict", id="an error of pushkit"),
    pytest.param({"signing": foreign_error}, "signing_failed", id="a foreign error"),
]


@pytest.mark.parametrize(("options", "error"), FAULTS)
async def test_a_local_fault_counts_no_attempt(
    senders: Senders, clock: Clock, webhook: Webhook, options: dict[str, Any], error: str
) -> None:
    sender = await senders.open(**options)
    await attempt_delivery(sender, webhook.url(), owner="alice")
    assert await sender.worker.run_once() == 0  # not claimed again at once
    await check_local_fault(sender, clock, error)
    assert webhook.received == []


async def test_a_delivery_with_a_local_fault_never_dies_and_is_sent_once_it_is_fixed(
    senders: Senders, clock: Clock, webhook: Webhook
) -> None:
    keys = Keys()
    sender = await senders.open(keys=keys)
    await enqueue(sender, webhook.url(), owner="alice")
    for _ in range(20):
        assert await sender.worker.run_once() == 1
        clock.advance(timedelta(hours=10).total_seconds())
    keys.broken = False
    webhook.replies_with(500)
    assert await sender.worker.run_once() == 1
    [delivery] = await sender.deliveries("task-1")
    assert (delivery.attempts, delivery.faults) == (1, 0)


async def test_a_local_fault_after_an_attempt_dies_by_age(
    senders: Senders, clock: Clock, webhook: Webhook
) -> None:
    keys = Keys()
    sender = await senders.open(keys=keys)
    keys.broken = False
    await enqueue(sender, webhook.url(), owner="alice")
    webhook.replies_with(500)
    await sender.worker.run_once()
    keys.broken = True
    clock.advance(10)
    await sender.worker.run_once()
    clock.advance(timedelta(hours=90).total_seconds())
    await sender.worker.run_once()
    assert await state_and_error(sender) == (DeliveryState.DEAD, "too_old")


async def test_a_local_fault_opens_no_breaker_and_disables_no_subscription(
    senders: Senders, clock: Clock, webhook: Webhook, events: list[Event]
) -> None:
    keys = Keys()
    sender = await senders.open(
        keys=keys,
        breaker=BreakerPolicy(failures=1),
        disable_after=timedelta(hours=1),
        on_event=events.append,
    )
    await enqueue(sender, webhook.url(), owner="alice")
    for _ in range(5):
        await sender.worker.run_once()
        clock.advance(timedelta(days=1).total_seconds())
    assert {event.error for event in emitted(events, LocalFault)} == {"unexpected_error"}
    assert {type(event) for event in emitted(events, DeliveryEvent)} == {LocalFault}
    [subscription] = await sender.subscriptions("task-1", owner="alice")
    assert subscription.active
    keys.broken = False
    await sender.worker.run_once()
    assert len(webhook.received) == 1


@pytest.mark.parametrize("lacks", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
async def test_running_out_of_sockets_is_a_local_fault(
    senders: Senders, clock: Clock, webhook: Webhook, monkeypatch: pytest.MonkeyPatch, lacks: int
) -> None:
    sender = await senders.open(breaker=BreakerPolicy(failures=1))
    await enqueue(sender, webhook.url(), owner="alice")

    def no_socket(*_: object) -> NoReturn:
        raise OSError(lacks, WORDS)

    with monkeypatch.context() as patched:
        patched.setattr("pushkit.net.dialling.dialling_socket", no_socket)
        assert await sender.worker.run_once() == 1
    await check_local_fault(sender, clock, "resources_exhausted")
    assert await sender.worker.run_once() == 1
    assert len(webhook.received) == 1


@pytest.fixture(params=[b"220 mail.corp.internal\r\n\r\n", b""], ids=["mail", "nothing"])
async def no_proxy(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    """Return the port of a server that is no proxy: it sends a greeting or only hangs up."""

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            writer.write(request.param)

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    "fault", ["nobody there", "no name", "no answer", "wrong password", "no proxy"]
)
async def test_a_failing_egress_proxy_is_a_local_fault(  # noqa: PLR0917  # fixtures
    senders: Senders,
    clock: Clock,
    public: Internet,
    no_proxy: int,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arrived: list[bytes] = []

    async def take(request: web.Request) -> web.Response:
        arrived.append(await request.read())
        return web.Response()

    await public.serve(take)
    proxy = await public.proxy()
    names, places = public.network.names, public.network.places
    place = places["10.0.0.5", 3128]
    if fault == "nobody there":
        places["10.0.0.5", 3128] = free_port()
    elif fault == "no name":
        names.says("proxy.corp.internal", [])
    elif fault == "no proxy":
        places["10.0.0.5", 3128] = no_proxy
    elif fault == "no answer":
        monkeypatch.setattr("pushkit.net.dialling._PROXY_REACHED_SECONDS", 0)
    else:
        proxy.credentials = "agent:another"
    sender = await senders.open(
        allow=(),
        ca_file=public.ca_file,
        breaker=BreakerPolicy(failures=1),
        proxy="http://agent:password@proxy.corp.internal:3128",
    )
    await attempt_delivery(sender, f"https://{HOOKS}/", owner="alice")
    await check_local_fault(sender, clock, "egress_proxy")
    names.says("proxy.corp.internal", ["10.0.0.5"])
    places["10.0.0.5", 3128], proxy.credentials = place, None
    monkeypatch.setattr("pushkit.net.dialling._PROXY_REACHED_SECONDS", 5)
    assert await sender.worker.run_once() == 1
    assert len(arrived) == 1


async def test_a_destination_that_the_proxy_cannot_reach_is_a_failed_attempt(
    senders: Senders, public: Internet
) -> None:
    proxy = await public.proxy()
    public.network.names.says(HOOKS, [HOOKS_ADDRESS])
    sender = await senders.open(allow=(), proxy="http://proxy.corp.internal:3128")
    await attempt_delivery(sender, f"https://{HOOKS}/", owner="alice")
    assert proxy.asked == [f"CONNECT {HOOKS_ADDRESS}:443"]
    [delivery] = await sender.deliveries("task-1")
    assert (delivery.attempts, delivery.last_error) == (1, "transport")


async def check_local_fault(sender: PushSender, clock: Clock, error: str) -> None:
    """Check that the only delivery waits for a local fault, and move the clock to its retry."""
    delivery = await only(sender)
    assert (delivery.state, delivery.last_error) == (DeliveryState.PENDING, error)
    assert (delivery.attempts, delivery.faults) == (0, 1)
    clock.now = delivery.not_before


async def test_local_faults_of_one_cause_are_logged_once_with_a_traceback(
    senders: Senders, webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    sender = await senders.open(keys=Keys())
    for number in range(5):
        await enqueue(sender, webhook.url(), f"task-{number}")
    assert await sender.worker.run_once() == 5
    [error] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "\n" not in error.getMessage()
    assert "in ring" in error.getMessage()
    assert "OSError" in error.getMessage()
    assert "canary" not in caplog.text  # the message of a foreign exception may contain secrets


async def test_an_error_of_pushkit_is_one_line_in_the_log(
    senders: Senders, webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    registering = await senders.open(secrets=SecretKeys.generate())
    config = {"url": webhook.url(), "token": "canary-token"}
    subscription = await registering.subscribe("task-1", config, version="1.0")
    sender = await senders.open()
    [delivery_id] = (await sender.notify(status())).ids
    assert await sender.worker.run_once() == 1
    [logged] = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert logged == (
        f"delivery {delivery_id}: not sent, because of a fault of this side (secret_key_missing);"
        f" it is retried: the token of subscription {subscription.id}: it is sealed, and there are"
        " no secret keys: set PUSHKIT_SECRET_KEYS"
    )


async def test_the_stats_count_deliveries_by_local_fault(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(keys=Keys())
    for number in range(3):
        await enqueue(sender, webhook.url(), f"task-{number}")
    await sender.worker.run_once()
    stats = await sender.outbox.stats()
    assert stats.local_faults == {"unexpected_error": 3}
    healthy = await senders.open()
    webhook.replies_with(404)
    await attempt_delivery(healthy, webhook.url(), "other")
    stats = await sender.outbox.stats()
    assert stats.local_faults == {"unexpected_error": 3}
    assert stats.errors == {"unexpected_error": 3, "status_404": 1}
