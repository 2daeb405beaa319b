"""The simulated PostgreSQL, beside a real one."""

from __future__ import annotations

from collections import Counter

from tests.simulation.histories import RealSide, play_history

HISTORIES = 25


def test_the_model_of_postgresql_does_what_the_server_does(postgres_server: str) -> None:
    real = RealSide(postgres_server)
    seen: Counter[str] = Counter()
    try:
        for seed in range(HISTORIES):
            seen += play_history(seed, real)[0]
    finally:
        real.close()
    # Or nothing was compared.
    assert seen["waits"] > HISTORIES
    assert seen["LockNotAvailableError"]
    assert seen["DeadlockDetectedError"]
