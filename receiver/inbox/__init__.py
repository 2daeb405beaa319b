"""The inbox: what was accepted, and what became of it."""

from receiver.inbox.capacity import BacklogFullError, Capacity, InboxFullError
from receiver.inbox.figures import (
    CallbackTrouble,
    InboxFigures,
    callback_troubles,
    inbox_figures,
)
from receiver.inbox.inspection import (
    Backlog,
    InboxFilter,
    InboxStats,
    Inspection,
    NotificationReport,
    NotificationSummary,
    SenderStats,
)
from receiver.inbox.model import (
    CallbackState,
    ClaimedNotification,
    InboxStatus,
    Lease,
    NewNotification,
    Notification,
    StoredNotification,
)
from receiver.inbox.retention import InboxRetention, Purge
from receiver.inbox.schema import (
    CALLBACKS_MIGRATION,
    FAIRNESS_MIGRATION,
    MIGRATION,
    TRACES_MIGRATION,
)
from receiver.inbox.store import Inbox, Sequences, StoredIds, task_lock

__all__ = [
    "CALLBACKS_MIGRATION",
    "FAIRNESS_MIGRATION",
    "MIGRATION",
    "TRACES_MIGRATION",
    "Backlog",
    "BacklogFullError",
    "CallbackState",
    "CallbackTrouble",
    "Capacity",
    "ClaimedNotification",
    "Inbox",
    "InboxFigures",
    "InboxFilter",
    "InboxFullError",
    "InboxRetention",
    "InboxStats",
    "InboxStatus",
    "Inspection",
    "Lease",
    "NewNotification",
    "Notification",
    "NotificationReport",
    "NotificationSummary",
    "Purge",
    "SenderStats",
    "Sequences",
    "StoredIds",
    "StoredNotification",
    "callback_troubles",
    "inbox_figures",
    "task_lock",
]
