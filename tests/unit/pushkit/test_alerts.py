"""Which events are alerts, and how often the same one is let through."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pushkit.alerts import Alert, AlertBound, AlertCode, alert_of
from pushkit.events import (
    ALERTS_OWNER,
    BreakerOpened,
    DeliveryDead,
    Event,
    HealthFault,
    LocalFault,
    NotificationDead,
    SigningKeyNearEnd,
    SubscriptionDisabled,
)
from tests.emitted import OF_DELIVERY

HOUR = timedelta(hours=1)
ORIGIN = OF_DELIVERY["origin"]
NOW = OF_DELIVERY["at"]
DEAD = DeliveryDead(**OF_DELIVERY, error="status_422")


def alert(event: Event) -> Alert:
    """Return the alert for an event that is one."""
    found = alert_of(event)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("event", "code", "about"),
    [
        pytest.param(DEAD, AlertCode.DEAD_LETTER, ORIGIN, id="dead letter"),
        pytest.param(
            SubscriptionDisabled(**OF_DELIVERY, error="gone"),
            AlertCode.SUBSCRIPTION_DISABLED,
            ORIGIN,
            id="subscription",
        ),
        pytest.param(
            LocalFault(**OF_DELIVERY, error="storage"), AlertCode.LOCAL_FAULT, "storage", id="fault"
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
    found = alert(event)
    assert (found.code, found.about) == (code, about)
    assert found.document()["says"] == found.says


def test_a_webhook_that_is_gone_is_one_alert_and_not_a_dead_letter_besides() -> None:
    events = [replace(DEAD, error="gone"), SubscriptionDisabled(**OF_DELIVERY, error="gone")]
    alerts = [alert for alert in map(alert_of, events) if alert is not None]
    assert [each.code for each in alerts] == [AlertCode.SUBSCRIPTION_DISABLED]


@pytest.mark.parametrize(
    "event",
    [
        BreakerOpened(**OF_DELIVERY, error="status_503"),
        replace(DEAD, owner=ALERTS_OWNER),
        replace(SubscriptionDisabled(**OF_DELIVERY, error="gone"), owner=ALERTS_OWNER),
    ],
    ids=["breaker", "alert that was given up", "disabled alerts"],
)
def test_what_needs_no_attention_and_results_of_alerts_raise_no_alert(event: Event) -> None:
    assert alert_of(event) is None


def test_the_same_alert_goes_once_in_an_interval_and_then_says_how_many_there_were() -> None:
    bound = AlertBound(HOUR)
    minutes = [timedelta(minutes=minute) for minute in range(0, 121, 20)]
    sent = [bound.limit(alert(replace(DEAD, at=NOW + later))) for later in minutes]
    assert [each.more if each else None for each in sent] == [0, None, None, 2, None, None, 2]


def test_a_clock_that_was_set_back_keeps_nothing_unsaid() -> None:
    bound = AlertBound(HOUR)
    first, a_moment_before, a_day_before = (
        alert(replace(DEAD, at=NOW - back)) for back in (HOUR * 0, HOUR / 2, HOUR * 24)
    )
    assert bound.limit(first) == first
    assert bound.limit(a_moment_before) is None
    assert bound.limit(a_day_before) == replace(a_day_before, more=1)


def test_another_origin_is_another_alert_up_to_a_hundred_of_them() -> None:
    bound = AlertBound(HOUR)
    origins = [f"https://{number}.example.com:443" for number in range(500)]
    sent = [bound.limit(alert(replace(DEAD, origin=origin))) for origin in origins]
    assert len([each for each in sent if each is not None]) == 101

    for part in ("storage", "keys"):  # of another code, none is one too many
        fault = HealthFault(at=NOW, part=part, reason="it is away")
        assert bound.limit(alert(fault)) is not None

    later = replace(DEAD, origin="https://new.example.com:443", at=NOW + HOUR)
    assert bound.limit(alert(later)) is not None
