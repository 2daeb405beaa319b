"""A worker's memory of its queues, without the loops around it."""

from __future__ import annotations

from typing import Any

from pushkit.queue.held import HeldQueue, Memory
from pushkit.queue.rules import Leased


def test_a_queue_that_moved_to_another_origin_counts_there_alone() -> None:
    memory = Memory[Any]()

    def lease(origin: str, epoch: int) -> HeldQueue[Any] | None:
        leased = Leased("queue", ("", "alice", origin), epoch, (), 0)
        return memory.claimed(leased, until=1.0, seen_at=0.0)

    lease("https://one.example.com:443", 1)
    moved = lease("https://two.example.com:443", 3)  # its first lease ended unheard
    assert memory.at_origin == {"https://two.example.com:443": 1}

    assert moved is not None
    memory.forget(moved)
    assert not memory.at_origin
