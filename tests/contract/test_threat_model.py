"""Every promise of the threat model names tests, and the tests are there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "threat-model.md"
TEST = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)?)`")


def rows() -> list[str]:
    """Return the rows of all tables, without their headings."""
    lines = PAGE.read_text("utf-8").splitlines()
    found = [line for line in lines if line.startswith("|")]
    return [row for row in found if not row.startswith("|---") and "| tests |" not in row]


def referenced() -> list[str]:
    return sorted({test for row in rows() for test in TEST.findall(row)})


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip()[:60])
def test_every_row_names_who_keeps_it(row: str) -> None:
    tries, stopped, tests = (cell.strip() for cell in row.strip("|").split("|"))
    assert tries
    assert stopped
    assert TEST.findall(tests)
    assert TEST.sub("", tests).strip() == ""


@pytest.mark.slow  # in a run of some tests
def test_every_test_that_is_named_exists(request: pytest.FixtureRequest) -> None:
    assert len(referenced()) > 30
    here = [item.nodeid for item in request.session.items]
    elsewhere = [test for test in referenced() if not runs(test, here)]
    # In a run of some tests, what it left out is collected apart.
    found = collected(elsewhere) if elsewhere else []
    assert [test for test in elsewhere if not runs(test, found)] == []


def runs(test: str, nodes: list[str]) -> bool:
    return any(node == test or node.startswith((f"{test}[", f"{test}::")) for node in nodes)


def collected(tests: list[str]) -> list[str]:
    pytest_alone = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    listed = subprocess.run(  # noqa: S603  # our own pytest
        [*pytest_alone, "--collect-only", "-q", "--continue-on-collection-errors", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return listed.stdout.splitlines()
