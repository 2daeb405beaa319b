"""Mutation testing: change the code in one place, and check that a test fails; a seeded sample.

python -m tests.verification.soak.mutate run --room signing --sample 40 --seed 7
python -m tests.verification.soak.mutate retry --room signing tests/unit/pushkit/test_audience.py
python -m tests.verification.soak.mutate report
python -m tests.verification.soak.mutate judge 1a2b3c4d "the second check refuses the same"

A mutant is a reversed comparison, a negated condition, or a changed constant, argument, statement
or piece of SQL. `ROOMS` lists the modules, and the tests that have to catch their mutants. The
tests run once without a mutant, to record which test runs which line. A mutant is then run against
the tests that run its line: one case of each test first, tests that start a process last.
Everything runs in a copy of the tree, one process at a time, at low priority. Results are appended
to one file: the same command continues an interrupted run, and a larger sample begins behind the
smaller one. The names of mutants survive changes of other code.
`retry` runs new tests against survivors. `judge` records that a mutant is equivalent to the code.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.verification.soak.mutants import Mutant, mutants_of
from tests.verification.soak.touched import (
    CANNOT,
    Chosen,
    Served,
    Touched,
    finish,
    place,
)

__all__ = ["ROOMS", "Result", "Room", "Scratch", "sample"]

# Modules that the tests import from other packages are imported once: each run is a fork.
for _name in (
    *("aiohttp.web", "anyio.pytest_plugin", "asyncpg", "click.testing", "http_sf", "httpx"),
    *("hypothesis", "jwcrypto.jwk", "jwt", "opentelemetry", "pydantic", "pytest_aiohttp"),
    *("pytest_asyncio", "tenacity", "trustme"),
):
    importlib.import_module(_name)

ROOT = Path(__file__).resolve().parents[3]
RESULTS = Path(tempfile.gettempdir()) / "pushkit-mutants.jsonl"
_COPIED = ("pushkit", "receiver", "tests", "examples", "docs", "pyproject.toml", "README.md")
_NICENESS = 5
_ALREADY_IMPORTED = "ignore::pytest.PytestAssertRewriteWarning"
_SPARE_SECONDS = 60.0
_MEASURED_SECONDS = 7200.0
_FIRST = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Modules that belong together, and their tests."""

    modules: tuple[str, ...]  # patterns of files
    tests: tuple[str, ...]  # folders and files of tests


def _in(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names.split())


_sender = partial(_in, "tests/unit/pushkit")
_receiver = partial(_in, "tests/unit/receiver")
_contract = partial(_in, "tests/contract")
_PIPELINE = (
    *_receiver("test_pipeline.py test_schemes.py"),
    *_contract("test_vectors.py test_wire_refusals.py"),
)
_DELIVERY = (
    *_sender("delivery outbox"),
    *_contract("test_wire_answers.py test_wire_requests.py"),
)
_FAULTS = ("tests/system/faults",)
_STORED = (*_DELIVERY, *_sender("subscriptions storage"), *_FAULTS)


def _room(modules: str, *tests: str) -> Room:
    return Room(modules=tuple(modules.split()), tests=tests)


