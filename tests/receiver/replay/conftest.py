"""A memory of ids, and the database whose transactions it takes part in."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from pushkit.errors import InboundError
from pushkit.storage.database import Database
from pushkit.storage.script import Script
from receiver.admin import open_inbox
from receiver.replay.memory import Replay, Seen, redis_replay
from receiver.replay.redis import RedisReplay
from tests.receiver.storing import remember

if TYPE_CHECKING:
    from tests.receiver.conftest import State


@dataclass
class Memory:
    """The calls of a receiver to its memory of ids."""

    database: Database
    redis: RedisReplay | None

    async def accept(self, seen: Seen) -> str:
        """Accept what arrived, or say why not."""
        try:
            if self.redis is None:
                return (await self.database.write(remember(seen, now()))).value
            reserved = await self.redis.reserve(seen)
            if reserved is None:
                return "duplicate"
            await self.redis.commit(reserved)
        except InboundError as exc:
            return exc.code
        return "fresh"

    async def refuse(self, seen: Seen) -> None:
        """Refuse in the middle of the transaction that would have stored it."""
        if self.redis is None:
            with contextlib.suppress(RefusedError):
                await self.database.write(_remember_and_fail(seen))
            return
        reserved = await self.redis.reserve(seen)
        assert reserved is not None
        await self.redis.release(reserved)


def _remember_and_fail(seen: Seen) -> Script[Replay]:
    yield from remember(seen, now())
    raise RefusedError


class RefusedError(InboundError):
    code = "refused_in_the_middle"


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def memory(state: State) -> AsyncIterator[Memory]:
    database = open_inbox(state.database)
    redis = None if state.replay is None else redis_replay(state.replay, namespace="receiver-1")
    await database.open()
    yield Memory(database, redis)
    if redis is not None:
        await redis.close()
    await database.close()
