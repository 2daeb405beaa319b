"""What can be taken out, so that the simulation has to see it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.cuts import CUTS, Cut
from tests.simulation.removals import source_without

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name)
def test_every_promise_can_still_be_taken_out(cut: Cut) -> None:
    for module, source in source_without(cut).items():
        compile(source, module, "exec", dont_inherit=True)


def test_names_are_told_apart() -> None:
    assert len({cut.name for cut in CUTS}) == len(CUTS) >= 22


def test_a_promise_that_is_gone_is_missed_within_a_few_seeds(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "tests.simulation.removals", "--only", "order"]
    played = subprocess.run(
        [*command, "--seeds", "20", "--results", str(results)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert played.returncode == 0, played.stdout + played.stderr
    saw = json.loads(results.read_text())["saw"]
    assert saw.startswith("two at once of a subscription") or "overtook" in saw
