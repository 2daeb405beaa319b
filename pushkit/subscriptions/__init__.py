"""Who wants to hear of which task, and where."""

from pushkit.subscriptions.inspection import SubscriptionFilter, SubscriptionInspection
from pushkit.subscriptions.model import (
    EVERYTHING,
    Current,
    DisabledBy,
    Filter,
    Profile,
    Recipient,
    Subscription,
    SubscriptionKey,
    SubscriptionState,
)
from pushkit.subscriptions.owners import OWNERS_MIGRATION, QUOTAS_MIGRATION, Owner, OwnerStore
from pushkit.subscriptions.secrets import (
    Secrets,
    StoredSubscription,
    open_subscription,
    seal_secrets,
)
from pushkit.subscriptions.store import MIGRATION, REVISION_MIGRATION, SubscriptionStore

__all__ = [
    "EVERYTHING",
    "MIGRATION",
    "OWNERS_MIGRATION",
    "QUOTAS_MIGRATION",
    "REVISION_MIGRATION",
    "Current",
    "DisabledBy",
    "Filter",
    "Owner",
    "OwnerStore",
    "Profile",
    "Recipient",
    "Secrets",
    "StoredSubscription",
    "Subscription",
    "SubscriptionFilter",
    "SubscriptionInspection",
    "SubscriptionKey",
    "SubscriptionState",
    "SubscriptionStore",
    "open_subscription",
    "seal_secrets",
]
