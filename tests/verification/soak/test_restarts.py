"""A few scenarios of `restarts.py`; the module itself plays many."""

from __future__ import annotations

from pathlib import Path

import pytest

from receiver.callbacks import dispatcher, waiting
from tests.long_runs import examples
from tests.verification.soak.restarts import run_scenario


@pytest.fixture(autouse=True)
def _looking_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what a scenario sets."""
    monkeypatch.setattr(dispatcher, "POLL_INTERVAL", dispatcher.POLL_INTERVAL)
    monkeypatch.setattr(waiting, "_POLL_SECONDS", waiting._POLL_SECONDS)


@pytest.mark.parametrize("seed", range(examples(1)))
def test_restarts_keep_every_promise_on_sqlite(seed: int, tmp_path: Path) -> None:
    complaints, seen = run_scenario(seed, str(tmp_path / "inbox.db"))

    assert complaints == []
    assert seen["accepted"] > 0


@pytest.mark.parametrize("seed", range(examples(1)))
def test_restarts_keep_every_promise_on_postgresql(seed: int, postgres_dsn: str) -> None:
    complaints, seen = run_scenario(seed, postgres_dsn)

    assert complaints == []
    assert seen["accepted"] > 0
