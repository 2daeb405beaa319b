"""What a client may know of the deliveries of its own config, and have sent again, as scripts."""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from pushkit.errors import InvalidPushConfigError
from pushkit.outbox import changes
from pushkit.outbox import store as outbox
from pushkit.outbox.states import IS_IN_FLIGHT, CancelledBy, DeliveryState
from pushkit.record import record
from pushkit.storage.database import Database
from pushkit.storage.script import EPOCH, Script, Statement, count, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, Subscription, SubscriptionKey

_MOST_READ: Final = 10_000  # deliveries, by a call: clients call as often as they like
_MOST_AT_ONCE: Final = 200  # deliveries that are sent again in one transaction
_NOT_TAKEN_BACK: Final = (  # but for those that were cancelled with a subscription
    f"COALESCE(cancelled_by, '{CancelledBy.DISABLED}') = '{CancelledBy.DISABLED}'"
)


@record(frozen=True, slots=True, kw_only=True)
class DeliveryProgress:
    """How far the deliveries of one config are."""

    subscription: Subscription
    waiting: int  # how many are pending or in flight; 10,000 at most
    # Of the newest 10,000, as far as they are kept: the highest `seq` that was delivered (0 if
    # none was), how many were given up, and code and status of the newest failure not made good.
    delivered_seq: int
    dead: int
    last_error: str | None = None
    last_status: int | None = None


def progress(key: SubscriptionKey) -> Script[DeliveryProgress | None]:
    """Return how far the deliveries of a config are; None if there is no such config.

    One that was withdrawn as its task ended counts as long as its deliveries are kept.
    """
    subscription = yield from subscriptions.newest(key)
    if subscription is None:
        return None
    newest = "pushkit_deliveries WHERE subscription_id = $1 AND seq > $2"
    of = (subscription.id, subscription.last_seq - _MOST_READ)
    delivered = yield Statement(
        f"SELECT seq FROM {newest} AND state = 'delivered' ORDER BY seq DESC LIMIT 1", of
    )
    failed = yield Statement(
        f"SELECT last_error, last_status FROM {newest} AND last_error IS NOT NULL"
        f" AND last_error <> 'superseded' AND state <> 'delivered' AND {_NOT_TAKEN_BACK}"
        " ORDER BY seq DESC LIMIT 1",
        of,
    )
    return DeliveryProgress(
        subscription=subscription,
        delivered_seq=delivered[0]["seq"] if delivered else 0,
        waiting=(yield from outbox.backlog(subscription.id, _MOST_READ)),
        dead=(yield from count(f"{newest} AND state = 'dead'", *of)),
        last_error=failed[0]["last_error"] if failed else None,
        last_status=failed[0]["last_status"] if failed else None,
    )


class WantedDeliveries(NamedTuple):
    """Which deliveries of a config a client asks for; None is any."""

    from_seq: int = 1
    to_seq: int | None = None  # the last one
    since: datetime | None = None  # when they were notified: then, or later
    until: datetime | None = None  # before then


EVERY_DELIVERY: Final = WantedDeliveries()


class Recovered(NamedTuple):
    """Deliveries of a config that are sent again."""

    seqs: tuple[int, ...]
    next_seq: int | None  # where to ask on; None if that was all


def recover(
    database: Database, key: SubscriptionKey, wanted: WantedDeliveries, *, most_in_a_day: int
) -> Script[Recovered | None]:
    """Send deliveries of a config again, as an operator's resend; None without a config.

    These are delivered ones, dead letters, what was cancelled as the config was disabled, and what
    is in flight: it may have been answered, and be lost since.

    Raises:
        InvalidPushConfigError: The config is disabled, or its owner has used up its day.
    """
    now = yield from database.now()
    # Before the queue: whoever holds that waits for nothing else.
    rows = yield Statement(
        "INSERT INTO pushkit_recovered (owner, day, number) VALUES ($1, $2, 0)"
        " ON CONFLICT (owner) DO UPDATE SET day = excluded.day, number = CASE"
        " WHEN pushkit_recovered.day = excluded.day THEN pushkit_recovered.number ELSE 0 END"
        " RETURNING number",
        (key.owner, (now - EPOCH).days),
    )
    subscription = yield from subscriptions.newest(key)
    queues = yield from OUTBOX.lock([] if subscription is None else [subscription.id])
    if subscription is None or subscription.id not in queues:
        return None
    if not subscription.active:
        raise InvalidPushConfigError("the config is disabled: enable it, and ask again")
    limit = min(_MOST_AT_ONCE, most_in_a_day - rows[0]["number"])
    if limit <= 0:
        raise InvalidPushConfigError(
            f"{rows[0]['number']} notifications were sent again today (UTC), expected at most"
            f" {most_in_a_day}: ask again tomorrow"
        )
    last = max(min(wanted.to_seq or subscription.last_seq, subscription.last_seq), 0)
    first = min(max(wanted.from_seq, 1), last + 1)
    upto = min(last, first + _MOST_READ - 1)
    found = yield Statement(
        "SELECT id, seq, state FROM pushkit_deliveries WHERE subscription_id = $1"
        " AND seq BETWEEN $2 AND $3 AND notified_at >= $4 AND notified_at < $5"
        f" AND (state <> 'pending' OR {IS_IN_FLIGHT}) AND {_NOT_TAKEN_BACK}"
        f" ORDER BY seq LIMIT {limit + 1}",
        (
            subscription.id,
            *(first, upto),
            to_micros(wanted.since) if wanted.since else 0,
            to_micros(wanted.until) if wanted.until else 2**62,
        ),
    )
    chosen, queue = found[:limit], queues[subscription.id]
    ids = [row["id"] for row in chosen]
    finished = (DeliveryState.DELIVERED, DeliveryState.DEAD, DeliveryState.CANCELLED)
    yield from changes.send_once_more([row["id"] for row in chosen if row["state"] == "pending"])
    yield from changes.redrive(queue, ids, states=finished, now=now)
    yield Statement(
        "UPDATE pushkit_recovered SET number = number + $2 WHERE owner = $1", (key.owner, len(ids))
    )
    yield from database.wake()
    next_seq = found[limit]["seq"] if len(found) > limit else upto + 1 if upto < last else None
    return Recovered(tuple(row["seq"] for row in chosen), next_seq)
