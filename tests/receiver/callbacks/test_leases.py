"""The leases that a process holds."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from pushkit.errors import StorageError
from receiver.callbacks import leases as of_leases
from receiver.callbacks.leases import Leases
from tests.eventually import eventually


def claimed(number: int, leased_at: float) -> Any:
    return SimpleNamespace(stored=SimpleNamespace(id=number), leased_at=leased_at)


async def test_a_suspended_claim_does_not_release_the_claim_after_it() -> None:
    database: Any = None  # is used to renew leases, which is later
    leases = Leases(database)
    asleep, anew = claimed(7, time.perf_counter() - 100), claimed(7, time.perf_counter())
    leases.hold(asleep)
    leases.hold(anew)

    assert not leases.is_sure(asleep)
    leases.release(asleep)

    assert leases.held == (7,)
    assert leases.is_sure(anew)
    leases.release(anew)
    assert not leases.held
    await leases.close()


async def test_a_renewal_that_failed_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_leases, "_AFTER_FAULT", timedelta(0))
    monkeypatch.setattr(of_leases, "_LEASE", timedelta(0))  # the first renewal comes at once
    asked = 0

    async def refuse_once(_: object) -> set[int]:
        nonlocal asked
        asked += 1
        monkeypatch.setattr(of_leases, "_LEASE", timedelta(hours=1))
        if asked == 1:
            raise StorageError("away")
        return {7}

    database: Any = SimpleNamespace(write=refuse_once)
    leases = Leases(database)
    taken = claimed(7, time.perf_counter() - 100)
    leases.hold(taken)

    await eventually(lambda: leases.is_sure(taken))
    assert asked == 2
    await leases.close()
