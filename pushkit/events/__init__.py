"""What happens, told once: typed events of both sides, and who listens to them.

Metrics, logs, traces and `on_event` are listeners. Where nobody listens, no event is made:

    if self._events.wants(DEBUG):
        self._events.tell(Enqueued(...))
"""

from pushkit.events.health import HealthFault
from pushkit.events.listeners import Listener, Listeners
from pushkit.events.model import Event, EventKind
from pushkit.events.receiver import (
    CalledBack,
    NotificationAccepted,
    NotificationDead,
    NotificationRefused,
    NotificationRepeated,
    ReceiverEvent,
)
from pushkit.events.sender import (
    AttemptMade,
    BreakerClosed,
    BreakerOpened,
    Delivered,
    DeliveryDead,
    DeliveryEvent,
    Enqueued,
    KeyRingChange,
    KeyRingChanged,
    LocalFault,
    OutboxChange,
    OutboxChanged,
    RecipientRefused,
    SenderEvent,
    SigningKeyChanged,
    SigningKeyNearEnd,
    SubscriptionChange,
    SubscriptionChanged,
    SubscriptionDisabled,
)

__all__ = [
    "AttemptMade",
    "BreakerClosed",
    "BreakerOpened",
    "CalledBack",
    "Delivered",
    "DeliveryDead",
    "DeliveryEvent",
    "Enqueued",
    "Event",
    "EventKind",
    "HealthFault",
    "KeyRingChange",
    "KeyRingChanged",
    "Listener",
    "Listeners",
    "LocalFault",
    "NotificationAccepted",
    "NotificationDead",
    "NotificationRefused",
    "NotificationRepeated",
    "OutboxChange",
    "OutboxChanged",
    "ReceiverEvent",
    "RecipientRefused",
    "SenderEvent",
    "SigningKeyChanged",
    "SigningKeyNearEnd",
    "SubscriptionChange",
    "SubscriptionChanged",
    "SubscriptionDisabled",
]
