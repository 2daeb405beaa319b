"""A short run of `mailbox_crash.py`; the long one kills 1,000 times: `--kills 1000`."""

from __future__ import annotations

from pathlib import Path

from tests.long_runs import examples
from tests.verification.soak.mailbox_crash import MailboxKiller

KILLS = examples(12)
TASKS = 20


async def test_kills_of_service_and_clients_lose_repeat_and_reorder_nothing(
    tmp_path: Path,
) -> None:
    killer = MailboxKiller(tmp_path, database=str(tmp_path / "inbox.db"), seed=1, tasks=TASKS)
    report = await killer.run(KILLS)
    assert report.holds, report
    assert (report.kills, report.acknowledged > KILLS) == (KILLS, True)
    assert report.in_hand_at_kills > 0, report  # or the kills fell into nothing


async def test_kills_of_two_services_on_postgresql_lose_repeat_and_reorder_nothing(
    tmp_path: Path, postgres_dsn: str
) -> None:
    killer = MailboxKiller(tmp_path, database=postgres_dsn, seed=2, services=2, tasks=TASKS)
    report = await killer.run(KILLS)
    assert report.holds, report
    assert (report.kills, report.acknowledged > KILLS) == (KILLS, True)
    assert report.in_hand_at_kills > 0, report
