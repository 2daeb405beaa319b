"""A short run of `crash.py`; the module itself is the long one."""

from __future__ import annotations

from pathlib import Path

from tests.eventually import DEADLINE
from tests.long_runs import examples
from tests.verification.soak.crash import Killer

KILLS = examples(10)
# An attempt's timeout and its lease's margin, in seconds. It ends within the test, and not only
# because the machine is busy.
LEASE = (0.5, 1.5)


async def test_kills_on_sqlite_lose_and_reorder_nothing(tmp_path: Path) -> None:
    killer = Killer(str(tmp_path / "outbox.db"), seed=1, lease=(60, 60))
    report = await killer.run(KILLS)
    assert report.holds, report
    assert (report.kills, report.acknowledged > KILLS, report.joined > 0) == (KILLS, True, True)
    # By the lock file: the leases of two minutes are not waited for.
    assert report.slowest_resume < 100, report


async def test_kills_of_three_workers_on_postgresql_lose_and_reorder_nothing(
    postgres_dsn: str,
) -> None:
    killer = Killer(postgres_dsn, seed=2, workers=3, lease=LEASE)
    report = await killer.run(KILLS)
    assert report.holds, report
    assert (report.kills, report.acknowledged > KILLS, report.joined > 0) == (KILLS, True, True)
    # A lease, and a busy machine; the time in which all of them start is not counted.
    assert report.slowest_resume < sum(LEASE) + DEADLINE, report
