"""What `PushSender.notify` came to, recipient by recipient."""

from __future__ import annotations

from datetime import datetime

from pushkit.record import field, record


@record(frozen=True, slots=True, kw_only=True)
class NotifiedDelivery:
    """A delivery that an update became.

    Attributes:
        id: The delivery id.
        owner: Whose subscription it is.
        config_id: The config id of that subscription.
        subscription_id: That subscription.
    """

    id: str
    owner: str
    config_id: str
    subscription_id: str


@record(frozen=True, slots=True, kw_only=True)
class RefusedRecipient:
    """A subscription for which an update was not stored.

    Attributes:
        owner: Whose subscription it is.
        config_id: Its config id.
        subscription_id: The subscription.
        origin: Its destination.
        code: Why, for programs: the `code` of an error, for example `backlog_full`.
        message: Why, for people.
    """

    owner: str
    config_id: str
    subscription_id: str
    origin: str
    code: str
    message: str


@record(frozen=True, slots=True, kw_only=True)
class NotifyResult:
    """What became of an update.

    Attributes:
        deliveries: What was stored, one per subscription, by the subscription's id; after a
            repetition with an idempotency key, what was stored the first time.
        refused: The subscriptions that want it, but for which it was not stored.
        unwanted: How many subscriptions to the task do not want it: their filters leave it out.
        at: When, by the database's clock.
    """

    deliveries: tuple[NotifiedDelivery, ...] = ()
    refused: tuple[RefusedRecipient, ...] = ()
    unwanted: int = 0
    at: datetime = field(compare=False)

    @property
    def ids(self) -> list[str]:
        """The ids of the deliveries."""
        return [delivery.id for delivery in self.deliveries]

    @property
    def for_nobody(self) -> bool:
        """Whether there was no recipient: no subscription, or none that wants it."""
        return not self.deliveries and not self.refused
