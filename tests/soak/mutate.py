"""Change the code in one place, and see whether a test notices, for a seeded sample of places.

python tests/soak/mutate.py run --room signing --seed 7 --count 40 [--from 40]
python tests/soak/mutate.py report
python tests/soak/mutate.py judge 1a2b3c4d "the second check refuses the same"

A mutant is a comparison turned round, a condition negated, a constant, an argument, a statement or
a piece of SQL changed. `ROOMS` says which modules carry promises, and which tests hold them: the
near ones run first, the others only for what these let pass. All of it happens in a copy of the
tree, one process at a time, at low priority. Results are appended to one file, so that a run goes
on with `--from`; mutants have names that survive changes elsewhere. Whether a survivor is
equivalent to the code, a person says with `judge`.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

# What the tests import from elsewhere is imported once: each run of them is a fork of this process.
import aiohttp.web  # noqa: E402, F401
import asyncpg  # noqa: E402, F401
import hypothesis  # noqa: E402, F401
import jwcrypto.jwk  # type: ignore[import-untyped]  # noqa: E402, F401
import pydantic_settings  # noqa: E402, F401
import pytest  # noqa: E402

from tests.soak.mutants import Mutant, mutants_of  # noqa: E402  # also run as a script

__all__ = ["ROOMS", "Result", "Room", "Scratch", "sample"]

RESULTS = Path(tempfile.gettempdir()) / "pushkit-mutants.jsonl"
_COPIED = ("pushkit", "receiver", "tests", "examples", "docs", "pyproject.toml", "README.md")
_NICENESS = 10
_ALREADY_IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"
_SPARE_SECONDS = 60.0
_MEASURED_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Modules that belong together, and who holds them to their promises.

    Attributes:
        modules: Patterns of files.
        near: Tests that run for every mutant.
        far: Tests that run for a mutant that the near ones let pass.
    """

    modules: tuple[str, ...]
    near: tuple[str, ...]
    far: tuple[str, ...] = ()


_PIPELINE = ("tests/receiver/test_pipeline.py", "tests/receiver/test_schemes.py")
_DELIVERY = ("tests/pushkit/delivery", "tests/pushkit/outbox")
_STORED = (*_DELIVERY, "tests/pushkit/subscriptions", "tests/pushkit/storage", "tests/faults")

