"""Short runs of the kill scripts, such as `crash.py`; a long one is `--kills 1000`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import DEADLINE
from tests.long_runs import examples
from tests.verification.soak import crash, gateway_crash, mailbox_crash, receiver_crash

# A lease ends within a test, and not only because the machine is busy: seconds.
LEASE = 4.0
TIMEOUT, MARGIN = 0.5, 1.5  # of an attempt, and of its lease

Sender, Gateway = crash.Killer, gateway_crash.Killer
Receiver = partial(receiver_crash.Killer, tasks=25)
Clients = partial(mailbox_crash.MailboxKiller, tasks=20)

# What is killed; how often; and within how many seconds what was in hand comes again. On SQLite
# that is by the lock file: leases are not waited for.
KILLED = ("make", "kills", "resumes_within")
ON_SQLITE = [
    pytest.param(partial(Sender, seed=1, timeout=60, margin=60), 10, 100, id="a sender"),
    pytest.param(partial(Receiver, seed=1, lease=2 * DEADLINE), 10, DEADLINE, id="a receiver"),
    pytest.param(partial(Receiver, seed=3, receivers=2), 20, inf, id="two receivers"),
    pytest.param(partial(Clients, seed=1), 12, inf, id="a mailbox and its clients"),
    pytest.param(partial(Gateway, seed=1), 4, inf, id="a gateway"),
]
ON_POSTGRESQL = [
    pytest.param(
        partial(Sender, seed=2, workers=3, timeout=TIMEOUT, margin=MARGIN),
        10,
        # The time in which all of them start is not counted.
        TIMEOUT + MARGIN + DEADLINE,
        id="three workers",
    ),
    pytest.param(
        partial(Receiver, seed=2, receivers=2, lease=LEASE),
        10,
        LEASE + DEADLINE,
        id="two receivers",
    ),
    pytest.param(partial(Clients, seed=2, services=2), 12, inf, id="two services of a mailbox"),
    pytest.param(partial(Gateway, seed=2, gateways=2), 4, inf, id="two gateways"),
]


async def kill(killer: Any, kills: int, resumes_within: float) -> None:
    report = await killer.run(kills)
    assert report.holds, report
    assert report.kills == kills
    assert getattr(report, "acknowledged", inf) > kills, report
    # Or the kills fell into nothing.
    assert getattr(report, "joined", 1) * getattr(report, "in_hand_at_kills", 1) > 0, report
    assert getattr(report, "slowest_resume", 0.0) < resumes_within, report


@pytest.mark.parametrize(KILLED, ON_SQLITE)
async def test_kills_on_sqlite_break_no_promise(
    make: Callable[..., Any], kills: int, resumes_within: float, tmp_path: Path
) -> None:
    await kill(make(tmp_path), examples(kills), resumes_within)


@pytest.mark.parametrize(KILLED, ON_POSTGRESQL)
async def test_kills_on_postgresql_break_no_promise(
    make: Callable[..., Any], kills: int, resumes_within: float, tmp_path: Path, postgres_dsn: str
) -> None:
    await kill(make(tmp_path, database=postgres_dsn), examples(kills), resumes_within)


async def test_an_inbox_that_is_lost_between_kills_is_recovered(tmp_path: Path) -> None:
    kills = examples(10)
    killer = Receiver(tmp_path, seed=4, lose_every=5)
    await kill(killer, kills, inf)
    assert killer.report.inboxes_lost == kills // 5
