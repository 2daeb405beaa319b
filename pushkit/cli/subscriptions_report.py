"""How `pushkit subscriptions` tells people what it found."""

from __future__ import annotations

from pushkit.subscriptions import Subscription
from pushkit.terminal.output import moment

__all__ = ["subscription_row"]


def subscription_row(subscription: Subscription) -> tuple[str, ...]:
    """Return a subscription as a row of `pushkit subscriptions list`."""
    key = subscription.key
    return (
        subscription.id,
        subscription.state.value,
        key.task_id,
        key.owner or "-",
        key.config_id,
        subscription.version.value,
        subscription.origin,
        str(subscription.last_seq),
        moment(subscription.failing_since),
    )
