"""docs/interop.md says what `make interop` tries, and what is wrong elsewhere."""

from __future__ import annotations

from tests.verification.interop.cells import cells
from tests.verification.interop.defects import DEFECTS
from tests.verification.interop.environments import ROOT
from tests.verification.interop.matrix import key_of, matrix_of, row_of

PAGE = (ROOT / "docs" / "interop.md").read_text("utf-8")
BEFORE, WRONG_ELSEWHERE = PAGE.split("## What is wrong elsewhere")
ROWS = BEFORE.split("| result |\n|---|---|---|---|---|\n")[1].splitlines()


def test_the_page_has_a_row_for_each_thing_that_is_tried() -> None:
    assert [key_of(row) for row in ROWS if row] == [key_of(row_of(cell, "")) for cell in cells()]


def test_the_matrix_of_the_page_counts_its_rows() -> None:
    assert matrix_of({key_of(row): row for row in ROWS}) in PAGE


def test_no_red_row_is_ours() -> None:
    assert "FAIL" not in PAGE


def test_whatever_is_wrong_elsewhere_has_its_reproduction() -> None:
    releases = {cell.peer.partition(" (")[0] for cell in cells() if cell.cause}
    releases |= {defect.peer for defect in DEFECTS}
    said = [row.split(" | ")[0] for row in WRONG_ELSEWHERE.splitlines() if row.startswith("| ")]
    missing = [
        release
        for release in releases
        if not any(all(word in row for word in release.split()) for row in said)
    ]
    assert missing == []
