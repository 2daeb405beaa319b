"""Shows that the simulation detects missing guarantees.

Each cut of `cuts.py` takes one guarantee out of the code: functions are changed while a process
imports them, and nothing is written to disk. That process plays seeds until one fails as the cut
says. The same seed is then played with the unchanged code: the cut is found if that passes. The
seed that the page lists comes first.

    python -m tests.verification.simulation.removals          all cuts
        --only fencing --seeds 500                            one of them
        --results FILE                                        continue where FILE ends
        --results FILE --page docs/testing.md                 and write the table there
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.verification.simulation.cuts import CUTS, Cut

__all__ = ["listed", "source_without", "table", "take_out", "written_into"]

_ROOT = Path(__file__).resolve().parents[3]
_PAGE = _ROOT / "docs" / "testing.md"
_ID = re.compile(r"\b[a-z]+_[0-9a-f]{16,}\b|\bid=.*|\['.*")  # and everything after an id
_SAW = 70  # characters of a violation that the table shows


def source_without(cut: Cut, before: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the changed source of each module of a cut, by module name.

    Args:
        cut: The cut.
        before: What other cuts changed already; it is returned, too.

    Raises:
        LookupError: What the cut changes is gone.
    """
    found = dict(before)
    for edit in cut.edits:
        path = _ROOT.joinpath(*edit.module.split(".")).with_suffix(".py")
        try:
            found[edit.module] = edit.applied(found.get(edit.module) or path.read_text())
        except (LookupError, OSError) as exc:
            raise LookupError(f"the cut `{cut.name}`: {exc}") from exc
    return found


class _Changed(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(self._source, self.get_filename(fullname), "exec", dont_inherit=True)


class _Finder:
    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if name not in self._sources or spec is None or spec.origin is None:
            return None
        loader = _Changed(name, spec.origin, self._sources[name])
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


def take_out(name: str) -> None:
    """Let this process import the code with a cut."""
    [cut] = (each for each in CUTS if each.name == name)
    sys.meta_path.insert(0, _Finder(source_without(cut)))


def _play(cut: Cut | None, first: int, count: int, scenario: str) -> None:
    """Play seeds, or a regression scenario, until one fails, and print which; run as a process."""
    if cut is not None:
        sys.meta_path.insert(0, _Finder(source_without(cut)))
    from tests.verification.simulation.surroundings import take_over

    surroundings = take_over()
    from pushkit.keys.jwk import Algorithm, generate_key
    from tests.verification.simulation.play import play
    from tests.verification.simulation.regressions import REGRESSIONS
    from tests.verification.simulation.scenario import make_scenario

    key = generate_key(Algorithm.ES256)
    seeds = map(make_scenario, range(first, first + count))
    for each in [REGRESSIONS[scenario]] if scenario else seeds:
        seen = play(each, surroundings, key).violations
        for said in seen:
            if cut is None or any(words in said for words in cut.seen):
                print(json.dumps({"seed": scenario or each.seed, "saw": said}))
                return


def _run(name: str, first: int, count: int, scenario: str = "") -> dict[str, object] | None:
    """Play in another process; return the first failure."""
    command = [sys.executable, "-m", "tests.verification.simulation.removals", "--play", name]
    played = subprocess.run(
        [*command, "--from", str(first), "--seeds", str(count), "--scenario", scenario],
        cwd=_ROOT,
        env=os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, object] | None = json.loads(played.stdout) if played.stdout.strip() else None
    return found


def _look_for(cut: Cut, first: int, count: int, known: str = "") -> dict[str, object]:
    """Return the known seed or scenario, or the first of so many seeds, that finds a cut."""
    if known not in {"", "-"}:
        which = (int(known), 1, "") if known.isdigit() else (0, 0, known)
        found = _run(cut.name, *which)
        if found is not None and _run("", *which) is None:
            return {"cut": cut.name, **found}
    end = first + count
    while first < end and (found := _run(cut.name, first, end - first)) is not None:
        seed = int(str(found["seed"]))
        if _run("", seed, 1) is None:
            return {"cut": cut.name, **found}
        first = seed + 1  # this seed also fails without the cut
    return {"cut": cut.name, "seed": None, "saw": f"not found until seed {end - 1}"}


def listed(page: str) -> dict[str, str]:
    """Return the seed that a page lists for each cut, or what stands there in its place."""
    rows = page.partition("| taken out | seed |")[2].partition("\n\n")[0].splitlines()[2:]
    return {name.strip(): seed.strip() for _, name, seed, *_ in (row.split("|") for row in rows)}


def table(found: Mapping[str, Mapping[str, object]]) -> str:
    """Return the results by cut as a Markdown table."""
    lines = ["| taken out | seed | what was seen |", "|---|---|---|"]
    for cut in CUTS:
        line = found.get(cut.name, {"seed": None, "saw": "not looked for"})
        seed = "-" if line["seed"] is None else line["seed"]
        saw = _ID.sub("…", str(line["saw"]))
        saw = saw if len(saw) <= _SAW else f"{saw[:_SAW]}…"
        lines.append(f"| {cut.name} | {seed} | {saw.replace('|', '/')} |")
    return "\n".join(lines)


def written_into(page: str, new: str) -> str:
    """Return a page with its table of cuts replaced."""
    before, begin, behind = page.partition("| taken out | seed |")
    if not begin:
        raise LookupError("expected a table that begins with: | taken out | seed |")
    return before + new + behind[behind.index("\n\n") :]


def main() -> int:
    """Look for the chosen cuts, and return the exit code."""
    args = _arguments()
    by_name = {cut.name: cut for cut in CUTS}
    if args.play is not None:
        _play(by_name.get(args.play), args.first, args.seeds, args.scenario)
        return 0
    results = Path(args.results) if args.results else None
    lines = results.read_text().splitlines() if results and results.exists() else []
    known = {line["cut"]: line for line in map(json.loads, lines)}
    seeds = listed(_PAGE.read_text())
    chosen = [by_name[name] for name in args.only] or list(CUTS)
    for cut in chosen:
        found = known.get(cut.name)
        if found is None or args.only:
            found = _look_for(cut, args.first, args.seeds, seeds.get(cut.name, ""))
            if results:
                with results.open("a") as file:
                    file.write(json.dumps(found) + "\n")
        known[cut.name] = found
        seed = "-" if found["seed"] is None else found["seed"]
        print(f"| {cut.name} | {cut.promise} | {seed} | {str(found['saw'])[:90]} |", flush=True)
    if args.page:
        args.page.write_text(written_into(args.page.read_text(), table(known)))
    missed = [cut.name for cut in chosen if known[cut.name]["seed"] is None]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} found; not found: {missed or 'none'}")
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.verification.simulation.removals")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--seeds", type=int, default=2000, help="how many to play for each")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="SEED")
    parser.add_argument(
        "--results", metavar="FILE", help="add results to FILE; skip cuts that it has"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table into this page")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    parser.add_argument("--scenario", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # tasks of killed processes must not clean up now
