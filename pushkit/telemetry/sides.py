"""The metrics of senders and receivers, in two tables, and how events count them.

`docs/reference/metrics.md` is generated from the tables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final

from pushkit.events import (
    AttemptMade,
    BreakerClosed,
    BreakerOpened,
    CalledBack,
    Delivered,
    DeliveryDead,
    Enqueued,
    Event,
    GenerationGap,
    LocalFault,
    NotificationAccepted,
    NotificationDead,
    NotificationRefused,
    NotificationRepeated,
    PushConfigRefused,
    PushConfigUnsent,
    RecipientRefused,
    SigningKeyChanged,
    SubscriptionChanged,
    SubscriptionDisabled,
)
from pushkit.keys.ring import KeyRing
from pushkit.telemetry.metrics import Bounded, Gauges, Metric, Metrics, MetricType
from pushkit.version import __version__

_NOBODY: Final = "nobody"  # the sender of a request that proved no sender
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


class SenderMetrics(Metrics):
    """The metrics of a sender."""

    def __init__(
        self,
        *,
        read: Callable[[], Awaitable[Gauges]],  # reads the outbox and the key file
        slots: Callable[[], tuple[int, int]],  # returns how many are in use, and how many exist
    ) -> None:
        super().__init__("pushkit", SENDER_METRICS, read=read, slots=slots)
        self._origin = Bounded()
        self._status = Bounded()

    def _code(self, error: str) -> str:
        # Webhooks choose these codes, and must not crowd out the others.
        return self._status(error) if error.startswith("status_") else error

    def on_event(self, event: Event) -> None:
        """Count an event."""
        match event:
            case Enqueued():
                self.count("pushkit_enqueued")
            case RecipientRefused(error=error):
                self.count("pushkit_recipients_refused", self._code(error))
            case PushConfigRefused(code=code) | PushConfigUnsent(code=code):
                what = "refused" if isinstance(event, PushConfigRefused) else "unsent"
                self.count(f"pushkit_push_configs_{what}", code)
            case AttemptMade(origin=origin, error=error, took=took):
                code = self._code(error or "ok")
                self.count("pushkit_attempts", self._origin(origin), code)
                self.observe("pushkit_attempt_seconds", took.total_seconds())
            case Delivered(waited=waited):
                seconds = max(waited.total_seconds(), 0.0)
                self.observe("pushkit_delivery_latency_seconds", seconds)
            case DeliveryDead(error=error):
                self.count("pushkit_dead_letters", self._code(error or _NOBODY))
            case LocalFault(error=error):
                self.count("pushkit_local_faults", self._code(error or _NOBODY))
            case BreakerOpened(origin=origin) | BreakerClosed(origin=origin):
                state = "open" if isinstance(event, BreakerOpened) else "closed"
                self.count("pushkit_breaker_changes", self._origin(origin), state)
            case SubscriptionDisabled(error=reason):
                self.count("pushkit_subscriptions_disabled", reason)
            case SubscriptionChanged(change=change):
                self.count("pushkit_subscription_changes", change.value)
            case SigningKeyChanged(algorithm=algorithm):
                self.count("pushkit_signing_key_changes", algorithm)
            case _:
                pass


class ReceiverMetrics(Metrics):
    """The metrics of a receiver."""

    def __init__(
        self,
        *,
        read: Callable[[], Awaitable[Gauges]],  # reads the inbox, and which keys are missing
        slots: Callable[[], tuple[int, int]],  # returns how many are in use, and how many exist
        hanging: Callable[[], int],  # returns how many callbacks run on after their time-out
    ) -> None:
        super().__init__("receiver", RECEIVER_METRICS, read=read, slots=slots)
        self._hanging = hanging
        self._sender = Bounded()
        self._callback = Bounded()
        self._error = Bounded()

    def _tick(self) -> None:
        super()._tick()
        self.set("receiver_callbacks_hanging", self._hanging())

    def on_event(self, event: Event) -> None:
        """Count an event."""
        match event:
            case NotificationAccepted(sender=sender):
                self.count("receiver_notifications", self._name(sender), "accepted")
            case NotificationRepeated(sender=sender):
                self.count("receiver_notifications", self._name(sender), "duplicate")
            case NotificationRefused(sender=sender, code=code, steps=steps):
                self.count("receiver_refusals", self._name(sender), code, *steps[-1:] or [""])
            case GenerationGap(sender=sender, restarts=restarts):
                kind = "restart" if restarts else "gap"
                self.count("receiver_generation_gaps", self._name(sender), kind)
            case CalledBack(callback=callback, error=error, took=took):
                name = self._callback(callback)
                self.observe("receiver_callback_seconds", took.total_seconds(), name)
                if error is not None:
                    self.count("receiver_callback_failures", name, self._error(error))
            case NotificationDead(sender=sender):
                self.count("receiver_dead_letters", self._name(sender))
            case _:
                pass

    def _name(self, sender: str | None) -> str:
        return self._sender(sender or _NOBODY)


def key_gauges(ring: KeyRing, now: datetime) -> Gauges:
    """Return the ages of the published keys, and the time until the next one signs."""
    ages: dict[tuple[str, ...], float] = {}
    planned: dict[tuple[str, ...], float] = {}
    for key in ring.published(now):
        name = key.algorithm.value
        age = key.age(now)
        if age is not None:
            ages[name, key.kid, ring.state(key.kid, now).value] = age.total_seconds()
        if key.activates_at is not None and key.activates_at > now:
            until = (key.activates_at - now).total_seconds()
            planned[name,] = min(planned.get((name,), until), until)
    return {
        "pushkit_signing_key_age_seconds": ages,
        "pushkit_signing_key_rotation_seconds": planned,
        "pushkit_build_info": {(__version__,): 1.0},
    }
