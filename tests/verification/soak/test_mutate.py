"""The mutation script: which changes it makes, and how it reports caught and surviving mutants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import DEADLINE
from tests.verification.soak import mutate
from tests.verification.soak.mutants import mutants_of
from tests.verification.soak.touched import place

MODULE = '''\
"""Says who may enter."""
from __future__ import annotations

ADULT = 18
FIND = "SELECT name FROM guests WHERE age >= $1 AND banned IS NULL ORDER BY name"


def may_enter(age: int, *, banned: bool = False) -> bool:
    """Say whether somebody may."""
    if age < 0:
        raise ValueError("no age")
    return age >= ADULT and not banned
'''


def changed(what: str) -> set[str]:
    """Return the lines that mutants of a kind have in place of another."""
    before = set(MODULE.splitlines())
    mutants = [one for one in mutants_of(MODULE, "guests.py") if one.what == what]
    return {line.strip() for one in mutants for line in one.applied(MODULE).splitlines()} - {
        line.strip() for line in before
    }


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("comparison", "return (age > ADULT) and not banned"),
        ("condition", "if not (age < 0):"),
        ("operand left out", "return (age >= ADULT)"),
        ("not left out", "return age >= ADULT and (banned)"),
        ("and-or", "return (age >= ADULT or not banned)"),
        ("constant", "ADULT = 19"),
        ("constant", "def may_enter(age: int, *, banned: bool = True) -> bool:"),
        ("statement left out", "pass"),
        ("returns nothing", "return None"),
        ("SQL", 'FIND = "SELECT name FROM guests WHERE age >= $1 ORDER BY name"'),
        ("SQL", 'FIND = "SELECT name FROM guests WHERE age > $1 AND banned IS NULL ORDER BY name"'),
    ],
)
def test_a_place_is_changed(what: str, line: str) -> None:
    assert line in changed(what)


def test_docstrings_annotations_and_the_words_of_errors_are_left_alone() -> None:
    mutants = mutants_of(MODULE, "guests.py")

    assert mutants
    for mutant in mutants:
        found = mutant.applied(MODULE)
        assert found != MODULE
        assert "Say whether" in found
        assert "no age" in found or mutant.what == "statement left out"


def test_a_mutant_keeps_its_name_while_code_around_it_moves() -> None:
    moved = MODULE.replace("ADULT", "# a comment\n\nADULT", 1)

    names = [{one.name for one in mutants_of(text, "guests.py")} for text in (MODULE, moved)]

    assert names[0] == names[1]


PLACES = """\
LIMIT = 18  # 1

def may_enter(age, limit=LIMIT):  # 3
    if (  # 4
        age < 0
    ):
        raise ValueError(
            age,
        )
    elif age > 200:  # 10
        return False
    try:
        return age >= limit
    except TypeError:  # 14
        return False
"""


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        pytest.param(1, None, id="at import"),
        pytest.param(3, None, id="a default is made at import"),
        pytest.param(5, {4, 5, 6}, id="a condition over several lines"),
        pytest.param(8, {7, 8, 9}, id="a statement over several lines"),
        pytest.param(10, {10}, id="an elif"),
        pytest.param(14, {14}, id="what is caught"),
        pytest.param(13, {13}, id="one line"),
    ],
)
def test_a_place_is_the_statement_around_it(line: int, lines: set[int] | None) -> None:
    assert place(PLACES, line) == lines


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
