"""Who wants to hear of which task, and where."""

from pushkit.subscriptions.model import EVERYTHING, Filter, Profile, Subscription, SubscriptionKey
from pushkit.subscriptions.owners import OWNERS_MIGRATION, Owner, OwnerStore
from pushkit.subscriptions.store import MIGRATION, SubscriptionStore

__all__ = [
    "EVERYTHING",
    "MIGRATION",
    "OWNERS_MIGRATION",
    "Filter",
    "Owner",
    "OwnerStore",
    "Profile",
    "Subscription",
    "SubscriptionKey",
    "SubscriptionStore",
]
