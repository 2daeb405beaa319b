"""Plays seeds in separate processes, since a simulation replaces time and sockets."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import pytest

from tests.long_runs import examples
from tests.verification.simulation.running import Played, parts_of, play_parts
from tests.verification.simulation.scenario import (
    Scenario,
    Step,
    as_python,
    from_python,
    make_scenario,
)
from tests.verification.simulation.shrink import kind_of, shrink

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.verification.simulation", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )


# Four parts: workers that run tests beside each other share them, and each plays on one core.
@pytest.mark.parametrize("part", range(4))
def test_a_hundred_seeds_keep_every_promise(part: int) -> None:
    count = examples(25)
    played = simulate("--from", str(part * count), "--count", str(count), "--jobs", "1")

    assert played.returncode == 0, played.stdout + played.stderr
    assert f"{count} seeds from {part * count}: 0 failed" in played.stdout


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    first, second = (simulate("--count", "12", "--digest").stdout for _ in range(2))

    digests = [line for line in first.splitlines() if len(line.split()) == 2]
    assert len(digests) == 12
    assert digests == [line for line in second.splitlines() if len(line.split()) == 2]


def test_regression_scenarios_keep_every_promise() -> None:
    played = simulate("--regressions")

    assert played.returncode == 0, played.stdout + played.stderr


def test_a_handwritten_scenario_is_played(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/simulation.md").read_text()
    scenario = tmp_path / "scenario.txt"
    scenario.write_text("Scenario(" + page.partition("```python\nScenario(")[2].partition("```")[0])

    played = simulate("--scenario", str(scenario), "--trace")

    arrivals = [line for line in played.stdout.splitlines() if "hook0.example.com got" in line]
    assert [line.split()[-1] for line in arrivals] == ["agent0.1", "agent0.2"], played.stderr
    assert "keeps every promise" in played.stdout


def test_a_scenario_is_read_as_it_is_printed() -> None:
    scenario = replace(make_scenario(7), generators="")

    assert from_python(indent(as_python(scenario), "    ")) == scenario


def test_an_interrupted_run_continues_where_it_stopped(tmp_path: Path) -> None:
    results = str(tmp_path / "results.jsonl")
    simulate("--count", "2", "--append", results)

    again = simulate("--count", "3", "--append", results)

    assert "1 seeds from 0: 0 failed" in again.stdout, again.stderr
    assert "in all: 3 seeds, 0 failed" in simulate("--total", results).stdout


def test_seeds_are_split_into_consecutive_parts() -> None:
    parts = parts_of({1, 2, 3, 7, *range(100, 200)})

    assert parts == [range(1, 4), range(7, 8), range(100, 150), range(150, 200)]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_seed_whose_process_dies_fails_and_the_rest_is_played() -> None:
    def play(seed: int) -> Played:
        if seed == 2:
            os._exit(7)
        return Played(seed=seed, violations=[])

    parts = list(play_parts([range(5)], play, jobs=2))

    assert [each.seed for part in parts for each in part.played] == [0, 1, 2, 3, 4]
    assert [each.seed for part in parts for each in part.played if each.violations] == [2]


def test_steps_that_a_failure_does_not_need_are_removed() -> None:
    scenario = replace(make_scenario(7), agents=3, workers=3, webhooks=4, twins=True)
    crash = Step(31.234, "crash", ("worker2", 17.3))
    steps = (*scenario.steps, crash, Step(40.777, "notify", (2, "task5", 9)))

    def fails(each: Scenario) -> bool:
        kinds = [(step.kind, str(step.args[0])) for step in each.steps]
        crashes = any(kind == "crash" and whom[:6] == "worker" for kind, whom in kinds)
        return each.workers > 0 and crashes and ("notify", "2") in kinds

    smallest = shrink(replace(scenario, steps=steps), fails)

    assert [step.kind for step in smallest.steps] == ["crash", "notify"]
    assert smallest.steps[0].args == ("worker0", 17.0)
    assert smallest.steps[1].args == (2, "task0", 0)
    assert (smallest.workers, smallest.webhooks, smallest.twins) == (1, 0, False)


def test_violations_of_one_promise_have_one_kind() -> None:
    first = kind_of("came again after it was accepted: dlv_019b76db67a4")

    assert first == kind_of("came again after it was accepted: dlv_77")
    assert first != kind_of("two attempts at once: dlv_77")
