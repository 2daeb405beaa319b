"""Cuts: each fits the code, is listed in docs/testing.md, and one is found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.long_runs import share
from tests.verification.simulation.cuts import CUTS, Cut
from tests.verification.simulation.edits import Edit, returns, skips
from tests.verification.simulation.regressions import REGRESSIONS
from tests.verification.simulation.removals import listed, source_without, table, written_into

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "testing.md"
# Other errors of types, such as values that are never used, are no mistake here.
GONE = ("[name-defined]", "[attr-defined]", "[call-arg]")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        pytest.param(returns("pushkit.url:gone", "1"), "pushkit.url:gone is gone", id="its place"),
        pytest.param(
            skips("pushkit.url:Url.parse", "gone"), "a call of gone", id="what it changes there"
        ),
    ],
)
def test_a_cut_whose_code_is_gone_fails_by_its_name(edit: Edit, message: str) -> None:
    with pytest.raises(LookupError, match=f"the cut `lost`: .*{message}"):
        source_without(Cut("lost", "Nothing is lost.", ("lost",), (edit,)))


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.name)
def test_every_cut_applies_to_the_code(cut: Cut) -> None:
    for module, source in source_without(cut).items():
        compile(source, module, "exec", dont_inherit=True)


@pytest.mark.slow
def test_no_cut_uses_a_name_that_is_gone(tmp_path: Path) -> None:
    """A removal that ends in a NameError would be found, whatever the simulation checks."""
    checked = ROOT / ".mypy_cache"  # by `make check`: most modules are as they were
    if checked.is_dir():
        shutil.copytree(checked, tmp_path / "cache")
    left = list(CUTS)
    while left:
        sources, left = without_all_that_fit(left)
        errors = check_types(sources, tmp_path).splitlines()
        assert not [line for line in errors if line.endswith(GONE)]


def without_all_that_fit(cuts: Sequence[Cut]) -> tuple[dict[str, str], list[Cut]]:
    """Take out the first cut, and all others that fit beside; return the sources, and the rest."""
    sources: dict[str, str] = {}
    left = []
    for cut in cuts:
        try:
            sources = source_without(cut, sources)
        except LookupError:
            left.append(cut)
    assert len(left) < len(cuts)
    return sources, left


def check_types(sources: Mapping[str, str], folder: Path) -> str:
    """Run mypy on both packages with the changed sources of some modules; return its output."""
    shadows: list[str] = []
    for module, source in sources.items():
        changed = folder / f"{module}.py"
        changed.write_text(source)
        original = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        shadows += ["--shadow-file", str(original), str(changed)]
    command = [sys.executable, "-m", "mypy", *shadows, "--cache-dir", str(folder / "cache")]
    checked = subprocess.run(  # our own command
        [*command, "-p", "pushkit", "-p", "receiver"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert checked.returncode in {0, 1}, checked.stdout + checked.stderr
    return checked.stdout


def test_the_page_lists_every_cut_with_its_seed() -> None:
    told = listed(PAGE.read_text())

    assert set(told) == {cut.name for cut in CUTS}
    scenarios = {seed for seed in told.values() if not seed.isdigit()}
    assert scenarios <= {"-", *REGRESSIONS}
    unseen = {name for name, seed in told.items() if seed == "-"}
    assert unseen == {"turns of owners", "turns of queues", "lock order"}


def test_the_table_of_a_page_is_replaced() -> None:
    page = "Before.\n\n| taken out | seed |\n|---|---|\n| old | 1 |\n\nAfter.\n"
    saw = "two at once: dlv_019b76dae4acfb332c92899ea59aab83 id=dlv_1 state=pending"

    written = written_into(page, table({"order": {"seed": 3, "saw": saw}}))

    assert written.startswith("Before.\n\n| taken out |")
    assert written.endswith("|\n\nAfter.\n")
    assert "| order | 3 | two at once: … … |\n" in written
    assert "| old |" not in written


def test_names_of_cuts_are_unique() -> None:
    assert len({cut.name for cut in CUTS}) == len(CUTS) >= 70


# Of those that a handwritten scenario finds: `make test-long` plays all of them.
BY_SCENARIO = [name for name, seed in listed(PAGE.read_text()).items() if seed in REGRESSIONS]


@pytest.mark.parametrize("name", ["order", *share(BY_SCENARIO, 0, 12)])
def test_a_cut_is_found_by_the_seed_that_the_page_lists(name: str, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    command = [sys.executable, "-m", "tests.verification.simulation.removals", "--only", name]
    played = subprocess.run(
        [*command, "--seeds", "20", "--results", str(results)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert played.returncode == 0, played.stdout + played.stderr
    assert json.loads(results.read_text())["seed"] is not None
