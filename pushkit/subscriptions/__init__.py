"""Who wants to hear of which task, and where."""

from pushkit.subscriptions.model import EVERYTHING, Filter, Profile, Subscription, SubscriptionKey
from pushkit.subscriptions.store import MIGRATION, SubscriptionStore

__all__ = [
    "EVERYTHING",
    "MIGRATION",
    "Filter",
    "Profile",
    "Subscription",
    "SubscriptionKey",
    "SubscriptionStore",
]