ROOMS: Mapping[str, Room] = {
    "signing": Room(
        modules=("pushkit/signing/*.py",),
        near=("tests/pushkit/signing",),
        far=(*_PIPELINE, "tests/cards/test_signing.py", "tests/cards/test_headers.py"),
    ),
    "keys": Room(
        modules=("pushkit/keys/*.py",),
        near=("tests/pushkit/keys",),
        far=("tests/pushkit/cli", "tests/pushkit/delivery/test_remote_keys.py"),
    ),
    "secrets": Room(
        modules=("pushkit/secrets/*.py",),
        near=("tests/pushkit/secrets",),
        far=("tests/pushkit/delivery/test_sealed.py", "tests/pushkit/subscriptions/test_vault.py"),
    ),
    "cards": Room(modules=("pushkit/cards/*.py",), near=("tests/cards",), far=("tests/cli",)),
    "net": Room(
        modules=("pushkit/net/*.py",),
        near=("tests/pushkit/net",),
        far=("tests/receiver/test_hostile_keys.py", "tests/pushkit/delivery/test_delivery.py"),
    ),
    "storage": Room(
        modules=("pushkit/storage/*.py",),
        near=("tests/pushkit/storage",),
        far=("tests/faults/test_sqlite.py", "tests/faults/test_postgresql.py", *_DELIVERY),
    ),
    "subscriptions": Room(
        modules=("pushkit/subscriptions/*.py",),
        near=("tests/pushkit/subscriptions",),
        far=_DELIVERY,
    ),
    "outbox": Room(modules=("pushkit/outbox/*.py",), near=("tests/pushkit/outbox",), far=_STORED),
    "delivery": Room(modules=("pushkit/delivery/*.py",), near=_DELIVERY, far=("tests/faults",)),
    "verification": Room(
        modules=(
            *("receiver/verify.py", "receiver/selection.py", "receiver/credentials.py"),
            *("receiver/pipeline.py", "receiver/admission.py", "receiver/verdicts.py"),
        ),
        near=(*_PIPELINE, "tests/receiver/test_unsigned.py", "tests/receiver/test_trust.py"),
        far=("tests/receiver", "tests/soak/test_fuzz_receiver.py"),
    ),
    "replay": Room(
        modules=("receiver/replay/*.py",),
        near=("tests/receiver/replay", "tests/receiver/test_replay.py"),
        far=("tests/receiver/test_shared_state.py", "tests/receiver/test_pipeline.py"),
    ),
    "receiver": Room(
        modules=(
            *("receiver/expected.py", "receiver/expecting.py", "receiver/limits.py"),
            *("receiver/peers.py", "receiver/trust.py", "receiver/trusted_keys.py"),
            *("receiver/edge.py", "receiver/app.py", "receiver/asgi.py", "receiver/reload.py"),
            "receiver/connections.py",
        ),
        near=(
            *("tests/receiver/test_expected.py", "tests/receiver/test_expected_store.py"),
            *("tests/receiver/test_limits.py", "tests/receiver/test_peers.py"),
            *("tests/receiver/test_trust.py", "tests/receiver/test_edge.py"),
        ),
        far=("tests/receiver",),
    ),
    "inbox": Room(
        modules=("receiver/inbox/*.py", "receiver/callbacks/*.py", "receiver/admin.py"),
        near=("tests/receiver/inbox", "tests/receiver/callbacks", "tests/receiver/test_admin.py"),
        far=("tests/receiver",),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one mutant.

    Attributes:
        name: The mutant's.
        room: Where it is.
        seed: Of the sample.
        outcome: `caught`, `late` (no end in time: caught), or `survived`.
        seconds: How long that took.
        where: File and line.
        what: Which kind of change.
        diff: What was changed.
        commit: Of the tree.
    """

    name: str
    room: str
    seed: int
    outcome: str
    seconds: float
    where: str
    what: str
    diff: str
    commit: str


def sample(room: Room, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Return all mutants of a room in the order of a seed; the rest keeps it if one goes."""
    files = sorted({path for pattern in room.modules for path in root.glob(pattern)})
    found = [
        mutant
        for path in files
        for mutant in mutants_of(path.read_text(), str(path.relative_to(root)))
    ]
    return sorted(found, key=lambda one: sha256(f"{seed} {one.name}".encode()).digest())


class Scratch:
    """A copy of the tree in which one file at a time is changed.

    Args:
        root: What is copied.
        folder: Where to.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        for name in _COPIED:
            source = root / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "node_modules", ".*")
                shutil.copytree(source, folder / name, ignore=ignored)
            elif source.exists():
                shutil.copy(source, folder / name)

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Apply a mutant for as long as this lasts."""
        path = self.folder / mutant.path
        before = path.read_text()
        path.write_text(mutant.applied(before))
        try:
            yield
        finally:
            path.write_text(before)

    def diff(self, mutant: Mutant) -> str:
        """Return what a mutant changes."""
        before = (self.folder / mutant.path).read_text()
        texts = (before.splitlines(), mutant.applied(before).splitlines())
        return "\n".join(difflib.unified_diff(*texts, mutant.path, mutant.path, lineterm="", n=1))

    def passes(self, tests: Sequence[str], *, seconds: float) -> bool | None:
        """Run tests until the first that fails; None if they do not end in time."""
        process = os.fork()
        if process == 0:
            self._test(tests)
        with os.fdopen(os.pidfd_open(process)) as ended:
            in_time, _, _ = select.select([ended], [], [], seconds)
        if not in_time:
            os.killpg(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        return status == 0 if in_time else None

    def _test(self, tests: Sequence[str]) -> NoReturn:
        """Be a process that runs tests: what they import from elsewhere is imported already."""
        os.setsid()
        os.nice(_NICENESS)
        os.chdir(self.folder)
        # The copy goes before what is installed, in every process that a test starts, too.
        os.environ.update(PYTHONPATH=str(self.folder), PYTHONDONTWRITEBYTECODE="1")
        sys.path[:] = [str(self.folder), *(path for path in sys.path if path != str(ROOT))]
        sys.dont_write_bytecode = True
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        with open(os.devnull, "w") as nowhere:  # noqa: PTH123  # it is none of ours
            for stream in (1, 2):
                os.dup2(nowhere.fileno(), stream)
        there = [test for test in tests if (self.folder / test).exists()]
        quiet = ["-x", "-q", "-p", "no:cacheprovider", "-W", _ALREADY_IMPORTED]
        os._exit(pytest.main([*quiet, *there]))


class Stage:
    """Tests that are tried on mutants; how long they may take is measured without one.

    Args:
        scratch: The copy of the tree.
        tests: The tests.
    """

    def __init__(self, scratch: Scratch, tests: Sequence[str]) -> None:
        self._scratch = scratch
        self._tests = tests
        self._limit: float | None = None

    def outcome(self, mutant: Mutant) -> str | None:
        """Return how a mutant was caught; None if it was not."""
        if self._limit is None:
            started = time.monotonic()
            if not self._scratch.passes(self._tests, seconds=_MEASURED_SECONDS):
                sys.exit(f"the tests fail without a mutant: {' '.join(self._tests)}")
            self._limit = 2 * (time.monotonic() - started) + _SPARE_SECONDS
        with self._scratch.changed(mutant):
            passed = self._scratch.passes(self._tests, seconds=self._limit)
        return None if passed else "late" if passed is None else "caught"


def run(room_name: str, *, seed: int, numbers: range, results: Path, root: Path = ROOT) -> None:
    """Try these mutants of a room's sample, and append what became of each."""
    room = ROOMS[room_name]
    commit = _commit(root)
    with tempfile.TemporaryDirectory(prefix="pushkit-mutants-") as folder:
        scratch = Scratch(root, Path(folder))
        chosen = sample(room, seed, scratch.folder)
        sys.stdout.write(f"{room_name}: {len(chosen)} mutants, seed {seed}, {numbers}\n")
        stages = [Stage(scratch, tests) for tests in (room.near, room.far) if tests]
        for number in numbers:
            if number >= len(chosen):
                return
            started = time.monotonic()
            mutant = chosen[number]
            caught = (stage.outcome(mutant) for stage in stages)
            outcome = next(filter(None, caught), "survived")
            result = Result(
                name=mutant.name,
                room=room_name,
                seed=seed,
                outcome=outcome,
                seconds=round(time.monotonic() - started, 1),
                where=f"{mutant.path}:{mutant.line}",
                what=mutant.what,
                diff=scratch.diff(mutant),
                commit=commit,
            )
            with results.open("a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            sys.stdout.write(f"{number} {result.outcome} {result.where} {result.what}\n")
            sys.stdout.flush()


def _commit(root: Path) -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def report(results: Path) -> None:
    """Print the score of every room, and each survivor with its diff."""
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    judged = {line["name"]: line["equivalent"] for line in lines if "equivalent" in line}
    last = {(line["name"], line["seed"]): line for line in lines if "outcome" in line}
    counts: dict[str, Counter[str]] = {}
    for line in last.values():
        outcome = "survived" if line["outcome"] == "survived" else "caught"
        if outcome == "survived" and line["name"] in judged:
            outcome = "equivalent"
        counts.setdefault(f"{line['room']} (seed {line['seed']})", Counter())[outcome] += 1
        if outcome == "survived":
            sys.stdout.write(
                f"--- {line['name']} {line['where']} {line['what']}\n{line['diff']}\n\n"
            )
    for room, count in sorted(counts.items()):
        telling = count["caught"] + count["survived"]
        share = 100 * count["caught"] / telling if telling else 100.0
        sys.stdout.write(
            f"{room:28} caught {count['caught']:4}  survived {count['survived']:3}"
            f"  equivalent {count['equivalent']:3}  {share:5.1f} %\n"
        )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--room", choices=[*ROOMS], action="append", dest="rooms")
    running.add_argument("--seed", type=int, default=0)
    running.add_argument("--from", type=int, default=0, dest="first")
    running.add_argument("--count", type=int, default=25)
    commands.add_parser("report")
    judging = commands.add_parser("judge")
    judging.add_argument("name")
    judging.add_argument("reason")
    given = parser.parse_args()
    if given.command == "run":
        numbers = range(given.first, given.first + given.count)
        for room in given.rooms or ROOMS:
            run(room, seed=given.seed, numbers=numbers, results=given.results)
    elif given.command == "judge":
        with given.results.open("a") as file:
            file.write(json.dumps({"name": given.name, "equivalent": given.reason}) + "\n")
    else:
        report(given.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
