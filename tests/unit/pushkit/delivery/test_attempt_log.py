"""The log of attempts: when, where, how long, with which outcome; and its retention."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from datetime import timedelta

import pytest

from pushkit import DeliveryState, PushSender
from pushkit.outbox.attempts import LoggedAttempt
from pushkit.outbox.retention import Retention
from pushkit.scheduling import event_loop
from tests.clock import Clock
from tests.eventually import eventually
from tests.unit.pushkit.delivery.conftest import (
    Senders,
    Webhook,
    attempt_delivery,
    deliver_due,
    enqueue,
    report_of,
    status,
)
from tests.unit.pushkit.net.test_transport import says, serving

LOG = logging.getLogger("pushkit.delivery")


async def attempts_of(sender: PushSender, delivery_id: str) -> tuple[LoggedAttempt, ...]:
    report = await report_of(sender, delivery_id)
    return report.attempts


async def test_the_attempt_log_keeps_phases_address_and_status(
    sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    delivery_id = await attempt_delivery(sender, webhook.url())
    [attempt] = await attempts_of(sender, delivery_id)
    assert (attempt.number, attempt.started_at) == (1, clock.now)
    assert (attempt.outcome, attempt.status, attempt.error) == ("delivered", 200, None)
    assert attempt.timing.address == webhook.base.removeprefix("http://")
    timing = attempt.timing
    phases = [p for p in (timing.resolve, timing.connect, timing.wait, timing.body) if p]
    assert timing.connect is not None
    assert timing.wait is not None
    assert sum(phases, timedelta(0)) <= attempt.duration
    assert attempt.answer is None


async def test_a_reused_connection_is_not_dialled_but_has_an_address(
    sender: PushSender, webhook: Webhook
) -> None:
    await attempt_delivery(sender, webhook.url())
    [delivery_id] = (await sender.notify(status())).ids
    await sender.worker.run_once()
    [attempt] = await attempts_of(sender, delivery_id)
    assert attempt.timing.connect is None
    assert attempt.timing.address == webhook.base.removeprefix("http://")


async def test_a_name_lookup_has_a_phase_of_its_own(senders: Senders, webhook: Webhook) -> None:
    sender = await senders.open(allow=("localhost:*",))
    url = webhook.url().replace("127.0.0.1", "localhost")
    delivery_id = await attempt_delivery(sender, url)
    [attempt] = await attempts_of(sender, delivery_id)
    assert attempt.timing.resolve is not None
    assert attempt.timing.connect is not None


async def test_a_refused_connection_has_an_address_and_no_status(sender: PushSender) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        delivery_id = await attempt_delivery(sender, f"http://{address}/hook")
    [attempt] = await attempts_of(sender, delivery_id)
    assert (attempt.outcome, attempt.status, attempt.error) == (
        "retry",
        None,
        "connection_refused",
    )
    assert attempt.timing.address == address
    assert attempt.timing.connect is not None
    assert attempt.timing.wait is None


async def test_a_refused_destination_is_an_attempt_without_phases(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open()
    delivery_id = await enqueue(sender, webhook.url())
    stricter = await senders.open(allow=())
    await stricter.worker.run_once()
    [attempt] = await attempts_of(sender, delivery_id)
    assert (attempt.outcome, attempt.error) == ("retry", "destination_refused")
    assert attempt.timing.address is None
    assert webhook.received == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        pytest.param(b"X: a\r\n b\r\nContent-Length: 0\r\n", "folded_header", id="folded"),
        pytest.param(b"X: a\nContent-Length: 0\n", "bare_line_feed", id="bare line feeds"),
        pytest.param(b"X y: a\r\n", "malformed_header", id="a blank in a name"),
        pytest.param(b"Content-Length: 0\r\n" * 2, "malformed_header", id="two lengths"),
    ],
)
@pytest.mark.parametrize("status_code", [202, 410])
async def test_an_answer_with_a_sound_status_line_counts_and_what_was_wrong_is_logged(
    sender: PushSender, fields: bytes, error: str, status_code: int
) -> None:
    answer = b"HTTP/1.1 %d Said\r\n%s\r\n" % (status_code, fields)
    async with serving(says(answer)) as server:
        delivery_id = await attempt_delivery(sender, server.url)
        assert len(server.requests) == 1
    report = await report_of(sender, delivery_id)
    [attempt] = report.attempts
    expected = (DeliveryState.DELIVERED, error) if status_code == 202 else ("dead", "gone")
    assert (report.delivery.state, attempt.error) == expected
    assert report.delivery.last_error == attempt.error
    assert attempt.status == status_code


async def test_the_log_names_why_an_answer_is_none(
    sender: PushSender, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(says(b"HTTP/1.1 20 OK\r\n\r\n")) as server:
        delivery_id = await attempt_delivery(sender, server.url)
    [attempt] = await attempts_of(sender, delivery_id)
    assert (attempt.outcome, attempt.error) == ("retry", "transport")
    assert "not an HTTP answer: Invalid status code" in caplog.text
    assert "Error:" not in caplog.text


@pytest.mark.parametrize(
    ("again", "status_code", "outcome"), [("redrive", 400, "dead"), ("resend", 202, "delivered")]
)
async def test_a_delivery_sent_again_keeps_its_id_and_log_and_restarts_its_schedule(
    sender: PushSender,
    webhook: Webhook,
    clock: Clock,
    *,
    again: str,
    status_code: int,
    outcome: str,
) -> None:
    webhook.replies_with(status_code, 500)
    delivery_id = await attempt_delivery(sender, webhook.url())
    [first] = await attempts_of(sender, delivery_id)
    clock.advance(timedelta(days=20).total_seconds())
    assert (await getattr(sender.outbox, again)([delivery_id])).ids == (delivery_id,)
    await sender.worker.run_once()
    clock.advance(60)
    await sender.worker.run_once()
    assert [request.id for request in webhook.received] == [delivery_id] * 3
    attempts = await attempts_of(sender, delivery_id)
    assert attempts[0] == first
    assert [(each.number, each.outcome, each.status) for each in attempts] == [
        (1, outcome, status_code),
        (2, "retry", 500),
        (3, "delivered", 200),
    ]


async def test_housekeeping_survives_a_database_out_of_reach_and_logs_it_once(
    sender: PushSender, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox, retain = sender.outbox, sender.options.retain
    await sender.close()
    tries = 0

    async def try_to_retain() -> int:
        nonlocal tries
        tries += 1
        return await outbox.retain(retain)

    monkeypatch.setattr(event_loop, "HOUSEKEEPING_INTERVAL", timedelta(0))
    running = asyncio.create_task(event_loop.housekeep("outbox", try_to_retain, log=LOG))

    await eventually(lambda: tries > 2)
    assert caplog.text.count("the outbox is out of reach") == 1
    assert not running.done()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_the_attempt_log_uses_the_clock_of_the_database(
    on_postgres: Senders, webhook: Webhook, clock: Clock
) -> None:
    sender = await on_postgres.open()  # the clock of its worker is far from the server's
    report = await report_of(sender, await attempt_delivery(sender, webhook.url()))
    [attempt] = report.attempts
    ahead = attempt.started_at - report.delivery.notified_at
    assert abs(ahead) < timedelta(hours=1)
    assert abs(attempt.started_at - clock.now) > timedelta(days=1)


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
