"""The receiving half of A2A push notifications: verify, refuse replays, call back once."""

from pushkit.a2a import TaskState, UpdateKind
from receiver.inbox import InboxFilter, InboxRetention, InboxStatus, Notification
from receiver.limits import RateLimit
from receiver.pipeline import Limits, Verdict
from receiver.receiver import Expectation, Receiver
from receiver.trust import SenderProfile, TaskPolicy, TrustedSender

__all__ = [
    "Expectation",
    "InboxFilter",
    "InboxRetention",
    "InboxStatus",
    "Limits",
    "Notification",
    "RateLimit",
    "Receiver",
    "SenderProfile",
    "TaskPolicy",
    "TaskState",
    "TrustedSender",
    "UpdateKind",
    "Verdict",
]
