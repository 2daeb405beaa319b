"""What a client may know of the deliveries of its own config, as scripts."""

from __future__ import annotations

from typing import Final

from pushkit.outbox import store as outbox
from pushkit.outbox.states import CancelledBy
from pushkit.record import record
from pushkit.storage.script import Script, Statement, count
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import Subscription, SubscriptionKey

_MOST_COUNTED: Final = 10_000


@record(frozen=True, slots=True, kw_only=True)
class DeliveryProgress:
    """How far the deliveries of one config are."""

    subscription: Subscription
    delivered_seq: int  # the highest `seq` that was delivered, of those that are kept; 0 if none
    waiting: int  # how many are pending or in flight; 10,000 at most
    dead: int  # how many were given up, of those that are kept; 10,000 at most
    # The short code and the status of the newest failure that nothing has made good yet.
    last_error: str | None = None
    last_status: int | None = None


def progress(key: SubscriptionKey) -> Script[DeliveryProgress | None]:
    """Return how far the deliveries of a config are; None if there is no such config.

    One that was withdrawn as its task ended counts as long as its deliveries are kept.
    """
    subscription = yield from subscriptions.newest(key)
    if subscription is None:
        return None
    delivered = yield Statement(
        "SELECT seq FROM pushkit_deliveries WHERE subscription_id = $1 AND state = 'delivered'"
        " ORDER BY seq DESC LIMIT 1",
        (subscription.id,),
    )
    failed = yield Statement(
        "SELECT last_error, last_status FROM pushkit_deliveries WHERE subscription_id = $1"
        " AND last_error IS NOT NULL AND last_error <> 'superseded' AND state <> 'delivered'"
        f" AND COALESCE(cancelled_by, '{CancelledBy.DISABLED}') = '{CancelledBy.DISABLED}'"
        " ORDER BY seq DESC LIMIT 1",
        (subscription.id,),
    )
    dead = "pushkit_deliveries WHERE subscription_id = $1 AND state = 'dead'"
    return DeliveryProgress(
        subscription=subscription,
        delivered_seq=delivered[0]["seq"] if delivered else 0,
        waiting=(yield from outbox.backlog(subscription.id, _MOST_COUNTED)),
        dead=(yield from count(dead, subscription.id, limit=_MOST_COUNTED)),
        last_error=failed[0]["last_error"] if failed else None,
        last_status=failed[0]["last_status"] if failed else None,
    )
