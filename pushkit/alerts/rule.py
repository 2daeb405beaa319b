"""Which events are alerts, and how often the same one is sent: pure."""

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

_MOST: Final = 100
_OTHER: Final = "other"


class AlertCode(StrEnum):
    """What an alert is about."""

    DEAD_LETTER = "dead_letter"
    SUBSCRIPTION_DISABLED = "subscription_disabled"
    LOCAL_FAULT = "local_fault"
    KEY_NEAR_END = "key_near_end"
    HEALTH_FAULT = "health_fault"


@record(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something that somebody should look at."""

    code: AlertCode  # what it is about
    at: datetime  # when it was found
    about: str  # what makes two of them the same: an origin, a sender, a key, a part
    says: str  # a sentence
    # What the event says.
    facts: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    more: int = 0  # how many like it were found since the last one, and not sent

    def document(self) -> dict[str, object]:
        """Return it as JSON has it: what a command reads and a webhook gets."""
        members = {"code": self.code.value, "at": self.at.isoformat(), "about": self.about}
        return {**members, "says": self.says, "more": self.more, "facts": dict(self.facts)}


def alert_of(event: Event) -> Alert | None:
    """Return what an event is as an alert; None for what nobody need look at."""
    match event:
        case DeliveryDead(error="gone"):
            return None  # its subscription is disabled, which is told besides
        case DeliveryDead(origin=about, error=error) if event.owner != ALERTS_OWNER:
            code = AlertCode.DEAD_LETTER
            says = f"a delivery of task {printable(event.task_id)} to {about} was given up: {error}"
        case SubscriptionDisabled(origin=about, error=error) if event.owner != ALERTS_OWNER:
            code = AlertCode.SUBSCRIPTION_DISABLED
            says = f"a subscription to task {printable(event.task_id)} at {about} was disabled:"
            says += f" {error}"
        case LocalFault(error=error):
            code, about = AlertCode.LOCAL_FAULT, str(error)
            says = f"deliveries wait because of something on this side: {error}"
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
    """Lets the same alert through once in an interval, and counts the others.

    Of more than a hundred different ones of a code in an interval the rest is one: `other`.
    """

    def __init__(self, every: timedelta) -> None:
        self._every = every
        # By what it is about, for each code: one that others cause crowds out no other.
        self._sent: dict[AlertCode, dict[str, _Sent]] = {code: {} for code in AlertCode}

    def admit(self, alert: Alert) -> Alert | None:
        """Return an alert as it is to be sent; None if it is only counted."""
        about, of_code = alert.about, self._sent[alert.code]
        if about not in of_code and len(of_code) >= _MOST:
            of_code = {each: sent for each, sent in of_code.items() if self._is_lately(sent, alert)}
            self._sent[alert.code] = of_code
            if len(of_code) >= _MOST:
                about = _OTHER
        before = of_code.get(about)
        if before is not None and self._is_lately(before, alert):
            before.unsent += 1
            return None
        of_code[about] = _Sent(alert.at)
        return replace(alert, more=before.unsent) if before else alert

    def _is_lately(self, sent: _Sent, alert: Alert) -> bool:
        # Both ways: a clock that was set back must keep nothing unsaid.
        return abs(alert.at - sent.at) < self._every
