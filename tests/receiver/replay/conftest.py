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
from receiver.replay import open_replay
from receiver.replay.memory import Replay, ReplayMemory, Seen
from tests.receiver.storing import remember

if TYPE_CHECKING:
    from tests.receiver.conftest import State


@dataclass
class Memory:
    """The calls of a receiver to its memory of ids."""

    database: Database
    replay: ReplayMemory

    async def accept(self, seen: Seen) -> str:
        """Accept what arrived, or say why not."""
        try:
            reservation = await self.replay.reserve(seen)
            if reservation is None:
                return "duplicate"
            found = await self.database.write(remember(self.replay, reservation, now()))
            await self.replay.commit(reservation)
        except InboundError as exc:
            return exc.code
        return found.value

    async def refuse(self, seen: Seen) -> None:
        """Refuse in the middle of the transaction that would have stored it."""
        reservation = await self.replay.reserve(seen)
        assert reservation is not None
        with contextlib.suppress(RefusedError):
            await self.database.write(self._remember_and_fail(reservation))
        await self.replay.release(reservation)

    def _remember_and_fail(self, reservation: Seen) -> Script[Replay]:
        yield from remember(self.replay, reservation, now())
        raise RefusedError


class RefusedError(InboundError):
    code = "refused_in_the_middle"


def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
async def memory(state: State) -> AsyncIterator[Memory]:
    database = open_inbox(state.database)
    replay = open_replay(state.replay, namespace="receiver-1")
    await database.open()
    await replay.open()
    yield Memory(database, replay)
    await replay.close()
    await database.close()
