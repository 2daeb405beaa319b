"""Every interleaving within small budgets; larger ones in `make test-long`.

python -m tests.verification.exhaustive.outbox --jobs 3 --operations 2 --failures 1 --lost 1
"""

from __future__ import annotations

import pytest

from tests.long_runs import LONG
from tests.verification.exhaustive.outbox import Budget, explore

SMALL = {
    "everything once": Budget(jobs=1, operations=1, crashes=1, failures=1, lost=1, late=1),
    "an operator": Budget(jobs=2, operations=2),
    "an operator beside failures": Budget(jobs=2, operations=1, failures=1, expiries=1),
    "replies that are lost or late": Budget(jobs=2, lost=1, late=1, failures=1),
    "an operator beside replies that are lost": Budget(jobs=2, operations=1, lost=1),
    "workers that die": Budget(jobs=2, crashes=2, failures=1, operations=1),
    "a destination that waits": Budget(jobs=2, operations=1, failures=1, waits=True),
    "a clock that is set back": Budget(jobs=2, setbacks=1, failures=1, crashes=1),
    "workers that sleep": Budget(jobs=2, expiries=1, failures=1, operations=1, asleep=True),
    "a caller in a process of its own": Budget(jobs=2, operations=1, failures=1, apart=True),
}
GATHERING = {
    "chunks beside an operator and a worker that dies": Budget(
        jobs=2, operations=1, crashes=1, gathers=True
    ),
    "chunks that fail": Budget(jobs=2, operations=1, failures=1, lost=1, gathers=True),
    "chunks while the clock is set back": Budget(jobs=3, setbacks=1, crashes=1, gathers=True),
    "chunks and two operators": Budget(jobs=3, operations=2, gathers=True),
}
LARGE = {
    "two of everything": Budget(jobs=2, operations=1, crashes=1, failures=1, lost=1, late=1),
    "two jobs, leases that end": Budget(
        jobs=2, operations=1, failures=1, lost=1, late=1, expiries=1
    ),
    "three jobs and two operators": Budget(jobs=3, operations=2, late=1, lost=1),
    "three jobs and a failure": Budget(jobs=3, operations=1, failures=1, late=1, expiries=1),
    "three jobs while the destination waits": Budget(
        jobs=3, operations=1, failures=1, crashes=1, waits=True
    ),
    "three chunks, two operators and a worker that dies": Budget(
        jobs=3, operations=2, crashes=1, gathers=True
    ),
    "three chunks, leases that end": Budget(
        jobs=3, operations=1, failures=1, late=1, expiries=1, gathers=True
    ),
}


@pytest.mark.parametrize("budget", [*SMALL.values(), *GATHERING.values()], ids=SMALL | GATHERING)
@pytest.mark.slow
def test_no_interleaving_breaks_a_promise(budget: Budget) -> None:
    found = explore(budget)
    assert found.wrong is None, "\n".join((found.wrong, *found.trace))
    assert found.states > 100


@pytest.mark.skipif(not LONG, reason="for a night: make test-long")
@pytest.mark.parametrize("budget", LARGE.values(), ids=LARGE)
def test_no_longer_interleaving_breaks_a_promise(budget: Budget) -> None:
    found = explore(budget, most=20_000_000)
    assert found.wrong is None, "\n".join((found.wrong, *found.trace))
