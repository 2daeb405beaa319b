"""What a process has in hand."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from receiver.callbacks.leases import Leases


def claimed(number: int, leased_at: float) -> Any:
    return SimpleNamespace(stored=SimpleNamespace(id=number), leased_at=leased_at)


async def test_who_slept_through_its_lease_ends_not_that_of_the_claim_after_it() -> None:
    database: Any = None  # is asked when a lease is to be renewed, which is later
    leases = Leases(database)
    asleep, anew = claimed(7, time.perf_counter() - 100), claimed(7, time.perf_counter())
    leases.hold(asleep)
    leases.hold(anew)

    assert not leases.is_sure(asleep)
    leases.let_go(asleep)

    assert leases.held == (7,)
    assert leases.is_sure(anew)
    leases.let_go(anew)
    assert not leases.held
    await leases.close()
