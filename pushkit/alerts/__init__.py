"""Alerts: what somebody should look at, sent somewhere, and not a thousand times."""

from pushkit.alerts.alerts import AlertOptions, Alerts
from pushkit.alerts.rule import Alert, AlertBound, AlertCode, alert_of
from pushkit.alerts.sinks import AlertCommand, AlertLog, AlertSink

__all__ = [
    "Alert",
    "AlertBound",
    "AlertCode",
    "AlertCommand",
    "AlertLog",
    "AlertOptions",
    "AlertSink",
    "Alerts",
    "alert_of",
]
