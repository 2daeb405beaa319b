"""Who wants which task's updates, and where."""

from pushkit.subscriptions.model import Profile, Subscription, SubscriptionKey
from pushkit.subscriptions.store import MIGRATION, SubscriptionStore

__all__ = ["MIGRATION", "Profile", "Subscription", "SubscriptionKey", "SubscriptionStore"]
