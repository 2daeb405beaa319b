"""Deliveries: what is still to be posted, and what became of it."""

from pushkit.outbox.attempts import (
    ATTEMPTS_MIGRATION,
    FOLDED_ATTEMPTS_MIGRATION,
    AttemptLog,
    LoggedAttempt,
    is_folded,
)
from pushkit.outbox.browsing import (
    DestinationStanding,
    Finished,
    OutboxFigures,
    attempts_of,
    browse_deliveries,
    browse_destinations,
    finished_since,
    outbox_figures,
)
from pushkit.outbox.cancelling import CANCELLING_MIGRATION, CancelledBy
from pushkit.outbox.dead_letters import DeadLetters, Standing
from pushkit.outbox.destinations import DestinationKey, DestinationStore, destination_of
from pushkit.outbox.heads import hold_back, mark_oldest
from pushkit.outbox.idempotency import (
    IDEMPOTENCY_MIGRATION,
    KEYS_MIGRATION,
    Enqueued,
    IdempotencyKey,
    TaskKey,
    find_enqueued,
)
from pushkit.outbox.inspection import (
    DeliveryFilter,
    DeliveryReport,
    DeliverySummary,
    Inspection,
    OriginStats,
    OutboxStats,
)
from pushkit.outbox.leases import Leases, Taken
from pushkit.outbox.model import (
    Claim,
    Delivery,
    Made,
    NewDelivery,
    Result,
    StatusMark,
    new_delivery_id,
)
from pushkit.outbox.retention import Purge, Retention
from pushkit.outbox.schema import (
    BODIES_MIGRATION,
    CLAIMS_MIGRATION,
    MIGRATION,
    TRACES_MIGRATION,
)
from pushkit.outbox.shares import owner_may_take, reserved_of
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.outbox.store import OutboxStore

__all__ = [
    "ATTEMPTS_MIGRATION",
    "BODIES_MIGRATION",
    "CANCELLING_MIGRATION",
    "CLAIMS_MIGRATION",
    "FOLDED_ATTEMPTS_MIGRATION",
    "IDEMPOTENCY_MIGRATION",
    "KEYS_MIGRATION",
    "MIGRATION",
    "TRACES_MIGRATION",
    "AttemptLog",
    "CancelledBy",
    "Claim",
    "DeadLetters",
    "Delivery",
    "DeliveryFilter",
    "DeliveryReport",
    "DeliveryState",
    "DeliverySummary",
    "DestinationKey",
    "DestinationStanding",
    "DestinationStore",
    "Enqueued",
    "Finished",
    "IdempotencyKey",
    "Inspection",
    "Leases",
    "LoggedAttempt",
    "Made",
    "NewDelivery",
    "OriginStats",
    "OutboxFigures",
    "OutboxStats",
    "OutboxStore",
    "Outcome",
    "Purge",
    "Result",
    "Retention",
    "Standing",
    "StatusMark",
    "Taken",
    "TaskKey",
    "attempts_of",
    "browse_deliveries",
    "browse_destinations",
    "destination_of",
    "find_enqueued",
    "finished_since",
    "hold_back",
    "is_folded",
    "mark_oldest",
    "new_delivery_id",
    "outbox_figures",
    "owner_may_take",
    "reserved_of",
]
