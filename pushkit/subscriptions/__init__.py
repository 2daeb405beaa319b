"""Who wants to hear of which task, and where."""

from pushkit.subscriptions.inspection import SubscriptionFilter, SubscriptionInspection
from pushkit.subscriptions.model import (
    EVERYTHING,
    DisabledBy,
    Filter,
    Profile,
    Recipient,
    Subscription,
    SubscriptionKey,
    SubscriptionState,
)
from pushkit.subscriptions.owners import OWNERS_MIGRATION, QUOTAS_MIGRATION, Owner, OwnerStore
from pushkit.subscriptions.resealing import Resealed, Resealing
from pushkit.subscriptions.store import MIGRATION, SubscriptionStore
from pushkit.subscriptions.vault import Secrets, StoredSubscription, Vault, head_of

__all__ = [
    "EVERYTHING",
    "MIGRATION",
    "OWNERS_MIGRATION",
    "QUOTAS_MIGRATION",
    "DisabledBy",
    "Filter",
    "Owner",
    "OwnerStore",
    "Profile",
    "Recipient",
    "Resealed",
    "Resealing",
    "Secrets",
    "StoredSubscription",
    "Subscription",
    "SubscriptionFilter",
    "SubscriptionInspection",
    "SubscriptionKey",
    "SubscriptionState",
    "SubscriptionStore",
    "Vault",
    "head_of",
]
