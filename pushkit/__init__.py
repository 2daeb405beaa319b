"""pushkit: signed, durable A2A push notifications.

This package is the sending half, for agent servers; the package `receiver` of the same distribution
is the receiving half. A name is imported when it is first used, so that unused ones cost nothing.
"""

from typing import TYPE_CHECKING

from pushkit.lazy import names_on_demand
from pushkit.version import __version__ as __version__

if TYPE_CHECKING:
    from pushkit.a2a import (  # noqa: I001 - an import per name would take three times the lines
        Artifact as Artifact,
        ArtifactUpdate as ArtifactUpdate,
        Authentication as Authentication,
        DataPart as DataPart,
        Message as Message,
        MessageUpdate as MessageUpdate,
        PushConfig as PushConfig,
        RawPart as RawPart,
        Role as Role,
        StatusUpdate as StatusUpdate,
        Task as Task,
        TaskSnapshot as TaskSnapshot,
        TaskState as TaskState,
        TaskStatus as TaskStatus,
        TaskUpdate as TaskUpdate,
        TextPart as TextPart,
        UpdateKind as UpdateKind,
        UrlPart as UrlPart,
        WireVersion as WireVersion,
        decode_update as decode_update,
        encode_update as encode_update,
    )
    from pushkit.alerts import AlertOptions as AlertOptions
    from pushkit.delivery.answers import BreakerPolicy as BreakerPolicy
    from pushkit.delivery.reporting import (
        NotifiedDelivery as NotifiedDelivery,
        NotifyResult as NotifyResult,
        RefusedRecipient as RefusedRecipient,
    )
    from pushkit.delivery.options import SenderOptions as SenderOptions
    from pushkit.delivery.sender import PushSender as PushSender
    from pushkit.delivery.signatures import Signing as Signing
    from pushkit.errors import PushkitError as PushkitError
    from pushkit.events import Event as Event
    from pushkit.keys.files import load_key_ring as load_key_ring, save_key_ring as save_key_ring
    from pushkit.keys.jwk import Algorithm as Algorithm
    from pushkit.keys.jwk import RemoteKey as RemoteKey, RemoteSigner as RemoteSigner
    from pushkit.keys.ring import KeyRing as KeyRing
    from pushkit.net.authorization import (
        DestinationCredentials as DestinationCredentials,
        agentvault_credentials as agentvault_credentials,
    )
    from pushkit.net.destination import DestinationRules as DestinationRules
    from pushkit.net.authorization import OAuthClient as OAuthClient
    from pushkit.net.tls import ClientCertificate as ClientCertificate
    from pushkit.outbox.inspection import DeliveryFilter as DeliveryFilter
    from pushkit.outbox.inspection import SubscriptionFilter as SubscriptionFilter
    from pushkit.outbox.retention import Retention as Retention
    from pushkit.outbox.states import DeliveryState as DeliveryState
    from pushkit.secrets.sealing import SecretKeys as SecretKeys
    from pushkit.signing.scheme import Scheme as Scheme
    from pushkit.subscriptions.model import (
        Filter as Filter,
        Profile as Profile,
        Subscription as Subscription,
        SubscriptionState as SubscriptionState,
    )
    from pushkit.scheduling.retry import RetryPolicy as RetryPolicy, wait_schedule as wait_schedule
else:
    __all__, __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "pushkit.a2a": (
                "Artifact ArtifactUpdate Authentication DataPart Message MessageUpdate PushConfig"
                " RawPart Role StatusUpdate Task TaskSnapshot TaskState TaskStatus TaskUpdate"
                " TextPart UpdateKind UrlPart WireVersion decode_update encode_update"
            ),
            "pushkit.alerts": "AlertOptions",
            "pushkit.delivery.answers": "BreakerPolicy",
            "pushkit.delivery.reporting": "NotifiedDelivery NotifyResult RefusedRecipient",
            "pushkit.delivery.options": "SenderOptions",
            "pushkit.delivery.sender": "PushSender",
            "pushkit.delivery.signatures": "Signing",
            "pushkit.errors": "PushkitError",
            "pushkit.events": "Event",
            "pushkit.keys.files": "load_key_ring save_key_ring",
            "pushkit.keys.jwk": "Algorithm RemoteKey RemoteSigner",
            "pushkit.keys.ring": "KeyRing",
            "pushkit.net.authorization": (
                "DestinationCredentials OAuthClient agentvault_credentials"
            ),
            "pushkit.net.destination": "DestinationRules",
            "pushkit.net.tls": "ClientCertificate",
            "pushkit.outbox.inspection": "DeliveryFilter SubscriptionFilter",
            "pushkit.outbox.retention": "Retention",
            "pushkit.outbox.states": "DeliveryState",
            "pushkit.secrets.sealing": "SecretKeys",
            "pushkit.signing.scheme": "Scheme",
            "pushkit.subscriptions.model": "Filter Profile Subscription SubscriptionState",
            "pushkit.version": "__version__",
            "pushkit.scheduling.retry": "RetryPolicy wait_schedule",
        },
    )
