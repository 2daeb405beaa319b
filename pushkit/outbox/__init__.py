"""Deliveries: what is still to be posted, and what became of it."""

from pushkit.outbox.model import Claim, Delivery, DeliveryState, Outcome, Result
from pushkit.outbox.store import MIGRATION, OutboxStore

__all__ = [
    "MIGRATION",
    "Claim",
    "Delivery",
    "DeliveryState",
    "OutboxStore",
    "Outcome",
    "Result",
]
