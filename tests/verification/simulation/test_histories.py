"""The simulated PostgreSQL server does what a real one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from pushkit.storage.script import Statement
from tests.verification.simulation.histories import (
    WAITS,
    DifferenceError,
    ModelSide,
    RealSide,
    play_history,
)

HISTORIES = 25


@pytest.fixture
def real(postgres_server: str) -> Iterator[RealSide]:
    real = RealSide(postgres_server)
    yield real
    real.close()


def test_the_model_of_postgresql_does_what_the_server_does(real: RealSide) -> None:
    seen: Counter[str] = Counter()
    for seed in range(HISTORIES):
        try:
            seen += play_history(seed, real)[0]
        except DifferenceError:
            # A history is deterministic: a difference that does not recur was timing under load.
            seen += play_history(seed, real)[0]
    # Otherwise nothing was compared.
    assert seen["waits"] > HISTORIES
    assert seen["LockNotAvailableError"]


def test_the_statement_that_closes_a_deadlock_fails_on_both_sides(real: RealSide) -> None:
    real.clear()
    model = ModelSide(0)
    for side in (model, real):
        side.begin(0, reads=False)
        side.begin(1, reads=False)
    # The server may fail either statement, unless one of them does not check for deadlocks.
    real.start(0, Statement("SET LOCAL deadlock_timeout = '1h'", ()))
    for side in (model, real):
        side.start(0, _touch("sub_0"))
        side.start(1, _touch("sub_1"))
        side.start(0, _touch("sub_1"))
        assert side.found(0) == WAITS
        side.start(1, _touch("sub_0"))
        assert side.found(1) == "DeadlockDetectedError"
        side.end(1, commits=False)
        assert isinstance(side.found(0), list)
        side.end(0, commits=True)
    model.loop.close()


def test_a_removed_row_that_is_locked_keeps_nobody_from_its_unique_key(real: RealSide) -> None:
    real.clear()
    model = ModelSide(0)
    columns = "tenant, task_id, owner, config_id, version, url, origin, schemes, profile, filter"
    add = (
        f"INSERT INTO pushkit_subscriptions (id, {columns}, created_at, updated_at)"
        f" SELECT 'sub_new', {columns}, 0, 0 FROM pushkit_subscriptions WHERE id = $1 RETURNING id"
    )
    for side in (model, real):
        side.begin(0, reads=False)
        remove = "UPDATE pushkit_subscriptions SET removed_at = 1 WHERE id = $1 RETURNING id"
        side.start(0, Statement(remove, ("sub_0",)))
        assert isinstance(side.found(0), list)
        side.end(0, commits=True)
        side.begin(0, reads=False)
        lock = "SELECT id FROM pushkit_subscriptions WHERE id IN ($1) ORDER BY id FOR UPDATE"
        side.start(0, Statement(lock, ("sub_0",)))
        side.begin(1, reads=False)
        side.start(1, Statement(add, ("sub_0",)))
        side.settle()
        assert isinstance(side.found(1), list)
        side.end(1, commits=False)
        side.end(0, commits=False)
    model.loop.close()


def _touch(subscription_id: str) -> Statement:
    return Statement(
        "UPDATE pushkit_subscriptions SET updated_at = updated_at + 1 WHERE id = $1 RETURNING id",
        (subscription_id,),
    )
