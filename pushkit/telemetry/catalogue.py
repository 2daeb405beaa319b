"""All metrics, in two tables, from which `docs/reference/metrics.md` is generated."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class MetricType(StrEnum):
    """How a metric is counted."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"
    """A value of this process; a scrape of several processes gets the sum."""
    READING = "reading"
    """A gauge that is read from the database at a scrape, and is the same for every process."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    name: str  # with its unit, without the suffix that Prometheus appends (`_total`, `_bucket`)
    type: MetricType
    help: str  # for `/metrics` and the reference
    labels: tuple[str, ...] = ()  # each has few values
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
# With buckets up to two days, since retries take minutes and hours.
_LONG: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 43200, 172800)
_LAG: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_C, _H, _G, _R = MetricType.COUNTER, MetricType.HISTOGRAM, MetricType.GAUGE, MetricType.READING

SENDER_METRICS: Final = (
    Metric("pushkit_enqueued", _C, "Deliveries that notify() stored"),
    Metric("pushkit_recipients_refused", _C, "Recipients that notify() refused", ("code",)),
    Metric(
        "pushkit_push_configs_refused", _C, "Clients' push configs that were refused", ("code",)
    ),
    Metric(
        "pushkit_push_configs_unsent",
        _C,
        "Push configs registered at an agent that is not wired to send",
        ("code",),
    ),
    Metric("pushkit_attempts", _C, "Attempts by result; ok is 2xx", ("origin", "code")),
    Metric("pushkit_attempt_seconds", _H, "How long attempts took", buckets=_QUICK),
    Metric(
        "pushkit_delivery_latency_seconds",
        _H,
        "From notify() to the webhook's 2xx, retries included",
        buckets=_LONG,
    ),
    Metric("pushkit_dead_letters", _C, "Deliveries that were given up", ("code",)),
    Metric("pushkit_local_faults", _C, "Failures on this side before an attempt", ("code",)),
    Metric("pushkit_breaker_changes", _C, "Breakers that opened and closed", ("origin", "state")),
    Metric(
        "pushkit_subscriptions_disabled", _C, "Subscriptions that failures disabled", ("reason",)
    ),
    Metric("pushkit_subscription_changes", _C, "Changes of subscriptions", ("change",)),
    Metric("pushkit_signing_key_changes", _C, "Keys that began to sign", ("algorithm",)),
    Metric("pushkit_slots", _G, "Slots for attempts", ("state",)),
    Metric("pushkit_event_loop_lag_seconds", _H, "How late the event loop is", buckets=_LAG),
    Metric("pushkit_deliveries", _R, "Deliveries in the outbox", ("state",)),
    Metric(
        "pushkit_oldest_due_seconds",
        _R,
        "How long the oldest delivery that is due has waited; 0 if none is due",
    ),
    Metric("pushkit_breakers", _R, "Destinations that wait after failures", ("state",)),
    Metric("pushkit_subscriptions", _R, "Subscriptions", ("state",)),
    Metric(
        "pushkit_signing_key_age_seconds",
        _R,
        "Seconds since a key was published; absent if unknown",
        ("algorithm", "kid", "state"),
    ),
    Metric(
        "pushkit_signing_key_rotation_seconds",
        _R,
        "Seconds until the next key of an algorithm signs; absent if none is planned",
        ("algorithm",),
    ),
    Metric("pushkit_database_up", _R, "Whether the outbox can be read"),
    Metric("pushkit_build_info", _R, "1, with the version", ("version",)),
)

RECEIVER_METRICS: Final = (
    Metric(
        "receiver_notifications",
        _C,
        "Verified notifications: accepted, or a duplicate of an accepted one",
        ("sender", "result"),
    ),
    Metric(
        "receiver_refusals",
        _C,
        "Refused requests; id_conflict: the id was accepted with another body",
        ("sender", "code", "step"),
    ),
    Metric(
        "receiver_generation_gaps",
        _C,
        "Generations of tasks that do not follow on the one before: gap, or restart",
        ("sender", "kind"),
    ),
    Metric("receiver_callback_seconds", _H, "How long callbacks took", ("callback",), _QUICK),
    Metric("receiver_callback_failures", _C, "Callbacks that failed", ("callback", "error")),
    Metric("receiver_dead_letters", _C, "Notifications that were given up", ("sender",)),
    Metric("receiver_slots", _G, "Slots for notifications in progress", ("state",)),
    Metric("receiver_callbacks_hanging", _G, "Callbacks that run on after their time-out"),
    Metric("receiver_event_loop_lag_seconds", _H, "How late the event loop is", buckets=_LAG),
    Metric("receiver_inbox", _R, "Notifications in the inbox", ("status",)),
    Metric(
        "receiver_oldest_unfinished_seconds",
        _R,
        "How long the oldest unfinished notification has waited; 0 if there is none",
    ),
    Metric("receiver_mailbox", _R, "Notifications in a mailbox", ("mailbox", "status")),
    Metric(
        "receiver_mailbox_oldest_seconds",
        _R,
        "How long the oldest notification of a mailbox has waited; 0 if there is none",
        ("mailbox",),
    ),
    Metric("receiver_keys_missing", _R, "1 if a sender's keys are unavailable", ("sender",)),
    Metric("receiver_database_up", _R, "Whether the inbox can be read"),
    Metric("receiver_build_info", _R, "1, with the version", ("version",)),
)
