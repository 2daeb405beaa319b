"""Cuts: each fits the code, is listed in docs/testing.md, and one is found."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.simulation.cuts import CUTS, Cut
from tests.simulation.removals import source_without, table, written_into

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name)
def test_every_cut_applies_to_the_code(cut: Cut) -> None:
    for module, source in source_without(cut).items():
        compile(source, module, "exec", dont_inherit=True)


@pytest.mark.slow
def test_no_cut_uses_a_name_that_is_gone(tmp_path: Path) -> None:
    """A removal that ends in a NameError would be found, whatever the simulation checks."""
    cuts = list(CUTS)
    while cuts:
        together = compatible(cuts)
        cuts = [cut for cut in cuts if cut not in together]
        checked = check_types(source_without(*together), tmp_path)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def compatible(cuts: Sequence[Cut]) -> list[Cut]:
    """Return the first cut, and all others whose edits do not touch its text or each other's."""
    found = [cuts[0]]
    for cut in cuts[1:]:
        with contextlib.suppress(LookupError):
            source_without(*found, cut)
            found.append(cut)
    return found


def check_types(sources: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run mypy on both packages with the changed sources of some modules."""
    shadows: list[str] = []
    for module, source in sources.items():
        changed = folder / f"{module}.py"
        changed.write_text(source)
        original = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        shadows += ["--shadow-file", str(original), str(changed)]
    # `earlier = []` lacks a type; that is no mistake here.
    options = ["--disable-error-code", "var-annotated", "--cache-dir", str(folder / "cache")]
    return subprocess.run(  # our own command
        [sys.executable, "-m", "mypy", *shadows, *options, "-p", "pushkit", "-p", "receiver"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_the_page_lists_every_cut_with_its_seed() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    rows = page.partition("| taken out | seed |")[2].partition("\n\n")[0].splitlines()[2:]

    told = {name.strip(): seed.strip() for _, name, seed, *_ in (row.split("|") for row in rows)}

    assert set(told) == {cut.name for cut in CUTS}
    assert {name for name, seed in told.items() if not seed.isdigit()} <= {
        "late once",
        "many destinations",
    }


def test_the_table_of_a_page_is_replaced() -> None:
    page = "Before.\n\n| taken out | seed |\n|---|---|\n| old | 1 |\n\nAfter.\n"
    saw = "two at once: dlv_019b76dae4acfb332c92899ea59aab83 id=dlv_1 state=pending"

    written = written_into(page, table({"order": {"seed": 3, "saw": saw}}))

    assert written.startswith("Before.\n\n| taken out |")
    assert written.endswith("|\n\nAfter.\n")
    assert "| order | 3 | two at once: … … |\n" in written
    assert "| old |" not in written


def test_names_of_cuts_are_unique() -> None:
    assert len({cut.name for cut in CUTS}) == len(CUTS) >= 22


def test_a_cut_is_found_within_a_few_seeds(tmp_path: Path) -> None:
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
