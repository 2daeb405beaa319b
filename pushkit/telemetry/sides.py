"""The metrics of senders and receivers, counted from events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from pushkit.events.model import Event
from pushkit.events.receiver import (
    CalledBack,
    GenerationGap,
    NotificationAccepted,
    NotificationDead,
    NotificationRefused,
    NotificationRepeated,
)
from pushkit.events.sender import (
    AttemptMade,
    BreakerClosed,
    BreakerOpened,
    Delivered,
    DeliveryDead,
    Enqueued,
    LocalFault,
    PushConfigRefused,
    PushConfigUnsent,
    RecipientRefused,
    SigningKeyChanged,
    SubscriptionChanged,
    SubscriptionDisabled,
)
from pushkit.keys.ring import KeyRing
from pushkit.telemetry.catalogue import RECEIVER_METRICS, SENDER_METRICS
from pushkit.telemetry.metrics import Bounded, Gauges, Metrics
from pushkit.version import __version__

_NOBODY = "nobody"  # the sender of a request that proved no sender


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
