"""Alerts of a sender: through its own outbox, to a command, into the log."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from datetime import timedelta
from pathlib import Path

import pytest

from pushkit import AlertOptions, PushSender, alerts
from pushkit.errors import ConfigError, InvalidPushConfigError
from pushkit.events import (
    ALERTS_OWNER,
    ALERTS_TASK,
    Delivered,
    DeliveryDead,
    Event,
    HealthFault,
    Listener,
)
from tests.emitted import emitted
from tests.eventually import eventually
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, status


async def started(
    senders: Senders,
    webhook: Webhook,
    alerts: AlertOptions,
    *replies: int,
    on_event: Listener | None = None,
) -> PushSender:
    """Return a sender that delivers to a webhook, which at first answers so."""
    sender = await senders.open(alerts=alerts, on_event=on_event)
    await sender.start()
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="alice")
    webhook.replies_with(*replies)
    return sender


async def test_a_dead_letter_reaches_the_operators_webhook_signed_by_the_same_outbox(
    senders: Senders, webhook: Webhook
) -> None:
    alerts = AlertOptions(webhook=webhook.url("/alerts"), webhook_token="of-the-operator")
    sender = await started(senders, webhook, alerts, 422, 422)
    await sender.notify(status())
    await sender.notify(status("completed"))
    await webhook.until(lambda: bool(webhook.at("/alerts")))

    [request] = webhook.at("/alerts")
    message = json.loads(request.body)["message"]
    text, data = message["parts"]
    assert text["text"].endswith("was given up: unprocessable")
    assert (data["data"]["code"], data["data"]["facts"]["owner"]) == ("dead_letter", "alice")
    assert request.headers.one("X-A2A-Token") == "of-the-operator"
    claims = request.claims(senders.public_keys())
    assert claims.task_id == message["taskId"] == ALERTS_TASK


async def test_a_dead_letter_while_the_sender_closes_is_an_alert_of_the_next_start(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await started(senders, webhook, AlertOptions(webhook=webhook.url("/alerts")))
    answer = webhook.replies_after(422)
    await sender.notify(status())
    await webhook.until(lambda: len(webhook.received) == 1)
    runner = sender.worker.runner
    closing = asyncio.create_task(sender.close())
    await eventually(lambda: not runner.is_open)  # it waits for the attempt
    answer.set()
    await closing

    again = await senders.open()
    await again.start()
    await webhook.until(lambda: len(webhook.at("/alerts")) == 1)


async def test_an_alert_webhook_that_refuses_alerts_raises_no_alert(
    senders: Senders, webhook: Webhook, events: list[Event]
) -> None:
    alerts = AlertOptions(webhook=webhook.url("/alerts"))
    sender = await started(senders, webhook, alerts, 422, 200, on_event=events.append)
    webhook.replies_with(422, path="/alerts")
    await sender.notify(status())

    await eventually(lambda: len(emitted(events, DeliveryDead)) == 2)
    await sender.notify(status("completed"))
    await eventually(lambda: emitted(events, Delivered))
    assert [each.owner for each in emitted(events, DeliveryDead)] == ["alice", ALERTS_OWNER]
    assert len(webhook.at("/alerts")) == 1


async def test_alerts_for_a_disabled_alert_subscription_are_logged(
    senders: Senders, webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    alerts = AlertOptions(webhook=webhook.url("/alerts"))
    sender = await started(senders, webhook, alerts, 422, 410)
    webhook.replies_with(410, path="/alerts")

    for said in (
        "subscription_disabled owner=pushkit:alerts",
        "alert not sent by webhook: its subscription is disabled",
    ):
        await sender.notify(status())
        await eventually(lambda: said in caplog.text)  # noqa: B023
    assert "pushkit subscriptions enable --task pushkit-alerts" in caplog.text


@pytest.mark.parametrize(("task", "owner"), [(ALERTS_TASK, "mallory"), ("task-1", ALERTS_OWNER)])
async def test_clients_cannot_subscribe_to_alerts(
    sender: PushSender, webhook: Webhook, task: str, owner: str
) -> None:
    with pytest.raises(InvalidPushConfigError, match="reserved for the operator's alerts"):
        await sender.subscribe(task, {"url": webhook.url()}, version="1.0", owner=owner)


async def test_two_processes_send_the_same_alert_once(senders: Senders, webhook: Webhook) -> None:
    alerts = AlertOptions(webhook=webhook.url("/alerts"), every=timedelta(days=3))
    for replies in ((422,), (422, 410)):
        sender = await started(senders, webhook, alerts, *replies)
        for _ in replies:
            await sender.notify(status())
        await webhook.until(lambda: len(webhook.at("/alerts")) == len(replies))  # noqa: B023
        await sender.close()
    codes = [json.loads(each.body)["message"]["parts"][1] for each in webhook.at("/alerts")]
    assert [each["data"]["code"] for each in codes] == ["dead_letter", "subscription_disabled"]


async def test_a_command_receives_the_alert_on_stdin_without_our_variables(
    senders: Senders, webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUSHKIT_CANARY", "a secret")
    alert, variables = tmp_path / "alert.json", tmp_path / "variables"
    script = f"env > {shlex.quote(str(variables))}; cat > {shlex.quote(str(alert))}.new"
    script += f"; mv {shlex.quote(str(alert))}.new {shlex.quote(str(alert))}"
    sender = await started(senders, webhook, AlertOptions(command=("sh", "-c", script)), 422)
    await sender.notify(status())

    await eventually(alert.exists)
    assert json.loads(alert.read_text())["code"] == "dead_letter"
    assert "CANARY" not in variables.read_text()


async def test_a_fault_of_the_outbox_is_logged_and_not_sent_through_the_outbox(
    senders: Senders, webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    alerts = AlertOptions(webhook=webhook.url("/alerts"))
    sender = await senders.open(alerts=alerts)
    sender._background = [asyncio.create_task(asyncio.sleep(0))]  # its worker has ended
    await asyncio.wait(sender._background)
    assert sender._alerts is not None
    sender._alerts.start()
    with caplog.at_level(logging.ERROR, "pushkit.alerts"):
        await eventually(lambda: "alert health_fault: worker: it does not run" in caplog.text)
    assert await sender.deliveries(ALERTS_TASK) == []


async def test_the_failure_of_a_command_is_logged_with_the_alert(
    senders: Senders, webhook: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    sender = await started(senders, webhook, AlertOptions(command=("false",)), 422)
    await sender.notify(status())

    await eventually(
        lambda: "alert not sent by command: command: ended with status 1" in caplog.text
    )
    assert "was given up" in caplog.text


@pytest.mark.parametrize(
    "alerts",
    [
        pytest.param(AlertOptions(command=("no-such-program-anywhere",)), id="no program"),
        pytest.param(AlertOptions(webhook="http://169.254.169.254/"), id="a forbidden URL"),
    ],
)
async def test_alerts_that_cannot_be_sent_are_refused_at_once(
    senders: Senders, alerts: AlertOptions
) -> None:
    with pytest.raises(ConfigError, match=r"^alerts: "):
        await senders.open(alerts=alerts)


async def test_stopping_logs_the_alerts_that_the_command_did_not_receive(
    senders: Senders, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "_STOP_SECONDS", 0.1)
    sender = await senders.open(alerts=AlertOptions(command=("sleep", "60")))
    assert sender._alerts
    sender._alerts.start()
    for reason in ("first", "second"):
        fault = HealthFault(at=senders.clock.now, part="storage", about=reason, reason=reason)
        sender.events.emit(fault)
    await sender._alerts.stop()
    said = [line for line in caplog.messages if "not sent by command before the end" in line]
    assert [line.rpartition(" ")[2] for line in said[:2]] == ["first", "second"]


def test_alerts_without_a_target_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected log, command or webhook"):
        AlertOptions(every=timedelta(minutes=5))


def test_a_command_in_one_string_is_refused() -> None:
    with pytest.raises(ConfigError, match="command: expected a list, found a string"):
        AlertOptions(command="/usr/bin/notify --now")
