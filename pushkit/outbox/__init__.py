"""Deliveries: what is still to be posted, and what became of it."""

from pushkit.outbox.attempts import ATTEMPTS_MIGRATION, AttemptLog, LoggedAttempt
from pushkit.outbox.dead_letters import DeadLetters
from pushkit.outbox.idempotency import IDEMPOTENCY_MIGRATION, IdempotencyKey, find_enqueued
from pushkit.outbox.inspection import (
    DeliveryFilter,
    DeliveryReport,
    DeliverySummary,
    Inspection,
    OriginStats,
    OutboxStats,
)
from pushkit.outbox.model import Claim, Delivery, DeliveryState, Made, Outcome, Result, StatusMark
from pushkit.outbox.retention import Purge, Retention
from pushkit.outbox.store import MIGRATION, OutboxStore

__all__ = [
    "ATTEMPTS_MIGRATION",
    "IDEMPOTENCY_MIGRATION",
    "MIGRATION",
    "AttemptLog",
    "Claim",
    "DeadLetters",
    "Delivery",
    "DeliveryFilter",
    "DeliveryReport",
    "DeliveryState",
    "DeliverySummary",
    "IdempotencyKey",
    "Inspection",
    "LoggedAttempt",
    "Made",
    "OriginStats",
    "OutboxStats",
    "OutboxStore",
    "Outcome",
    "Purge",
    "Result",
    "Retention",
    "StatusMark",
    "find_enqueued",
]
