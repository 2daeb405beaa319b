"""Every metric, in two tables: what `docs/metrics.md`, the dashboard and the alerts go by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricType(StrEnum):
    """How a metric is counted."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"
    """Of this process; of several the sum."""
    READING = "reading"
    """A gauge that is read when it is asked for: the same whichever process is asked."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str  # its name, unit included; what Prometheus appends (`_total`, `_bucket`) is not
    type: MetricType  # how it is counted
    help: str  # what it is
    labels: tuple[str, ...] = ()  # its labels, each with few values
    buckets: tuple[float, ...] = ()  # of a histogram, in seconds

    @property
    def series(self) -> tuple[str, ...]:
        """The names that queries use."""
        if self.type is MetricType.COUNTER:
            return (f"{self.name}_total",)
        if self.type is MetricType.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))
        return (self.name,)


_QUICK: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
# Retries come after seconds, minutes and hours.
_LONG: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200, 172800)
_LAG: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_C, _H, _G, _R = MetricType.COUNTER, MetricType.HISTOGRAM, MetricType.GAUGE, MetricType.READING

SENDER_METRICS: Final = (
    Metric("pushkit_enqueued", _C, "Deliveries that notify() stored"),
    Metric("pushkit_recipients_refused", _C, "Recipients that notify() refused", ("code",)),
    Metric("pushkit_attempts", _C, "Attempts by what came of them; ok is 2xx", ("origin", "code")),
    Metric("pushkit_attempt_seconds", _H, "How long attempts took", buckets=_QUICK),
    Metric(
        "pushkit_delivery_latency_seconds",
        _H,
        "From notify() to the webhook's 2xx, retries included",
        buckets=_LONG,
    ),
    Metric("pushkit_dead_letters", _C, "Deliveries that were given up", ("code",)),
    Metric("pushkit_local_faults", _C, "What failed on this side before an attempt", ("code",)),
    Metric("pushkit_breaker_changes", _C, "Breakers that opened and closed", ("origin", "state")),
    Metric(
        "pushkit_subscriptions_disabled", _C, "Subscriptions that failures disabled", ("reason",)
    ),
    Metric("pushkit_subscription_changes", _C, "What was done with subscriptions", ("change",)),
    Metric("pushkit_signing_key_changes", _C, "Keys that began to sign here", ("algorithm",)),
    Metric("pushkit_slots", _G, "Places for attempts", ("state",)),
    Metric("pushkit_event_loop_lag_seconds", _H, "How late the event loop is", buckets=_LAG),
    Metric("pushkit_deliveries", _R, "Deliveries in the outbox", ("state",)),
    Metric(
        "pushkit_oldest_due_seconds",
        _R,
        "How long the oldest delivery waits that could go now; 0 if none does",
    ),
    Metric("pushkit_breakers", _R, "Destinations that wait after failures", ("state",)),
    Metric("pushkit_subscriptions", _R, "Subscriptions", ("state",)),
    Metric(
        "pushkit_signing_key_age_seconds",
        _R,
        "Since a key was published; absent if nobody says",
        ("algorithm", "kid", "state"),
    ),
    Metric(
        "pushkit_signing_key_rotation_seconds",
        _R,
        "Until the next key of an algorithm signs; absent if none is planned",
        ("algorithm",),
    ),
    Metric("pushkit_database_up", _R, "Whether the outbox can be read"),
    Metric("pushkit_build_info", _R, "1, with the version", ("version",)),
)

RECEIVER_METRICS: Final = (
    Metric(
        "receiver_notifications",
        _C,
        "Verified notifications: accepted, or a duplicate that came before",
        ("sender", "result"),
    ),
    Metric(
        "receiver_refusals",
        _C,
        "Requests that were refused; id_conflict is an id with another body",
        ("sender", "code"),
    ),
    Metric("receiver_callback_seconds", _H, "How long callbacks took", ("callback",), _QUICK),
    Metric("receiver_callback_failures", _C, "Callbacks that failed", ("callback", "error")),
    Metric("receiver_dead_letters", _C, "Notifications that were given up", ("sender",)),
    Metric("receiver_slots", _G, "Places for notifications in work", ("state",)),
    Metric("receiver_callbacks_hanging", _G, "Calls that are over their time and do not end"),
    Metric("receiver_event_loop_lag_seconds", _H, "How late the event loop is", buckets=_LAG),
    Metric("receiver_inbox", _R, "Notifications in the inbox", ("status",)),
    Metric(
        "receiver_oldest_unfinished_seconds",
        _R,
        "How long the oldest unfinished notification waits; 0 if none does",
    ),
    Metric("receiver_keys_missing", _R, "1 if a sender's keys cannot be had", ("sender",)),
    Metric("receiver_database_up", _R, "Whether the inbox can be read"),
    Metric("receiver_build_info", _R, "1, with the version", ("version",)),
)
