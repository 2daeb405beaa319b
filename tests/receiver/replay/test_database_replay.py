"""The memory of ids in the database forgets by age."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pushkit.storage.migrations import migrate
from receiver.inbox.migrations import RECEIVER_MIGRATIONS
from receiver.replay.memory import Replay, Seen, forget_ids
from tests.receiver.storing import remember

if TYPE_CHECKING:
    from tests.databases import ScriptRunner

START = datetime(2026, 1, 1, tzinfo=UTC)


def reservation(delivery_id: str) -> Seen:
    return Seen(sender="agent", delivery_id=delivery_id, body_sha256="aa")


def test_ids_are_forgotten_by_age_a_bounded_number_at_a_time(scripts: ScriptRunner) -> None:
    scripts.run(migrate("receiver", RECEIVER_MIGRATIONS))
    for number in range(5):
        scripts.run(remember(reservation(f"old-{number}"), START))
    young = START + timedelta(microseconds=1)
    scripts.run(remember(reservation("young"), young))

    later = young + timedelta(hours=1)
    forgotten = [scripts.run(forget_ids(young, limit=3)) for _ in range(3)]

    assert forgotten == [3, 2, 0]
    assert scripts.run(remember(reservation("old-0"), later)) is Replay.FRESH
    assert scripts.run(remember(reservation("young"), later)) is Replay.DUPLICATE
