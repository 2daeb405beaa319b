"""The mutation script: what it changes, where, and that it tells who was caught."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import DEADLINE
from tests.soak import mutate
from tests.soak.mutants import mutants_of

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


ALL_MUTANTS = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.soak import mutate
root, results = map(Path, sys.argv[2:])
mutate.ROOMS = {"door": mutate.Room(modules=("pushkit/*.py",), near=("tests",))}
mutate.run("door", seed=1, numbers=range(99), results=results, root=root)
"""


def test_who_is_caught_and_who_survives_is_told_with_a_diff(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, results = tmp_path / "tree", tmp_path / "results.jsonl"
    for folder in ("pushkit", "tests"):
        (root / folder).mkdir(parents=True)
    (root / "pushkit" / "__init__.py").touch()
    (root / "pushkit" / "guests.py").write_text("def may_enter(age):\n    return age >= 18\n")
    (root / "tests" / "test_guests.py").write_text(
        "from pushkit.guests import may_enter\n\n"
        "def test_a_child_may_not():\n    assert may_enter(99) and not may_enter(3)\n"
    )
    # A process of its own: it forks.
    ran = subprocess.run(
        [sys.executable, "-c", ALL_MUTANTS, str(mutate.ROOT), str(root), str(results)],
        capture_output=True,
        text=True,
        timeout=DEADLINE * 4,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    found = [json.loads(line) for line in results.read_text().splitlines()]
    outcomes = {line["diff"].splitlines()[-1].strip("+ "): line["outcome"] for line in found}
    assert outcomes["return (age > 18)"] == "survived"
    assert outcomes["return None"] == "caught"
    assert (root / "pushkit" / "guests.py").read_text().endswith("age >= 18\n")
    mutate.report(results)
    assert "+    return (age > 18)" in capsys.readouterr().out


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
