"""`python -m tests.simulation`: play many seeds, or one with its trace.

    python -m tests.simulation --count 1000              seeds 0 to 999
    python -m tests.simulation --from 5000 --count 1000  the next part of a long run
    python -m tests.simulation --seed 4711 --trace       one again, with all that happened

The process begins again with `PYTHONHASHSEED=0`, and takes chance, time and sockets from the seed:
what is imported before `take_over` must not come from pushkit.
"""

from __future__ import annotations

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])  # noqa: S606

from tests.simulation.surroundings import take_over

_SURROUNDINGS = take_over()

import argparse  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import logging  # noqa: E402
from collections import Counter  # noqa: E402
from pathlib import Path  # noqa: E402

from pushkit.keys.jwk import Algorithm, generate_key  # noqa: E402
from tests.simulation.kept import KEPT  # noqa: E402
from tests.simulation.play import Outcome, play  # noqa: E402
from tests.simulation.scenario import Scenario, make_scenario  # noqa: E402
from tests.simulation.shrink import shrink  # noqa: E402

_KEY = generate_key(Algorithm.ES256)


def main() -> int:
    """Play, and return the exit code."""
    args = _arguments()
    logging.disable(logging.CRITICAL)
    if args.kept:
        return _play_kept()
    first = args.first if args.seed is None else args.seed
    count = args.count if args.seed is None else 1
    moves: Counter[str] = Counter()
    failed, simulated = [], 0.0
    for seed in range(first, first + count):
        outcome = _play(make_scenario(seed))
        simulated += outcome.simulated
        moves.update(outcome.moves)
        if args.trace:
            print("\n".join(outcome.trace))
        if outcome.violations:
            failed.append(seed)
            _report(outcome, shrinks=args.shrink)
            if args.stop:
                break
        if args.digest:
            print(seed, hashlib.sha256("\n".join(outcome.trace).encode()).hexdigest())
    spent = os.times().user + os.times().system
    print(
        f"{count} seeds from {first}: {len(failed)} failed; {simulated / 86400:.1f} days simulated"
        f" in {spent:.1f} s of CPU, {count / spent:.1f} seeds/s on one core"
    )
    if args.coverage:
        for move, times in sorted(moves.items()):
            print(f"{times:8} {move}")
    if args.append:
        line = {"from": first, "count": count, "failed": failed, "cpu": round(spent, 1)}
        with Path(args.append).open("a") as file:
            file.write(json.dumps(line) + "\n")
    return 1 if failed else 0


def _play_kept() -> int:
    failed = 0
    for name, scenario in KEPT.items():
        violations = _play(scenario).violations
        failed += bool(violations)
        print(f"{name}:", *(violations or ("ok",)), sep="\n    ")
    return 1 if failed else 0


def _play(scenario: Scenario) -> Outcome:
    return play(scenario, _SURROUNDINGS, _KEY)


def _report(outcome: Outcome, *, shrinks: bool) -> None:
    print(f"seed {outcome.seed} broke {len(outcome.violations)} promises:")
    for violation in outcome.violations[:5]:
        print("   ", violation)
    if shrinks:
        kind = outcome.violations[0].partition(":")[0]
        smallest = shrink(
            make_scenario(outcome.seed),
            lambda each: any(v.startswith(kind) for v in _play(each).violations),
        )
        print("  still broken by:", *(str(step) for step in smallest.steps), sep="\n    ")
    print(f"  python -m tests.simulation --seed {outcome.seed} --trace")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="play this one alone")
    parser.add_argument("--from", dest="first", type=int, default=0, metavar="N")
    parser.add_argument("--count", type=int, default=100, metavar="M")
    parser.add_argument("--trace", action="store_true", help="print all that happened")
    parser.add_argument("--digest", action="store_true", help="print a hash of each trace")
    parser.add_argument("--kept", action="store_true", help="play the stories of former defects")
    parser.add_argument("--shrink", action="store_true", help="look for the smallest story")
    parser.add_argument("--stop", action="store_true", help="end with the first that fails")
    parser.add_argument("--coverage", action="store_true", help="print which moves were made")
    parser.add_argument("--append", metavar="FILE", help="add the result as a line of JSON")
    return parser.parse_args()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # tasks of killed processes must not clean up now
