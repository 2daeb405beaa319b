"""The breaker: its rule, and its effect on deliveries."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

import pytest
from tenacity import stop_after_attempt

from pushkit import PushSender
from pushkit.delivery.answers import BreakerPolicy, wait_after, works
from pushkit.errors import ConfigError
from pushkit.events import BreakerClosed, BreakerOpened, Event
from pushkit.outbox.model import AttemptResult
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from tests.clock import Clock
from tests.emitted import emitted
from tests.eventually import eventually
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, asks_to_wait, enqueue, status

POLICY = BreakerPolicy(
    failures=3, first_wait=timedelta(seconds=30), longest_wait=timedelta(seconds=100)
)
RETRY_AT_ONCE = RetryPolicy(wait=wait_schedule([0], jitter=0))


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [
        pytest.param(0, None, id="none"),
        pytest.param(2, None, id="one too few"),
        pytest.param(3, 30, id="the threshold"),
        pytest.param(4, 60, id="one failed probe"),
        pytest.param(5, 100, id="the longest wait"),
        pytest.param(10**9, 100, id="endless"),
    ],
)
def test_the_wait_doubles_after_the_threshold(failures: int, seconds: float | None) -> None:
    expected = None if seconds is None else timedelta(seconds=seconds)
    assert wait_after(POLICY, failures) == expected


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param({"failures": 0}, id="no failure at all"),
        pytest.param({"first_wait": timedelta(0)}, id="no wait"),
        pytest.param({"first_wait": timedelta(hours=1)}, id="a first wait over the longest"),
    ],
)
def test_an_impossible_policy_is_refused(policy: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        BreakerPolicy(**policy)  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        pytest.param(200, None, True, id="delivered"),
        pytest.param(404, "status_404", True, id="4xx"),
        pytest.param(301, "redirect", True, id="a redirect"),
        pytest.param(429, "status_429", True, id="too many requests"),
        pytest.param(500, "status_500", False, id="5xx"),
        pytest.param(None, "transport", False, id="no answer"),
        pytest.param(None, "timeout", False, id="no answer in time"),
        pytest.param(None, "connection_refused", False, id="nobody listens"),
        pytest.param(None, "dns_failure", False, id="no such name"),
        pytest.param(None, "tls_failure", False, id="no TLS"),
        pytest.param(None, "destination_refused", None, id="refused by the policy"),
        pytest.param(None, "address_refused", None, id="its address refused"),
        pytest.param(503, "too_old", None, id="given up without an attempt"),
        pytest.param(None, "subscription_missing", None, id="no subscription"),
    ],
)
def test_only_results_of_the_destination_count(
    status: int | None, error: str | None, expected: bool | None
) -> None:
    assert works(AttemptResult(outcome=Outcome.RETRY, status=status, error=error)) is expected


def test_local_faults_do_not_count() -> None:
    assert works(AttemptResult(outcome=Outcome.LOCAL_FAULT, error="no_signing_key")) is None


def test_the_default_policy_matches_the_documentation() -> None:
    policy = BreakerPolicy()
    assert policy.failures == 5
    assert (policy.first_wait, policy.longest_wait) == (
        timedelta(seconds=30),
        timedelta(minutes=10),
    )


async def test_an_open_breaker_allows_no_attempts_and_then_one_probe_at_a_time(
    senders: Senders, clock: Clock, webhook: Webhook, events: list[Event]
) -> None:
    sender = await senders.open(breaker=POLICY, retry=RETRY_AT_ONCE, on_event=events.append)
    for number in range(5):
        await enqueue(sender, webhook.url(), f"task-{number}")
    webhook.replies_with(*[500] * 6)

    assert await sender.worker.run_once() == 5  # all at once: the breaker is still closed
    assert await sender.worker.run_once() == 0
    assert len(emitted(events, BreakerOpened)) == 1
    assert emitted(events, BreakerClosed) == []
    clock.advance(30)
    assert await sender.worker.run_once() == 1  # a probe, which fails
    clock.advance(59)
    assert await sender.worker.run_once() == 0
    clock.advance(1)
    assert await sender.worker.run_once() == 1  # the next probe succeeds
    assert [len(emitted(events, each)) for each in (BreakerOpened, BreakerClosed)] == [2, 1]
    assert await sender.worker.run_once() == 4

    deliveries = [(await sender.deliveries(f"task-{number}"))[0] for number in range(5)]
    assert {delivery.state for delivery in deliveries} == {DeliveryState.DELIVERED}
    assert sum(delivery.attempts for delivery in deliveries) == len(webhook.received) == 11


async def test_a_webhook_that_asks_to_wait_is_probed_afterwards(
    senders: Senders, clock: Clock, webhook: Webhook
) -> None:
    sender = await senders.open(breaker=BreakerPolicy(failures=1), retry=RETRY_AT_ONCE)
    for number in range(3):
        await enqueue(sender, webhook.url(), f"task-{number}")

    webhook.replies_with(*[asks_to_wait(120)] * 3)
    await sender.worker.run_once()
    clock.advance(119)
    assert await sender.worker.run_once() == 0
    clock.advance(1)
    assert await sender.worker.run_once() == 1
    assert await sender.worker.run_once() == 2


async def test_a_probe_is_sent_however_long_it_waits_for_a_permit(
    senders: Senders, clock: Clock, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = await senders.open(breaker=BreakerPolicy(failures=1), retry=RETRY_AT_ONCE)
    for number in range(3):
        await enqueue(sender, webhook.url(), f"task-{number}")
    webhook.replies_with(*[500] * 3)
    await sender.worker.run_once()
    clock.advance(30)
    # Each queue has waited so long that its row is looked at before its next delivery begins.
    monkeypatch.setattr("pushkit.queue.runner.KNOWN_FOR", -1)
    assert await sender.worker.run_once() == 1
    assert await sender.worker.run_once() == 2


async def test_the_breaker_survives_a_restart(senders: Senders, webhook: Webhook) -> None:
    policy = BreakerPolicy(failures=1)
    first = await senders.open(breaker=policy, retry=RETRY_AT_ONCE)
    await enqueue(first, webhook.url())
    webhook.replies_with(500)
    await first.worker.run_once()
    await first.close()
    second = await senders.open(breaker=policy, retry=RETRY_AT_ONCE)
    assert await second.worker.run_once() == 0


async def test_on_probation_what_is_being_stored_waits_for_the_probe_too(
    senders: Senders, clock: Clock, webhook: Webhook
) -> None:
    once = RetryPolicy(stop=stop_after_attempt(1))
    sender = await senders.open(breaker=POLICY, retry=once)
    await sender.start()
    webhook.replies_with(*[500] * 3)
    tasks = [f"task-{number}" for number in range(10)]
    for task in tasks:
        await sender.subscribe(task, {"url": webhook.url()}, version="1.0", owner="alice")
    await sender.subscribe("other", {"url": webhook.url("/other")}, version="1.0", owner="bob")
    for number, task in enumerate(tasks[:3], start=1):
        await sender.notify(status(task_id=task))
        await webhook.until_received(number)
    await eventually(partial(_are_dead, sender, tasks[:3]))
    clock.advance(30)

    is_answered = webhook.replies_after()
    await asyncio.gather(*(sender.notify(status(task_id=task)) for task in tasks[3:]))
    for number in range(1, 4):  # another owner's updates are sent meanwhile
        await sender.notify(status(task_id="other"))
        await webhook.until_received(number, "/other")
    await webhook.until_received(4)
    assert len(webhook.at("/hook")) == 4
    is_answered.set()
    await webhook.until(lambda: len(webhook.at("/hook")) == len(tasks))


async def _are_dead(sender: PushSender, tasks: list[str]) -> bool:
    found = [each for task in tasks for each in await sender.deliveries(task)]
    return all(each.state is DeliveryState.DEAD for each in found)
