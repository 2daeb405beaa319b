"""pushkit: signed, durable A2A push notifications.

The sending half, for agent servers; the receiving half is the package `receiver` of the same
distribution.

Names are loaded when they are asked for: what somebody does not use costs them nothing to import.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pushkit.version import __version__

if TYPE_CHECKING:
    from pushkit.a2a import (
        Artifact,
        ArtifactUpdate,
        Authentication,
        DataPart,
        Message,
        MessageUpdate,
        PushConfig,
        RawPart,
        Role,
        StatusUpdate,
        Task,
        TaskSnapshot,
        TaskState,
        TaskStatus,
        TaskUpdate,
        TextPart,
        UpdateKind,
        UrlPart,
        WireVersion,
        decode_update,
        encode_update,
    )
    from pushkit.delivery.breaker import BreakerPolicy
    from pushkit.delivery.events import EventKind, SenderEvent
    from pushkit.delivery.notify_result import NotifiedDelivery, NotifyResult, RefusedRecipient
    from pushkit.delivery.sender import PushSender, SenderOptions
    from pushkit.delivery.signatures import Signing
    from pushkit.errors import PushkitError
    from pushkit.keys.files import load_key_ring, save_key_ring
    from pushkit.keys.jwk import Algorithm
    from pushkit.keys.remote import RemoteKey, RemoteSigner
    from pushkit.keys.ring import KeyRing
    from pushkit.net.agentvault import agentvault_credentials
    from pushkit.net.authorization import DestinationCredentials
    from pushkit.net.destination import DestinationRules
    from pushkit.net.oauth import OAuthClient
    from pushkit.net.tls import ClientCertificate
    from pushkit.outbox import DeliveryFilter, DeliveryState, Retention
    from pushkit.secrets.sealing import SecretKeys
    from pushkit.signing.scheme import Scheme
    from pushkit.subscriptions import (
        Filter,
        Profile,
        Subscription,
        SubscriptionFilter,
        SubscriptionState,
    )
    from pushkit.work import RetryPolicy, wait_schedule

__all__ = [
    "Algorithm",
    "Artifact",
    "ArtifactUpdate",
    "Authentication",
    "BreakerPolicy",
    "ClientCertificate",
    "DataPart",
    "DeliveryFilter",
    "DeliveryState",
    "DestinationCredentials",
    "DestinationRules",
    "EventKind",
    "Filter",
    "KeyRing",
    "Message",
    "MessageUpdate",
    "NotifiedDelivery",
    "NotifyResult",
    "OAuthClient",
    "Profile",
    "PushConfig",
    "PushSender",
    "PushkitError",
    "RawPart",
    "RefusedRecipient",
    "RemoteKey",
    "RemoteSigner",
    "Retention",
    "RetryPolicy",
    "Role",
    "Scheme",
    "SecretKeys",
    "SenderEvent",
    "SenderOptions",
    "Signing",
    "StatusUpdate",
    "Subscription",
    "SubscriptionFilter",
    "SubscriptionState",
    "Task",
    "TaskSnapshot",
    "TaskState",
    "TaskStatus",
    "TaskUpdate",
    "TextPart",
    "UpdateKind",
    "UrlPart",
    "WireVersion",
    "__version__",
    "agentvault_credentials",
    "decode_update",
    "encode_update",
    "load_key_ring",
    "save_key_ring",
    "wait_schedule",
]

_HOMES = {
    "pushkit.a2a": (
        "Artifact ArtifactUpdate Authentication DataPart Message MessageUpdate PushConfig RawPart "
        "Role StatusUpdate Task TaskSnapshot TaskState TaskStatus TaskUpdate TextPart UpdateKind "
        "UrlPart WireVersion decode_update encode_update"
    ),
    "pushkit.delivery.breaker": "BreakerPolicy",
    "pushkit.delivery.events": "EventKind SenderEvent",
    "pushkit.delivery.notify_result": "NotifiedDelivery NotifyResult RefusedRecipient",
    "pushkit.delivery.sender": "PushSender SenderOptions",
    "pushkit.delivery.signatures": "Signing",
    "pushkit.errors": "PushkitError",
    "pushkit.keys.files": "load_key_ring save_key_ring",
    "pushkit.keys.jwk": "Algorithm",
    "pushkit.keys.remote": "RemoteKey RemoteSigner",
    "pushkit.keys.ring": "KeyRing",
    "pushkit.net.agentvault": "agentvault_credentials",
    "pushkit.net.authorization": "DestinationCredentials",
    "pushkit.net.destination": "DestinationRules",
    "pushkit.net.oauth": "OAuthClient",
    "pushkit.net.tls": "ClientCertificate",
    "pushkit.outbox": "DeliveryFilter DeliveryState Retention",
    "pushkit.secrets.sealing": "SecretKeys",
    "pushkit.signing.scheme": "Scheme",
    "pushkit.subscriptions": "Filter Profile Subscription SubscriptionFilter SubscriptionState",
    "pushkit.work": "RetryPolicy wait_schedule",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return __all__
