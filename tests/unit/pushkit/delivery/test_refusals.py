"""Attempts without an answer: a code for each cause, and the schedule of a refused address."""

from __future__ import annotations

from datetime import timedelta

import pytest
import trustme
from aiohttp import web
from tenacity import stop_after_attempt

from pushkit import PushSender, RetryPolicy, wait_schedule
from pushkit.events import DeliveryDead, Event, SubscriptionDisabled
from pushkit.outbox.states import DeliveryState
from tests.clock import Clock
from tests.emitted import emitted
from tests.internet import HOOKS, HOOKS_ADDRESS, Internet
from tests.unit.pushkit.delivery.conftest import (
    Senders,
    attempt_delivery,
    claim,
    deliver_due,
    enqueue,
    only,
    report_of,
    state_and_error,
    status,
)

HOUR = timedelta(hours=1)
URL = f"https://{HOOKS}/hook"


async def answer(_: web.Request) -> web.Response:
    return web.Response()


async def fail(_: web.Request) -> web.Response:
    response = web.Response(status=500)
    response.force_close()  # the next attempt opens a new connection
    return response


async def errors_of(sender: PushSender, delivery_id: str) -> list[str | None]:
    report = await report_of(sender, delivery_id)
    return [attempt.error for attempt in report.attempts]


async def test_a_refused_address_is_tried_three_times_in_three_hours(
    public: Internet, senders: Senders, clock: Clock, events: list[Event]
) -> None:
    public.network.names.says(HOOKS, ["10.0.0.1"])
    sender = await senders.open(allow=(), on_event=events.append)
    delivery_id = await attempt_delivery(sender, URL, owner="alice")
    waits = []
    for _ in range(2):
        delivery = await only(sender)
        assert (delivery.state, delivery.last_error) == (DeliveryState.PENDING, "address_refused")
        waits.append((delivery.not_before - clock.now) / HOUR)
        clock.now = delivery.not_before
        assert await sender.worker.run_once() == 1
    assert 0.8 <= waits[0] <= 1.2
    assert 1.6 <= waits[1] <= 2.4
    assert await state_and_error(sender) == (DeliveryState.DEAD, "address_refused")
    assert await errors_of(sender, delivery_id) == ["address_refused"] * 3
    assert [event.error for event in emitted(events, DeliveryDead)] == ["address_refused"]
    assert public.network.dialled == []
    assert (await sender.outbox.stats()).errors == {"address_refused": 1}
    # A redrive restarts the schedule.
    await sender.outbox.redrive([delivery_id])
    await sender.worker.run_once()
    assert (await only(sender)).state is DeliveryState.PENDING


@pytest.mark.parametrize(
    "errors",
    [
        pytest.param(["status_500"] * 3 + ["address_refused"] * 3, id="earlier attempts count not"),
        pytest.param(
            ["address_refused", "address_refused", "status_500", "address_refused"],
            id="an answer in between begins nothing anew",
        ),
        pytest.param(["address_refused"] * 2 + ["status_500"] * 4, id="nor does it shorten others"),
    ],
)
async def test_a_refused_address_and_a_failing_webhook_have_a_schedule_each(
    public: Internet, senders: Senders, clock: Clock, errors: list[str]
) -> None:
    await public.serve(fail)
    retry = RetryPolicy(wait=wait_schedule((60,)), stop=stop_after_attempt(4))
    sender = await senders.open(allow=(), ca_file=public.ca_file, retry=retry)
    addresses = {"status_500": HOOKS_ADDRESS, "address_refused": "10.0.0.1"}
    public.network.names.says(HOOKS, [addresses[errors[0]]])
    delivery_id = await attempt_delivery(sender, URL, owner="alice")
    for error in errors[1:]:
        assert (await only(sender)).state is DeliveryState.PENDING
        public.network.names.says(HOOKS, [addresses[error]])
        clock.advance(10 * 3600)
        await sender.worker.run_once()
    assert await state_and_error(sender) == (DeliveryState.DEAD, errors[-1])
    assert await errors_of(sender, delivery_id) == errors


async def test_a_dead_worker_does_not_lengthen_the_schedule_of_a_refused_address(
    public: Internet, senders: Senders, clock: Clock
) -> None:
    public.network.names.says(HOOKS, ["10.0.0.1"])
    dying, living = await senders.open(allow=()), await senders.open(allow=())
    delivery_id = await attempt_delivery(living, URL, owner="alice")
    for _ in range(2):
        clock.advance(3 * 3600)
        await claim(dying)
        clock.advance(3600)
        assert await living.worker.run_once() == 1
    assert await state_and_error(living) == (DeliveryState.DEAD, "address_refused")
    assert await errors_of(living, delivery_id) == ["address_refused"] * 3


async def test_refused_addresses_open_no_breaker_but_finally_disable_the_subscription(
    public: Internet, senders: Senders, clock: Clock, events: list[Event]
) -> None:
    public.network.names.says(HOOKS, ["10.0.0.1"])
    sender = await senders.open(allow=(), on_event=events.append)
    for number in range(8):
        await enqueue(sender, URL, f"task-{number}", owner="alice")
    assert await sender.worker.run_once() == 8
    assert emitted(events, SubscriptionDisabled) == []
    clock.advance(timedelta(days=6).total_seconds())
    await deliver_due(sender)  # every delivery is too old now
    await sender.notify(status(task_id="task-0"))
    await sender.worker.run_once()
    assert [event.task_id for event in emitted(events, SubscriptionDisabled)] == ["task-0"]


async def test_an_untrusted_certificate_is_a_tls_failure(
    public: Internet, senders: Senders
) -> None:
    await public.serve(answer, certificate=trustme.CA().issue_cert(HOOKS))
    sender = await senders.open(allow=(), ca_file=public.ca_file)
    delivery_id = await attempt_delivery(sender, URL, owner="alice")
    assert await errors_of(sender, delivery_id) == ["tls_failure"]
