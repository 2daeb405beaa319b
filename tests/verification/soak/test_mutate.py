"""The mutation script reports what is caught and what survives, and its rooms are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import DEADLINE
from tests.verification.soak import mutate


@pytest.mark.parametrize("room", mutate.ROOMS.values(), ids=mutate.ROOMS.keys())
def test_a_room_has_the_modules_and_tests_that_it_names(room: mutate.Room) -> None:
    assert all([*mutate.ROOT.glob(pattern)] for pattern in room.modules)
    assert [name for name in room.tests if not (mutate.ROOT / name).exists()] == []


ALL_MUTANTS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.verification.soak import mutate
root, results = map(Path, sys.argv[2:])
mutate.ROOMS = {"door": mutate.Room(modules=("pushkit/*.py",), tests=("tests",))}
for number in (3, 99):  # the second run continues the first
    mutate.run(["door"], seed=1, number=number, results=results, root=root)
"""


GUESTS = """\
MOTTO = "be kind"

def may_enter(age):
    return age >= 18
"""
TEST_GUESTS = """
import subprocess, sys
from pushkit import guests

def test_a_child_may_not():
    assert guests.may_enter(99) and not guests.may_enter(3)

def test_the_program_lets_an_adult_in():
    program = "from pushkit import guests; print(guests.may_enter(18))"
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, text=True) == "True\\n"

def test_the_motto_is_told():
    assert vars(guests)["MOTTO"] == "be kind"

def test_what_fails_without_a_mutant_catches_none():
    assert not guests.may_enter(18)
"""


def added(diff: str) -> str:
    return next(line[1:].strip() for line in diff.splitlines()[2:] if line.startswith("+"))


def test_who_is_caught_and_who_survives_is_told_with_a_diff(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, results = tmp_path / "tree", tmp_path / "results.jsonl"
    for folder in ("pushkit", "tests"):
        (root / folder).mkdir(parents=True)
    (root / "pushkit" / "__init__.py").touch()
    (root / "pushkit" / "guests.py").write_text(GUESTS)
    (root / "tests" / "test_guests.py").write_text(TEST_GUESTS)
    # A process of its own: it forks.
    ran = subprocess.run(
        [sys.executable, "-c", ALL_MUTANTS, str(mutate.ROOT), str(root), str(results)],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # its tests need none
        capture_output=True,
        text=True,
        timeout=DEADLINE * 20,  # a busy machine
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in results.read_text().splitlines()]
    tests = "tests/test_guests.py::test_"
    assert len(found) == len({line["name"] for line in found})
    outcomes = {added(line["diff"]): line["by"] or line["outcome"] for line in found}
    assert outcomes["return age >= 17"] == "survived"
    assert outcomes["return (age < 18)"] == f"{tests}a_child_may_not"
    assert outcomes["return (age > 18)"] == f"{tests}the_program_lets_an_adult_in"
    assert outcomes['MOTTO = "be kindX"'] == f"{tests}the_motto_is_told"
    assert "left out: tests/test_guests.py::test_what_fails" in ran.stdout
    assert (root / "pushkit" / "guests.py").read_text() == GUESTS
    mutate.report(results)
    assert "+    return age >= 17" in capsys.readouterr().out


def test_what_a_person_judged_equivalent_counts_no_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.jsonl"
    line = {"room": "door", "seed": 1, "where": "a.py:1", "what": "constant", "diff": "", "n": 1}
    lines = [
        {**line, "name": "a", "outcome": "caught"},
        {**line, "name": "b", "outcome": "survived"},
        {"name": "b", "equivalent": "nobody can see it"},
    ]
    results.write_text("".join(f"{json.dumps(one)}\n" for one in lines))

    mutate.report(results)

    assert "caught    1  survived   0  equivalent   1  100.0 %" in capsys.readouterr().out
