"""Which events are alerts, and how often the same one is let through."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from pushkit.alerts import AlertBound, AlertCode, alert_of
from pushkit.events.model import Event, HealthFault
from pushkit.events.receiver import NotificationDead
from pushkit.events.sender import (
    ALERTS_OWNER,
    BreakerOpened,
    DeliveryDead,
    LocalFault,
    SigningKeyNearEnd,
    SubscriptionDisabled,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ORIGIN = "https://client.example.com:443"
DEAD = DeliveryDead(
    at=NOW,
    tenant="",
    owner="alice",
    task_id="task-1",
    subscription_id="sub_1",
    delivery_id="dlv_1",
    origin=ORIGIN,
    error="status_422",
)
ABOUT = {
    name: getattr(DEAD, name)
    for name in ("at", "tenant", "owner", "task_id", "subscription_id", "delivery_id", "origin")
}


@pytest.mark.parametrize(
    ("event", "code", "about"),
    [
        pytest.param(DEAD, AlertCode.DEAD_LETTER, ORIGIN, id="dead letter"),
        pytest.param(
            SubscriptionDisabled(**ABOUT, error="gone"),
            AlertCode.SUBSCRIPTION_DISABLED,
            ORIGIN,
            id="subscription",
        ),
        pytest.param(
            LocalFault(**ABOUT, error="storage"), AlertCode.LOCAL_FAULT, "storage", id="fault"
        ),
        pytest.param(
            NotificationDead(
                at=NOW,
                sender="agent",
                task_id="task-1",
                delivery_id="dlv_1",
                notification_id=7,
                error="handlers:done: ValueError",
            ),
            AlertCode.DEAD_LETTER,
            "agent",
            id="dead notification",
        ),
        pytest.param(
            SigningKeyNearEnd(at=NOW, kid="k1", algorithm="ES256", reason="is 91 days old"),
            AlertCode.KEY_NEAR_END,
            "k1",
            id="key",
        ),
        pytest.param(
            HealthFault(at=NOW, part="storage", reason="storage: it is away"),
            AlertCode.HEALTH_FAULT,
            "storage",
            id="health",
        ),
        pytest.param(
            HealthFault(at=NOW, part="keys", about="agent", reason="keys of sender agent: away"),
            AlertCode.HEALTH_FAULT,
            "keys agent",
            id="keys of one sender",
        ),
    ],
)
def test_an_event_that_needs_attention_is_an_alert(
    event: Event, code: AlertCode, about: str
) -> None:
    alert = alert_of(event)
    assert alert is not None
    assert (alert.code, alert.about) == (code, about)
    assert alert.document()["says"] == alert.says


def test_a_webhook_that_is_gone_is_one_alert_and_not_a_dead_letter_besides() -> None:
    events = [replace(DEAD, error="gone"), SubscriptionDisabled(**ABOUT, error="gone")]
    alerts = [alert for alert in map(alert_of, events) if alert is not None]
    assert [each.code for each in alerts] == [AlertCode.SUBSCRIPTION_DISABLED]


def test_an_opened_breaker_raises_no_alert() -> None:
    assert alert_of(BreakerOpened(**ABOUT, error="status_503")) is None


@pytest.mark.parametrize(
    "event",
    [
        replace(DEAD, owner=ALERTS_OWNER),
        replace(SubscriptionDisabled(**ABOUT, error="gone"), owner=ALERTS_OWNER),
    ],
)
def test_outcomes_of_alerts_raise_no_alert(event: Event) -> None:
    assert alert_of(event) is None


def test_the_same_alert_goes_once_in_an_interval_and_then_says_how_many_there_were() -> None:
    bound = AlertBound(HOUR)
    sent = []
    for minute in range(0, 121, 20):
        alert = alert_of(replace(DEAD, at=NOW + timedelta(minutes=minute)))
        assert alert is not None
        sent.append(bound.limit(alert))
    assert [each.more if each else None for each in sent] == [0, None, None, 2, None, None, 2]


def test_a_clock_that_was_set_back_keeps_nothing_unsaid() -> None:
    bound = AlertBound(HOUR)
    first, a_moment_before, a_day_before = (
        alert_of(replace(DEAD, at=NOW - back)) for back in (HOUR * 0, HOUR / 2, HOUR * 24)
    )
    assert first is not None
    assert a_moment_before is not None
    assert a_day_before is not None
    assert bound.limit(first) == first
    assert bound.limit(a_moment_before) is None
    assert bound.limit(a_day_before) == replace(a_day_before, more=1)


def test_another_origin_is_another_alert_up_to_a_hundred_of_them() -> None:
    bound = AlertBound(HOUR)
    alerts = [alert_of(replace(DEAD, origin=f"https://{n}.example.com:443")) for n in range(500)]
    sent = [bound.limit(alert) for alert in alerts if alert is not None]
    assert len([each for each in sent if each is not None]) == 101

    for part in ("storage", "keys"):  # of another code, none is one too many
        fault = alert_of(HealthFault(at=NOW, part=part, reason="it is away"))
        assert fault is not None
        assert bound.limit(fault) is not None

    later = alert_of(replace(DEAD, origin="https://new.example.com:443", at=NOW + HOUR))
    assert later is not None
    assert bound.limit(later) is not None
