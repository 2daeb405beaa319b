"""`python -m tests.verification.simulation`: play many seeds, or one with its trace.

    --count 1000                      seeds 0 to 999, on all cores
    --count 100 --containing losses   so many seeds with a generator of `workload`
    --count 1000 --append FILE        only seeds without a result in FILE
    --total FILE                      add up the results of FILE
    --seed 4711 --trace --shrink      one seed, with its trace
    --scenario FILE --trace           a handwritten scenario

The process restarts itself with `PYTHONHASHSEED=0`, and replaces random numbers, time and sockets.
Nothing of pushkit may be imported before `take_over` has done so.
"""

from __future__ import annotations

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.verification.simulation", *sys.argv[1:]])  # noqa: S606

from tests.verification.simulation.removals import take_out
from tests.verification.simulation.surroundings import take_over

if "--without" in sys.argv[:-1]:
    take_out(sys.argv[sys.argv.index("--without") + 1])

_SURROUNDINGS = take_over()

import argparse  # noqa: E402
import hashlib  # noqa: E402
import itertools  # noqa: E402
import textwrap  # noqa: E402
from collections import Counter  # noqa: E402
from pathlib import Path  # noqa: E402

from pushkit.keys.jwk import Algorithm, generate_key  # noqa: E402
from tests.verification.simulation import coverage  # noqa: E402
from tests.verification.simulation.play import Outcome, play  # noqa: E402
from tests.verification.simulation.promises import TRANSITIONS  # noqa: E402
from tests.verification.simulation.regressions import REGRESSIONS  # noqa: E402
from tests.verification.simulation.results import Results, commit_here  # noqa: E402
from tests.verification.simulation.running import Part, Played, parts_of, play_parts, run_in_fork  # noqa: E402
from tests.verification.simulation.scenario import Scenario, as_python, from_python, make_scenario  # noqa: E402
from tests.verification.simulation.shrink import kind_of, shrink  # noqa: E402

_KEY = generate_key(Algorithm.ES256)


def main() -> int:
    """Play what the arguments ask for, and return the exit code."""
    args = _arguments()
    if args.regressions:
        return _play_regressions()
    if args.total:
        print(Results(args.total, "").total())
        return 0
    if args.scenario:
        return _play_one(from_python(args.scenario.read_text()), args)
    if args.seed is not None:
        return _play_one(make_scenario(args.seed), args)
    return _play_many(args)


def _play_one(scenario: Scenario, args: argparse.Namespace) -> int:
    outcome = _play(scenario)
    if args.trace:
        print("\n".join(outcome.trace))
    if args.digest:
        print(scenario.seed, _digest(outcome))
    again = f"--scenario {args.scenario}" if args.scenario else f"--seed {scenario.seed}"
    report = _report(scenario, outcome, again, shrinks=args.shrink)
    print(report or f"{again.removeprefix('--')} keeps every promise")
    return 1 if outcome.violations else 0


def _play_many(args: argparse.Namespace) -> int:
    def contains(seed: int) -> bool:
        return not args.containing or args.containing in make_scenario(seed).generators.split()

    def play_seed(seed: int) -> Played:
        scenario = make_scenario(seed)
        outcome = _play(scenario)
        digest = f"{seed} {_digest(outcome)}" if args.digest else ""
        return Played(
            seed=seed,
            violations=outcome.violations[:5],
            simulated=outcome.simulated,
            moves=outcome.moves,
            report=_report(scenario, outcome, f"--seed {seed}", shrinks=args.shrink) or digest,
        )

    seeds = set(itertools.islice(filter(contains, itertools.count(args.first)), args.count))
    results = Results(args.append, commit_here()) if args.append else None
    began = os.times().elapsed
    parts: list[Part] = []
    for part in play_parts(
        parts_of(seeds - results.known() if results else seeds), play_seed, jobs=args.jobs
    ):
        parts.append(part)
        if results:
            results.add(part)
        for each in part.played:
            if each.report:
                print(each.report, flush=True)
        if args.stop and any(each.violations for each in part.played):
            break
    print(_sum(parts, args.first, os.times().elapsed - began))
    if args.coverage:
        moves: Counter[str] = Counter()
        for part in parts:
            for each in part.played:
                moves.update(each.moves)
        print(coverage.table_of(moves, TRANSITIONS))
    return 1 if any(each.violations for part in parts for each in part.played) else 0


def _sum(parts: list[Part], first: int, wall: float) -> str:
    played = [each for part in parts for each in part.played]
    cpu = sum(part.cpu for part in parts) or 1e-9
    return (
        f"{len(played)} seeds from {first}: {sum(bool(each.violations) for each in played)} failed;"
        f" {sum(each.simulated for each in played) / 86400:.1f} days simulated in {wall:.0f} s,"
        f" {cpu:.0f} s of CPU: {len(played) / max(wall, 1e-9):.1f} seeds/s,"
        f" {len(played) / cpu:.1f} on one core"
    )


def _digest(outcome: Outcome) -> str:
    return hashlib.sha256("\n".join(outcome.trace).encode()).hexdigest()


def _play_regressions() -> int:
    failed = 0
    for name, scenario in REGRESSIONS.items():
        violations = _play(scenario).violations
        failed += bool(violations)
        print(f"{name}:", *(violations or ("ok",)), sep="\n    ")
    return 1 if failed else 0


def _play(scenario: Scenario) -> Outcome:
    return play(scenario, _SURROUNDINGS, _KEY)


def _report(scenario: Scenario, outcome: Outcome, again: str, *, shrinks: bool) -> str:
    """Return a report of a scenario that failed; an empty string if it did not.

    Args:
        scenario: The scenario.
        outcome: Its outcome.
        again: The arguments that play it again.
        shrinks: Whether to search for the smallest scenario that fails in the same way.
    """
    if not outcome.violations:
        return ""
    lines = [f"{again.removeprefix('--')} broke {len(outcome.violations)} promises:"]
    lines += [f"    {violation}" for violation in outcome.violations[:5]]
    if shrinks:
        kind = kind_of(outcome.violations[0])

        def fails(scenario: Scenario) -> bool:
            return run_in_fork(lambda: kind in map(kind_of, _play(scenario).violations))

        smallest = shrink(scenario, fails)
        lines += [
            "  still broken by:",
            textwrap.indent(as_python(smallest), "    "),
            "  whose trace is:",
        ]
        lines += [f"    {line}" for line in _play(smallest).trace[-60:]]
    lines.append(f"  python -m tests.verification.simulation {again} --trace")
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.verification.simulation")
    parser.add_argument("--seed", type=int, help="play this seed only")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="play the scenario in a file")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N")
    parser.add_argument("--count", type=int, default=100, metavar="M")
    parser.add_argument("--containing", metavar="GENERATOR", help="only such seeds")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--trace", action="store_true", help="print the trace of a --seed")
    parser.add_argument("--digest", action="store_true", help="print a hash of each trace")
    parser.add_argument("--without", metavar="NAME", help="take a promise of `cuts.py` out first")
    parser.add_argument(
        "--regressions", action="store_true", help="play the scenarios of former defects"
    )
    parser.add_argument("--shrink", action="store_true", help="search for the smallest scenario")
    parser.add_argument("--stop", action="store_true", help="end after a part with a failure")
    parser.add_argument("--coverage", action="store_true", help="print the changes of state")
    parser.add_argument(
        "--append", metavar="FILE", type=Path, help="add results to FILE; skip seeds that it has"
    )
    parser.add_argument("--total", metavar="FILE", type=Path, help="add up the results of FILE")
    return parser.parse_args()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # tasks of killed processes must not clean up now
