"""Promises of the documentation about deliveries that no other test covers."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

import pytest
from aiohttp import web

from pushkit import PushSender
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import Transport
from pushkit.outbox.retention import Retention
from pushkit.outbox.states import DeliveryState
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import (
    Senders,
    Webhook,
    deliver_due,
    enqueue,
    report_of,
    status,
)


class _Suspending(Clock):
    """A clock whose next reader is suspended for `sleeps` seconds."""

    sleeps = slept = 0.0

    def __call__(self) -> datetime:
        self.slept, self.sleeps = self.slept + self.sleeps, 0.0
        return self.now


@pytest.mark.parametrize("answer", [500, 404])
async def test_unfinished_work_is_never_purged(
    sender: PushSender, webhook: Webhook, clock: Clock, answer: int
) -> None:
    await enqueue(sender, webhook.url())
    await sender.notify(status())
    webhook.replies_with(answer)
    await sender.worker.run_once()
    clock.advance(60)
    everything = Retention(delivered=timedelta(0), dead=timedelta(0), per_task=0)
    assert await sender.outbox.retain(everything) == 0
    assert await sender.outbox.purge(older_than=timedelta(0), states=list(DeliveryState)) == 0
    found = await sender.deliveries("task-1")
    assert {each.state for each in found} == {DeliveryState.PENDING}
    clock.advance(24 * 3600)
    await deliver_due(sender)
    assert len(webhook.received) == 3
    clock.advance(1)
    assert await sender.outbox.retain(everything) == 2


async def test_the_attempt_log_uses_the_clock_of_the_database(
    on_postgres: Senders, webhook: Webhook, clock: Clock
) -> None:
    sender = await on_postgres.open()  # the clock of its worker is far from the server's
    delivery_id = await enqueue(sender, webhook.url())
    await sender.worker.run_once()
    report = await report_of(sender, delivery_id)
    [attempt] = report.attempts
    ahead = attempt.started_at - report.delivery.notified_at
    assert abs(ahead) < timedelta(hours=1)
    assert abs(attempt.started_at - clock.now) > timedelta(days=1)


async def test_a_worker_suspended_in_its_claim_sends_nothing_before_the_lease_expires(
    senders: Senders, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = senders.clock = _Suspending()
    awake = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda which: awake(which) + clock.slept)
    sender = await senders.open()
    await enqueue(sender, webhook.url())
    clock.sleeps = 100
    await sender.worker.run_once()
    assert webhook.received == []
    clock.advance(100)
    await sender.worker.run_once()
    assert len(webhook.received) == 1


@pytest.mark.parametrize(("size", "complete"), [(64 * 1024, True), (64 * 1024 + 1, False)])
async def test_64_kib_of_an_answer_are_read(webhook: Webhook, *, size: int, complete: bool) -> None:
    webhook.replies_with(lambda: web.Response(body=b"x" * size))
    transport = Transport(DestinationPolicy(["127.0.0.1:*"]))
    destination = transport.policy.check(webhook.url())
    answer = await transport.post(destination, [], b"{}", timeout=timedelta(seconds=20))
    assert (answer.status, len(answer.body), answer.complete) == (200, 64 * 1024, complete)
    await transport.close()
