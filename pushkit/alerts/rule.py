"""Decides which events are alerts, and how often the same alert is sent; without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from pushkit.events.listeners import facts_of
from pushkit.events.model import Event, HealthFault
from pushkit.events.receiver import NotificationDead
from pushkit.events.sender import (
    ALERTS_OWNER,
    DeliveryDead,
    LocalFault,
    SigningKeyNearEnd,
    SubscriptionDisabled,
)
from pushkit.logs import printable
from pushkit.record import field, record

_MAX_SUBJECTS: Final = 100
_OTHER: Final = "other"


class AlertCode(StrEnum):
    """The kind of an alert."""

    DEAD_LETTER = "dead_letter"
    SUBSCRIPTION_DISABLED = "subscription_disabled"
    LOCAL_FAULT = "local_fault"
    KEY_NEAR_END = "key_near_end"
    HEALTH_FAULT = "health_fault"


@record(frozen=True, slots=True, kw_only=True)
class Alert:
    """A fault that an operator should know about."""

    code: AlertCode
    at: datetime  # when it was found
    about: str  # an origin, a sender, a key, a part: alerts with the same code and subject repeat
    says: str  # a sentence
    # The members of the event.
    facts: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    more: int = 0  # how many repetitions were not sent since the previous one

    def document(self) -> dict[str, object]:
        """Return the JSON document that a command or a webhook gets."""
        members = {"code": self.code.value, "at": self.at.isoformat(), "about": self.about}
        return {**members, "says": self.says, "more": self.more, "facts": dict(self.facts)}


def alert_of(event: Event) -> Alert | None:
    """Return the alert for an event; None if the event is not an alert."""
    match event:
        case DeliveryDead(error="gone"):
            return None  # its subscription is disabled, which is an alert of its own
        case DeliveryDead(origin=about, error=error) if event.owner != ALERTS_OWNER:
            code = AlertCode.DEAD_LETTER
            says = f"a delivery of task {printable(event.task_id)} to {about} was given up: {error}"
        case SubscriptionDisabled(origin=about, error=error) if event.owner != ALERTS_OWNER:
            code = AlertCode.SUBSCRIPTION_DISABLED
            says = f"a subscription to task {printable(event.task_id)} at {about} was disabled:"
            says += f" {error}"
        case LocalFault(error=error):
            code, about = AlertCode.LOCAL_FAULT, str(error)
            says = f"deliveries wait because of a fault on this side: {error}"
        case NotificationDead(error=error):
            code, about = AlertCode.DEAD_LETTER, str(event.sender)
            says = f"notification {event.notification_id} of task {printable(event.task_id)} was"
            says += f" given up: {printable(error)}"
        case SigningKeyNearEnd(kid=about, reason=reason):
            code, says = AlertCode.KEY_NEAR_END, f"{event.algorithm} key {about} {reason}"
        case HealthFault(reason=says):
            code, about = AlertCode.HEALTH_FAULT, f"{event.part} {event.about}".rstrip()
        case _:
            return None
    return Alert(code=code, at=event.at, about=about, says=says, facts=facts_of(event))


@dataclass(slots=True)
class _Sent:
    at: datetime
    unsent: int = 0


class AlertBound:
    """Lets the same alert through once in an interval, and counts its repetitions.

    After a hundred different subjects of a code in an interval, all others count as one: `other`.
    """

    def __init__(self, every: timedelta) -> None:
        self._every = every
        # By subject, for each code: so alerts that outsiders cause do not crowd out other codes.
        self._sent: dict[AlertCode, dict[str, _Sent]] = {code: {} for code in AlertCode}

    def limit(self, alert: Alert) -> Alert | None:
        """Return the alert to send; None if it is a repetition, which is only counted."""
        about, of_code = alert.about, self._sent[alert.code]
        if about not in of_code and len(of_code) >= _MAX_SUBJECTS:
            of_code = {each: sent for each, sent in of_code.items() if self._is_recent(sent, alert)}
            self._sent[alert.code] = of_code
            if len(of_code) >= _MAX_SUBJECTS:
                about = _OTHER
        before = of_code.get(about)
        if before is not None and self._is_recent(before, alert):
            before.unsent += 1
            return None
        of_code[about] = _Sent(alert.at)
        return replace(alert, more=before.unsent) if before else alert

    def _is_recent(self, sent: _Sent, alert: Alert) -> bool:
        # The absolute difference, so that a clock that was set back does not suppress alerts.
        return abs(alert.at - sent.at) < self._every