ROOMS: Mapping[str, Room] = {
    "signing": _room(
        "pushkit/signing/*.py pushkit/webhook.py",
        *(*_PIPELINE, *_sender("signing cards/test_signing.py cards/test_headers.py")),
        *_sender("test_token.py test_webhook.py"),
    ),
    "keys": _room(
        "pushkit/keys/*.py pushkit/files.py",
        *_sender("keys cli delivery/test_remote_keys.py test_files.py"),
    ),
    "secrets": _room(
        "pushkit/secrets/*.py",
        *_sender("secrets delivery/test_sealed.py subscriptions/test_vault.py"),
    ),
    "cards": _room("pushkit/cards/*.py", *_sender("cards"), "tests/system/cli/test_card.py"),
    "net": _room(
        "pushkit/net/*.py",
        *(*_sender("net delivery/test_delivery.py"), *_receiver("test_hostile_keys.py")),
    ),
    "storage": _room("pushkit/storage/*.py", *_STORED),
    "subscriptions": _room("pushkit/subscriptions/*.py", *_sender("subscriptions"), *_DELIVERY),
    "outbox": _room("pushkit/outbox/*.py", *_STORED),
    "delivery": _room("pushkit/delivery/*.py", *_DELIVERY, *_FAULTS),
    "verification": _room(
        "receiver/verification.py receiver/selection.py receiver/signatures.py receiver/tokens.py"
        " receiver/notification.py",
        *(*_PIPELINE, "tests/contract/test_conformance.py"),
        *_receiver("test_unsigned.py test_keys_of_one_kid.py test_hostile_keys.py"),
        *_receiver("test_expected.py test_trust.py"),
    ),
    "accepting": _room(
        "receiver/accepting.py receiver/request_handler.py receiver/service_state.py"
        " receiver/refusals.py",
        *(*_PIPELINE, "tests/contract/test_refusals.py"),
        *_receiver("test_edge.py test_capacity.py test_expected.py test_replay.py test_limits.py"),
        *_receiver("test_log_of_refusals.py test_app.py test_asgi.py"),
    ),
    "queue": _room(
        *("pushkit/queue/*.py", "tests/verification/exhaustive", *_DELIVERY),
        *_receiver("callbacks"),
    ),
    "callbacks": _room("receiver/callbacks/*.py", *_receiver("callbacks test_life.py")),
    "receiver": _room(
        "receiver/registrations.py receiver/expectation.py receiver/limits.py pushkit/peers.py"
        " receiver/senders.py receiver/trust.py receiver/app.py receiver/asgi.py"
        " receiver/serve_command.py",
        "tests/unit/receiver",
    ),
    "inbox": _room(
        "receiver/inbox/*.py receiver/admin.py",
        *_receiver("inbox callbacks test_admin.py test_expected.py test_capacity.py"),
        *_receiver("test_replay.py"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of one mutant."""

    name: str  # the name of the mutant
    room: str
    seed: int  # the seed of the sample
    outcome: str  # `caught`, `late` (the tests did not end in time: caught), or `survived`
    by: str  # the test that caught it
    seconds: float  # how long that took
    where: str  # file and line
    what: str  # the kind of change
    diff: str  # the change
    commit: str  # the commit of the tree


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
        root: The tree to copy.
        folder: The copy.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "output"
        for name in _COPIED:
            source = root / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "node_modules", ".*")
                shutil.copytree(source, folder / name, ignore=ignored)
            elif source.exists():
                shutil.copy(source, folder / name)

    def digest(self) -> str:
        """Return a digest of all code."""
        texts = (path.read_bytes() for path in sorted(self.folder.rglob("*.py")))
        return sha256(b"".join(sha256(text).digest() for text in texts)).hexdigest()

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

    def start(self, tests: Iterable[str], plugin: Chosen | Served, *options: str) -> int:
        """Start a process that runs tests with a plugin; return its id."""
        process = os.fork()
        if process == 0:
            self._test(tests, plugin, options)
        return process

    def _test(
        self, tests: Iterable[str], plugin: Chosen | Served, options: Sequence[str]
    ) -> NoReturn:
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
        with self.output.open("w") as output:
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
        there = [test for test in tests if (self.folder / test).exists()]
        quiet = ["-q", "-p", "no:cacheprovider", "-W", _ALREADY_IMPORTED]
        if isinstance(plugin, Served):
            plugin.begin()
        os._exit(pytest.main([*quiet, *options, *there], plugins=[plugin]))


class Tests:
    """The tests of rooms, and the lines that each of them runs.

    They are collected once. A mutant of a function is patched into a fork of that process; a mutant
    of code that runs at import needs a new process.

    Args:
        scratch: The copy of the tree.
        tests: Folders and files of tests.
        modules: The files whose lines are recorded.
        kept: Where the record is kept, for the next run on the same tree.
    """

    def __init__(
        self, scratch: Scratch, tests: Sequence[str], modules: Collection[str], kept: Path
    ) -> None:
        self._scratch = scratch
        self._written = scratch.folder / "written"
        self._orders, theirs = Pipe()
        served = Served(scratch.folder, modules, theirs, self._written, self._orders)
        scratch.start(tests, served)
        theirs.close()
        about = {"tree": scratch.digest(), "tests": list(tests), "modules": sorted(modules)}
        found = json.loads(kept.read_text()) if kept.exists() else {}
        if found.get("about") != about:
            if self._status_of({"seconds": _MEASURED_SECONDS}) != 0:
                sys.exit(f"the tests cannot be run:\n{scratch.output.read_text()}")
            found = {"about": about, **json.loads(self._written.read_text())}
            kept.write_text(json.dumps(found))
        self.touched = {name: Touched(**one) for name, one in found["tests"].items()}
        self._at_import: dict[str, list[int]] = found["at_import"]

    def outcome(self, mutant: Mutant, portions: slice) -> tuple[str, str] | None:
        """Return what becomes of a mutant that meets some portions of its tests, and by whom."""
        path = self._scratch.folder / mutant.path
        before = path.read_text()
        lines = place(before, mutant.line)
        if lines is not None and lines.intersection(self._at_import.get(mutant.path, [])):
            lines = None
        change = {"path": str(path), "before": before, "after": mutant.applied(before)}
        with self._scratch.changed(mutant):
            for tests in filter(None, self._chosen(mutant.path, lines)[portions]):
                self._written.write_text("")
                seconds = 3 * sum(self.touched[test].seconds for test in tests) + _SPARE_SECONDS
                order = {"tests": tests, "change": change, "seconds": seconds}
                status: int | None = CANNOT
                if lines is not None:
                    status = self._status_of(order)
                if status == CANNOT:
                    files = dict.fromkeys(test.partition("::")[0] for test in tests)
                    plugin = Chosen(tests, self.touched, self._written)
                    status = finish(self._scratch.start(files, plugin, "-x"), seconds)
                if status != 0:
                    outcome = "late" if status is None else "caught"
                    return outcome, self._written.read_text() or "before any test"
        return None

    def _status_of(self, order: Mapping[str, object]) -> int | None:
        """Have tests run; return the status, None if they did not end."""
        self._orders.send(order)
        status: int | None = self._orders.recv()
        return status

    def _chosen(self, path: str, lines: frozenset[int] | None) -> list[list[str]]:
        """Return the tests that can catch a mutant, in portions, the most promising first.

        What runs at import can be noticed anywhere.
        """
        portions: list[list[str]] = [[], [], [], []]
        cases: Counter[str] = Counter()
        for name, one in sorted(self.touched.items(), key=lambda each: each[1].seconds):
            test, run = name.partition("[")[0], one.lines.get(path, [])
            if not one.passed:
                continue
            if one.processes:
                portions[3].append(name)
            elif lines.intersection(run) if lines is not None else run:
                portions[1 if cases[test] else 0].append(name)
                cases[test] += 1
            elif lines is None:
                portions[2].append(name)
        return [portions[0][:_FIRST], portions[0][_FIRST:], *portions[1:]]


def run(names: Sequence[str], *, seed: int, number: int, results: Path, root: Path = ROOT) -> None:
    """Try so many mutants of each room that have no result yet, and append the results."""
    commit = _commit(root)
    with tempfile.TemporaryDirectory(prefix="pushkit-mutants-") as folder:
        scratch = Scratch(root, Path(folder))
        chosen = {name: sample(ROOMS[name], seed, scratch.folder) for name in names}
        known = {(line["name"], line["seed"]) for line in _last(results)}
        started = time.monotonic()
        modules = {mutant.path for mutants in chosen.values() for mutant in mutants}
        wanted = sorted({test for one in names for test in ROOMS[one].tests})
        tests = Tests(scratch, wanted, modules, results.with_suffix(".touched.json"))
        sys.stdout.write(f"{len(tests.touched)} tests in {time.monotonic() - started:.0f} s\n")
        for test in [test for test, one in tests.touched.items() if not one.passed]:
            sys.stdout.write(f"fails without a mutant, left out: {test}\n")
        rest = [
            (name, mutant)
            for name, mutants in chosen.items()
            for mutant in mutants[:number]
            if (mutant.name, seed) not in known
        ]
        # Mutants caught by the first tests are reported soon, survivors of all tests at the end.
        for portions in (slice(0, 1), slice(1, 2), slice(2, None)):
            left: list[tuple[str, Mutant]] = []
            for name, mutant in rest:
                started = time.monotonic()
                judged = mutant.name in _judged(results)
                found = None if judged else tests.outcome(mutant, portions)
                if found is None and not judged and portions.stop is not None:
                    left.append((name, mutant))
                    continue
                outcome, by = found or ("survived", "")
                result = Result(
                    name=mutant.name,
                    room=name,
                    seed=seed,
                    outcome=outcome,
                    by=by,
                    seconds=round(time.monotonic() - started, 1),
                    where=f"{mutant.path}:{mutant.line}",
                    what=mutant.what,
                    diff=scratch.diff(mutant),
                    commit=commit,
                )
                _tell(result, results)
            rest = left


def retry(tests: Sequence[str], *, names: Sequence[str], results: Path, root: Path = ROOT) -> None:
    """Run these tests against the survivors of rooms, and append those that were caught."""
    survivors = [line for line in _survivors(_last(results)) if line["room"] in names]
    commit = _commit(root)
    with tempfile.TemporaryDirectory(prefix="pushkit-mutants-") as folder:
        scratch = Scratch(root, Path(folder))
        there = {
            mutant.name: mutant
            for room in {line["room"] for line in survivors}
            for mutant in sample(ROOMS[room], 0, scratch.folder)
        }
        for line in survivors:
            if line["name"] not in there:
                sys.stdout.write(f"no longer there: {line['name']} {line['where']}\n")
                continue
            written = scratch.folder / "written"
            written.write_text("")
            started = time.monotonic()
            with scratch.changed(there[line["name"]]):
                finish(scratch.start(tests, Chosen([], [], written), "-x"), _MEASURED_SECONDS)
            by = written.read_text()
            if by:
                line |= {"outcome": "caught", "by": by, "commit": commit}
                line["seconds"] = round(time.monotonic() - started, 1)
            _tell(Result(**{"by": by, **line}), results)


def _tell(result: Result, results: Path) -> None:
    with results.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")
    sys.stdout.write(f"{result.outcome} {result.where} {result.what} {result.by}\n")
    sys.stdout.flush()


def _commit(root: Path) -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _lines(results: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    )


def _judged(results: Path) -> set[str]:
    return {line["name"] for line in _lines(results) if "equivalent" in line}


def _last(results: Path) -> list[dict[str, Any]]:
    """Return the last result of every mutant; those that were judged are equivalent."""
    lines, judged = _lines(results), _judged(results)
    last = {(line["name"], line["seed"]): line for line in lines if "outcome" in line}
    for line in last.values():
        if line["outcome"] == "survived" and line["name"] in judged:
            line["outcome"] = "equivalent"
    return list(last.values())


def _survivors(last: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in last if line["outcome"] == "survived"]


def report(results: Path) -> None:
    """Print the score of every room, and each survivor with its diff."""
    last = _last(results)
    for line in _survivors(last):
        sys.stdout.write(f"--- {line['name']} {line['where']} {line['what']}\n{line['diff']}\n\n")
    counts: dict[str, Counter[str]] = {}
    for line in last:
        outcome = "caught" if line["outcome"] == "late" else line["outcome"]
        counts.setdefault(f"{line['room']} (seed {line['seed']})", Counter())[outcome] += 1
    for room, count in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        telling = count["caught"] + count["survived"]
        share = 100 * count["caught"] / telling if telling else 100.0
        sys.stdout.write(
            f"{room:28} caught {count['caught']:4}  survived {count['survived']:3}"
            f"  equivalent {count['equivalent']:3}  {share:5.1f} %\n"
        )


@contextlib.contextmanager
def _servers() -> Iterator[None]:
    """Have one PostgreSQL for all tests of all mutants."""
    command = [sys.executable, "-c", _SERVERS]
    ends = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=ends, stdout=ends, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        os.environ.update(json.loads(process.stdout.readline()))
        yield
        process.stdin.close()


_SERVERS = """
import json, sys
from tests.databases import PostgresServer
server = PostgresServer()
print(json.dumps({"PUSHKIT_TEST_POSTGRES_DSN": server.dsn}), flush=True)
sys.stdin.read()
server.remove()
"""


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("--room", choices=[*ROOMS], action="append", dest="rooms")
    running.add_argument("--sample", type=int, default=25, help="how many of each room")
    running.add_argument("--seed", type=int, default=0, help="another seed: another sample")
    retrying = commands.add_parser("retry")
    retrying.add_argument("--room", choices=[*ROOMS], action="append", dest="rooms")
    retrying.add_argument("tests", nargs="+")
    commands.add_parser("report")
    judging = commands.add_parser("judge")
    judging.add_argument("name")
    judging.add_argument("reason")
    given = parser.parse_args()
    if given.command == "run":
        with _servers():
            rooms = given.rooms or list(ROOMS)
            run(rooms, seed=given.seed, number=given.sample, results=given.results)
    elif given.command == "retry":
        with _servers():
            retry(given.tests, names=given.rooms or list(ROOMS), results=given.results)
    elif given.command == "judge":
        with given.results.open("a") as file:
            file.write(json.dumps({"name": given.name, "equivalent": given.reason}) + "\n")
    else:
        report(given.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
