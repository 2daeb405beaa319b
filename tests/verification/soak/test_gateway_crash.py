"""A short run of `gateway_crash.py`; its module is the long one."""

from __future__ import annotations

from pathlib import Path

from tests.long_runs import examples
from tests.verification.soak.gateway_crash import Killer

KILLS = examples(4)


async def test_kills_of_a_gateway_on_sqlite_lose_and_make_up_nothing(tmp_path: Path) -> None:
    killer = Killer(str(tmp_path / "outbox.db"), tmp_path, seed=1)
    report = await killer.run(KILLS)
    assert report.holds, report
    assert report.kills == KILLS


async def test_kills_of_two_gateways_on_postgresql_lose_and_make_up_nothing(
    postgres_dsn: str, tmp_path: Path
) -> None:
    killer = Killer(postgres_dsn, tmp_path, seed=2, gateways=2)
    report = await killer.run(KILLS)
    assert report.holds, report
    assert report.kills == KILLS
