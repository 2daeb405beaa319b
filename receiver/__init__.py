"""The receiving half of A2A push notifications: verify, refuse replays, call back once.

Each name is loaded on first use, so that importing the package stays cheap.
"""

from typing import TYPE_CHECKING

from pushkit.lazy import names_on_demand

if TYPE_CHECKING:
    from pushkit.a2a import TaskState as TaskState
    from pushkit.a2a import UpdateKind as UpdateKind
    from pushkit.errors import InboundError as InboundError
    from pushkit.signing.scheme import Scheme as Scheme
    from pushkit.webhook import Headers as Headers
    from pushkit.webhook import WebhookRequest as WebhookRequest
    from receiver.expectation import Expectation as Expectation
    from receiver.inbox.inspection import InboxFilter as InboxFilter
    from receiver.inbox.model import ArtifactNotification as ArtifactNotification
    from receiver.inbox.model import InboxStatus as InboxStatus
    from receiver.inbox.model import Notification as Notification
    from receiver.inbox.model import StatusNotification as StatusNotification
    from receiver.inbox.retention import InboxRetention as InboxRetention
    from receiver.limits import Limits as Limits
    from receiver.limits import RateLimit as RateLimit
    from receiver.mailbox.client import Mailbox as Mailbox
    from receiver.mailbox.client import MailboxRefusedError as MailboxRefusedError
    from receiver.mailbox.service import MailboxOptions as MailboxOptions
    from receiver.notification import VerifiedNotification as VerifiedNotification
    from receiver.receiver import Receiver as Receiver
    from receiver.request import Answer as Answer
    from receiver.senders import SenderProfile as SenderProfile
    from receiver.senders import TaskPolicy as TaskPolicy
    from receiver.senders import TrustedSender as TrustedSender
    from receiver.trust import TrustSnapshot as TrustSnapshot
    from receiver.trust import fetch_trust as fetch_trust
    from receiver.trust import load_trust as load_trust
    from receiver.verification import verify_notification as verify_notification
else:
    __all__, __getattr__, __dir__ = names_on_demand(
        __name__,
        {
            "pushkit.a2a": "TaskState UpdateKind",
            "pushkit.errors": "InboundError",
            "pushkit.signing.scheme": "Scheme",
            "pushkit.webhook": "Headers WebhookRequest",
            "receiver.expectation": "Expectation",
            "receiver.inbox.inspection": "InboxFilter",
            "receiver.inbox.model": (
                "ArtifactNotification InboxStatus Notification StatusNotification"
            ),
            "receiver.inbox.retention": "InboxRetention",
            "receiver.limits": "Limits RateLimit",
            "receiver.mailbox.client": "Mailbox MailboxRefusedError",
            "receiver.mailbox.service": "MailboxOptions",
            "receiver.notification": "VerifiedNotification",
            "receiver.receiver": "Receiver",
            "receiver.request": "Answer",
            "receiver.senders": "SenderProfile TaskPolicy TrustedSender",
            "receiver.trust": "TrustSnapshot fetch_trust load_trust",
            "receiver.verification": "verify_notification",
        },
    )
