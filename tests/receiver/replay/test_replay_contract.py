"""The contract of every memory of ids: in SQLite, PostgreSQL and Redis."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pushkit.errors import ConfigError
from pushkit.storage.migrations import migrate
from receiver.inbox.migrations import RECEIVER_MIGRATIONS
from receiver.replay.memory import Replay, Seen, forget_ids, redis_replay
from tests.receiver.storing import remember

if TYPE_CHECKING:
    from tests.databases import ScriptRunner
    from tests.receiver.replay.conftest import Memory


def seen(
    delivery_id: str = "delivery-1", *, sender: str = "agent", digest: str = "aa" * 32
) -> Seen:
    return Seen(sender=sender, delivery_id=delivery_id, body_sha256=digest)


OTHER_BODY = "bb" * 32
START = datetime(2026, 1, 1, tzinfo=UTC)


async def test_an_id_is_fresh_once(memory: Memory) -> None:
    assert [await memory.accept(seen()) for _ in range(3)] == ["fresh", "duplicate", "duplicate"]


async def test_an_id_with_another_body_is_a_conflict(memory: Memory) -> None:
    await memory.accept(seen())

    assert await memory.accept(seen(digest=OTHER_BODY)) == "id_conflict"
    assert await memory.accept(seen()) == "duplicate"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(seen("delivery-2"), id="id"),
        pytest.param(seen(sender="other"), id="sender"),
        pytest.param(seen("1", sender="agentdelivery-"), id="run-together"),
    ],
)
async def test_another_sender_or_id_is_fresh(memory: Memory, other: Seen) -> None:
    await memory.accept(seen())

    assert await memory.accept(other) == "fresh"


async def test_a_refused_id_is_fresh_again(memory: Memory) -> None:
    await memory.refuse(seen())

    assert await memory.accept(seen(digest=OTHER_BODY)) == "fresh"


async def test_one_of_many_concurrent_copies_is_fresh_and_none_fails(memory: Memory) -> None:
    verdicts = Counter(await asyncio.gather(*(memory.accept(seen()) for _ in range(200))))

    assert verdicts.pop("fresh") == 1
    assert set(verdicts) <= {"duplicate", "being_stored"}
    assert await memory.accept(seen()) == "duplicate"


async def test_one_of_two_concurrent_bodies_wins(memory: Memory) -> None:
    bodies = [seen(), seen(digest=OTHER_BODY)] * 50

    verdicts = Counter(await asyncio.gather(*map(memory.accept, bodies)))

    assert verdicts["fresh"] == 1
    after = {await memory.accept(body) for body in bodies[:2]}
    assert after == {"duplicate", "id_conflict"}


async def test_an_id_of_any_characters_is_remembered(memory: Memory) -> None:
    strange = seen("ü\n\t%:{}*" + "x" * 400)

    assert [await memory.accept(strange) for _ in range(2)] == ["fresh", "duplicate"]


async def test_another_location_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a redis://"):
        redis_replay("http://127.0.0.1", namespace="receiver-1")


def test_ids_are_forgotten_by_age_a_bounded_number_at_a_time(scripts: ScriptRunner) -> None:
    scripts.run(migrate("receiver", RECEIVER_MIGRATIONS))
    for number in range(5):
        scripts.run(remember(seen(f"old-{number}"), START))
    young = START + timedelta(microseconds=1)
    scripts.run(remember(seen("young"), young))

    later = young + timedelta(hours=1)
    forgotten = [scripts.run(forget_ids(young, limit=3)) for _ in range(3)]

    assert forgotten == [3, 2, 0]
    assert scripts.run(remember(seen("old-0"), later)) is Replay.FRESH
    assert scripts.run(remember(seen("young"), later)) is Replay.DUPLICATE
