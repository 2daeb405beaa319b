"""What a sender's metrics read when they are asked for: the outbox, and the keys."""

from __future__ import annotations

from datetime import datetime

from pushkit.keys.ring import KeyRing
from pushkit.outbox.backlog import Backlog, backlog
from pushkit.storage.database import Database
from pushkit.storage.script import Script
from pushkit.telemetry.metrics import Readings
from pushkit.version import __version__


async def read_outbox(database: Database, *, breaker_opens_at: int) -> Readings:
    """Return what stands in the outbox.

    Raises:
        StorageError: It cannot be read.
    """

    def script() -> Script[Backlog]:
        now = yield from database.now()
        return (yield from backlog(now, breaker_opens_at=breaker_opens_at))

    found = await database.read(script())
    return {
        "pushkit_deliveries": _by_one(found.states),
        "pushkit_oldest_due_seconds": {(): found.oldest_due.total_seconds()},
        "pushkit_breakers": _by_one(found.breakers),
        "pushkit_subscriptions": _by_one(found.subscriptions),
    }


def read_keys(ring: KeyRing, now: datetime) -> Readings:
    """Return how old the published keys are, and when the next one signs."""
    published = ring.published(now)
    ages: dict[tuple[str, ...], float] = {
        (key.algorithm.value, key.kid, ring.state(key.kid, now).value): (
            now - key.published_at
        ).total_seconds()
        for key in published
    }
    planned: dict[tuple[str, ...], float] = {}
    for key in published:
        if key.activates_at is not None and key.activates_at > now:
            name, until = (key.algorithm.value,), (key.activates_at - now).total_seconds()
            planned[name] = min(planned.get(name, until), until)
    return {
        "pushkit_signing_key_age_seconds": ages,
        "pushkit_signing_key_rotation_seconds": planned,
        "pushkit_build_info": {(__version__,): 1.0},
    }


def _by_one(found: dict[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): float(number) for name, number in found.items()}
