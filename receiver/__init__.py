"""The receiving half of A2A push notifications: verify, refuse replays, call back once."""

from pushkit.a2a import TaskState, UpdateKind
from pushkit.errors import InboundError
from pushkit.signing.scheme import Scheme
from pushkit.webhook import Headers, WebhookRequest
from receiver.expecting import Expectation
from receiver.inbox.inspection import InboxFilter
from receiver.inbox.model import InboxStatus, Notification
from receiver.inbox.retention import InboxRetention
from receiver.limits import Limits, RateLimit
from receiver.receiver import Receiver
from receiver.refusals import Verdict
from receiver.selection import TrustSnapshot
from receiver.trust import SenderProfile, TaskPolicy, TrustedSender
from receiver.trusted_keys import fetch_trust, load_trust
from receiver.verification import VerifiedNotification, verify_notification

__all__ = [
    "Expectation",
    "Headers",
    "InboundError",
    "InboxFilter",
    "InboxRetention",
    "InboxStatus",
    "Limits",
    "Notification",
    "RateLimit",
    "Receiver",
    "Scheme",
    "SenderProfile",
    "TaskPolicy",
    "TaskState",
    "TrustSnapshot",
    "TrustedSender",
    "UpdateKind",
    "Verdict",
    "VerifiedNotification",
    "WebhookRequest",
    "fetch_trust",
    "load_trust",
    "verify_notification",
]
