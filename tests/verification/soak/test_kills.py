"""Short runs of the kill scripts, such as `crash.py`; a long one is `--kills 1000`."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import DEADLINE
from tests.long_runs import examples
from tests.verification.soak import crash, gateway_crash, mailbox_crash, receiver_crash

# A lease ends within a test, and not only because the machine is busy: seconds.
LEASE = 4.0
OF_ATTEMPTS = (0.5, 1.5)  # the timeout of an attempt, and the margin of its lease
TASKS = {"tasks": 25}

# What is killed, of a folder and a database; how often; and within how many seconds what was in
# hand comes again. On SQLite that is by the lock file: leases are not waited for.
Killed = tuple[Callable[[Path, str], Any], int, float]
ON_SQLITE: dict[str, Killed] = {
    "a sender": (lambda _, at: crash.Killer(at, seed=1, lease=(60, 60)), 10, 100),
    "a receiver": (
        lambda folder, at: receiver_crash.Killer(
            folder, database=at, seed=1, lease=2 * DEADLINE, **TASKS
        ),
        *(10, DEADLINE),
    ),
    "two receivers": (
        lambda folder, at: receiver_crash.Killer(folder, database=at, seed=3, receivers=2, **TASKS),
        *(20, inf),
    ),
    "a mailbox and its clients": (
        lambda folder, at: mailbox_crash.MailboxKiller(folder, database=at, seed=1, tasks=20),
        *(12, inf),
    ),
    "a gateway": (lambda folder, at: gateway_crash.Killer(at, folder, seed=1), 4, inf),
}
ON_POSTGRESQL: dict[str, Killed] = {
    "three workers": (
        lambda _, at: crash.Killer(at, seed=2, workers=3, lease=OF_ATTEMPTS),
        # The time in which all of them start is not counted.
        *(10, sum(OF_ATTEMPTS) + DEADLINE),
    ),
    "two receivers": (
        lambda folder, at: receiver_crash.Killer(
            folder, database=at, seed=2, receivers=2, lease=LEASE, **TASKS
        ),
        *(10, LEASE + DEADLINE),
    ),
    "two services of a mailbox": (
        lambda folder, at: mailbox_crash.MailboxKiller(
            folder, database=at, seed=2, services=2, tasks=20
        ),
        *(12, inf),
    ),
    "two gateways": (
        lambda folder, at: gateway_crash.Killer(at, folder, seed=2, gateways=2),
        *(4, inf),
    ),
}


async def kill(killer: Any, kills: int, resumes_within: float) -> None:
    report = await killer.run(kills)
    assert report.holds, report
    assert report.kills == kills
    assert getattr(report, "acknowledged", inf) > kills, report
    # Or the kills fell into nothing.
    assert getattr(report, "joined", 1) * getattr(report, "in_hand_at_kills", 1) > 0, report
    assert getattr(report, "slowest_resume", 0.0) < resumes_within, report


@pytest.mark.parametrize("killed", ON_SQLITE.values(), ids=ON_SQLITE)
async def test_kills_on_sqlite_break_no_promise(killed: Killed, tmp_path: Path) -> None:
    make, kills, resumes_within = killed
    await kill(make(tmp_path, str(tmp_path / "database.db")), examples(kills), resumes_within)


@pytest.mark.parametrize("killed", ON_POSTGRESQL.values(), ids=ON_POSTGRESQL)
async def test_kills_on_postgresql_break_no_promise(
    killed: Killed, tmp_path: Path, postgres_dsn: str
) -> None:
    make, kills, resumes_within = killed
    await kill(make(tmp_path, postgres_dsn), examples(kills), resumes_within)


async def test_an_inbox_that_is_lost_between_kills_is_recovered(tmp_path: Path) -> None:
    kills = examples(10)
    killer = receiver_crash.Killer(
        tmp_path, database=str(tmp_path / "inbox.db"), seed=4, lose_every=5, **TASKS
    )
    await kill(killer, kills, inf)
    assert killer.report.inboxes_lost == kills // 5
