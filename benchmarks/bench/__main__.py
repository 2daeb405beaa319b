"""Deliveries a second, CPU, latency and memory, compared with the SDKs' own senders.

python -m benchmarks.bench [--quick] [--only NAME …] [--rounds 5] [--json FILE]

Receivers are compared with a bare handler of aiohttp (`receiving.py`): `--only receiver`. The
gateway is compared with a bare proxy of aiohttp (`proxying.py`): `--only gateway`.

Every scenario has two or more sides. They run in turn, round by round, each in its own process,
with the webhook in another one; on a machine with two cores, each process has its own core. A
figure is the median of the rounds. Ratios, of medians of the same run, tell more than the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.bench import pinned
from benchmarks.bench.proxying import BARE, COMPARED, GATEWAY, Passing, Proxies
from benchmarks.bench.receiving import COMPARISONS, Arrivals, Comparison
from benchmarks.bench.sides import Load
from tests.databases import PostgresServer, fresh
from tests.verification.interop.environments import UnavailableError, node, node_modules

HERE = Path(__file__).resolve().parent.parent.parent
SCRIPT = Path(__file__).resolve().parent / "a2a_js.mjs"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A comparison of senders."""

    name: str  # as in the table
    # The sides, each with its additions to the load; ratios are to the last one.
    sides: tuple[tuple[str, Mapping[str, Any]], ...]
    load: Mapping[str, Any]  # the load of all sides, as in `sides.Load`
    ports: int = 1  # the number of webhooks
    hang: int = 0  # how many of them never answer
    delay: float = 0.0  # how long each takes to answer, in seconds
    quick: bool = False  # whether it is part of a quick run


Figures: TypeAlias = dict[str, float]
Columns: TypeAlias = Sequence[tuple[str, str, str]]
Side: TypeAlias = tuple[str, Mapping[str, Any]]

OURS: Side = ("pushkit", {})
READY: Side = ("pushkit", {"events": False})
SDK: Side = ("a2a-sdk", {})
JAVASCRIPT: Side = ("@a2a-js/sdk", {})
AGENTS: tuple[Side, ...] = (("agent, pushkit", {}), ("agent, a2a-sdk", {}))
POSTGRES: Side = ("pushkit", {"database": "PostgreSQL"})

SCENARIOS = [
    Scenario(
        "64 tasks, SDK events",
        (OURS, READY, JAVASCRIPT, SDK),
        {"tasks": 64, "updates": 3200},
        quick=True,
    ),
    Scenario(
        "64 tasks, beside a2a-sdk where it is best",
        (OURS, ("a2a-sdk", {"tasks": 4})),
        {"tasks": 64, "updates": 3200},
    ),
    # The SDK's sender gets quicker the longer it runs.
    Scenario(
        "64 tasks, 12,800 updates",
        (OURS, SDK),
        {"tasks": 64, "updates": 12_800},
    ),
    Scenario(
        "1 task, SDK events",
        (OURS, READY, JAVASCRIPT, SDK),
        {"tasks": 1, "updates": 600},
        quick=True,
    ),
    Scenario(
        "1,000 tasks, 100 destinations", (OURS, SDK), {"tasks": 1000, "updates": 4000}, ports=100
    ),
    Scenario("64 tasks, 10 KB", (OURS, SDK), {"tasks": 64, "updates": 1920, "body_bytes": 10_000}),
    Scenario("64 tasks, 100 KB", (OURS, SDK), {"tasks": 64, "updates": 640, "body_bytes": 100_000}),
    Scenario(
        "64 tasks, Ed25519",
        (("pushkit", {"algorithm": "EdDSA"}), OURS),
        {"tasks": 64, "updates": 3200},
    ),
    Scenario("1 task, 50 a second", (OURS, SDK), {"tasks": 1, "updates": 200, "rate": 50.0}),
    Scenario("100 a second", (OURS, SDK), {"tasks": 10, "updates": 400, "rate": 100.0}),
    Scenario("1,000 a second", (OURS, SDK), {"tasks": 64, "updates": 3200, "rate": 1000.0}),
    Scenario("2,500 a second", (OURS, SDK), {"tasks": 64, "updates": 6400, "rate": 2500.0}),
    *(
        Scenario(
            f"an agent's task of four events, webhooks of {milliseconds:,} ms",
            AGENTS,
            {"tasks": 4, "updates": updates},
            delay=milliseconds / 1000,
        )
        for milliseconds, updates in ((0, 640), (100, 160), (1000, 16))
    ),
    Scenario(
        "64 tasks at one host, 256 attempts at once there",
        (("pushkit", {"concurrency": 256}), OURS),
        {"tasks": 64, "updates": 6400},
    ),
    Scenario("64 tasks, 64 hosts", (OURS, ("a2a-sdk", {"tasks": 4})), {"tasks": 64}, ports=64),
    *(
        Scenario(
            f"{tasks:,} tasks at one host",
            (OURS, ("pushkit", {"tasks": 16})),
            {"tasks": tasks, "updates": max(tasks, 6400)},
        )
        for tasks in (64, 1000, 4000)
    ),
    # The curve of `plot.py`. With 1,000 tasks and more, the SDK's sender delivers nothing.
    *(
        Scenario(
            f"CPU over tasks: {tasks:,}",
            (OURS, SDK) if tasks < 1000 else (OURS,),
            {"tasks": tasks, "updates": max(tasks, 1000 if tasks == 1 else 3200)},
        )
        for tasks in (1, 4, 16, 64, 256, 1000, 4000)
    ),
    Scenario(
        "64 tasks, webhooks of 20 ms",
        (OURS, ("pushkit", {"tasks": 16})),
        {"tasks": 64, "updates": 3200},
        delay=0.02,
    ),
    Scenario(
        "backlog of 2,000 tasks after an outage",
        (("draining", {"tasks": 2000, "backlog": 8000}), ("pushkit", {"tasks": 16})),
        {"updates": 6400},
    ),
    Scenario(
        "64 tasks, PostgreSQL",
        (POSTGRES, OURS, ("a2a-sdk", {"tasks": 1})),
        {"tasks": 64, "updates": 3200},
    ),
    Scenario("1,000 tasks, PostgreSQL", (POSTGRES, OURS), {"tasks": 1000, "updates": 5000}),
    *(
        Scenario(
            f"{workers} workers, PostgreSQL",
            (("pushkit", {"database": "PostgreSQL", "workers": workers}), POSTGRES),
            {"tasks": 64, "updates": 12_800},
        )
        for workers in (2, 4)
    ),
    Scenario(
        "1 of 100 destinations hangs, 500 a second",
        (("pushkit", {"hanging": 1}), ("pushkit", {"left_out": 1})),
        {"tasks": 200, "updates": 4000, "rate": 500.0},
        ports=100,
        hang=1,
    ),
    Scenario(
        "out of a backlog",
        (("draining", {"backlog": 1_000_000}), ("draining", {"backlog": 1000})),
        {"tasks": 64, "updates": 960},
    ),
    Scenario("one call", (READY, ("bare commit", {})), {"tasks": 1, "updates": 600}, quick=True),
    Scenario(
        "what it is made of",
        (("bare POST", {}), ("bare ES256", {})),
        {"tasks": 64, "updates": 6400},
        quick=True,
    ),
]


class Server:
    """A PostgreSQL server, started when it is first needed.

    Args:
        dsn: A running server to use instead; schemas are created and left there.
    """

    def __init__(self, dsn: str | None) -> None:
        self._dsn = dsn
        self._own: PostgresServer | None = None

    def fresh(self) -> str:
        """Return a DSN with an empty schema."""
        if self._dsn is None:
            self._own = PostgresServer()
            self._dsn = self._own.dsn
        return fresh(self._dsn)

    def remove(self) -> None:
        """Stop the server, if this process started it."""
        if self._own is not None:
            self._own.remove()


@dataclass
class Sink:
    """The webhooks, in another process."""

    ports: list[int]
    process: subprocess.Popen[str] = field(repr=False)

    def taken(self) -> dict[str, Any]:
        """Return what arrived since the last call."""
        url = f"http://127.0.0.1:{self.ports[0]}/stats"
        with urllib.request.urlopen(url, timeout=30) as answer:  # loopback
            said: dict[str, Any] = json.load(answer)
        return said


def python(module: str, *words: str, core: int) -> list[str]:
    """Return the command that runs a module on a core."""
    return [*pinned(core), sys.executable, "-m", module, *words]


@contextlib.contextmanager
def serving(scenario: Scenario) -> Iterator[Sink]:
    """Serve a scenario's webhooks."""
    words = ("--ports", str(scenario.ports), "--hang", str(scenario.hang))
    command = python("benchmarks.bench.sink", *words, "--delay", str(scenario.delay), core=1)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE) as process:
        assert process.stdout is not None  # noqa: S101
        try:
            yield Sink(json.loads(process.stdout.readline()), process)
        finally:
            process.kill()


def sent(
    scenario: Scenario, side: str, special: Mapping[str, Any], sink: Sink, server: Server
) -> Figures:
    """Run one side of a scenario once."""
    load = {"updates": 1000, **scenario.load, **special, "ports": sink.ports}
    if "database" in special:
        load["database"] = server.fresh()
    if side == JAVASCRIPT[0]:
        modules = node_modules("bench", "@a2a-js/sdk@1.3.0", "express@4")
        command = [*pinned(0), node(), str(SCRIPT), str(modules), json.dumps(load)]
    else:
        command = python("benchmarks.bench.sides", side, json.dumps(load), core=0)
    sink.taken()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=HERE, check=True)
    said, seen = json.loads(done.stdout), sink.taken()
    number = Load.parse(json.dumps(load)).answered
    if not side.startswith("bare ") and len(seen["ages"]) < number:
        lost = f"{len(seen['ages']):,} of {number:,} arrived"
        if "sdk" in side:  # it does not promise delivery: this run has no figures
            raise UnavailableError(lost)
        raise RuntimeError(f"{side}: {lost}")
    waits, ages = sorted(said["waits"]) or [0.0], sorted(seen["ages"]) or [0]
    return {
        "per_second": number / said["seconds"],
        "cpu_us": 1e6 * said["cpu"] / number,
        "wait_p50_ms": 1e3 * at(waits, 0.5),
        "wait_p99_ms": 1e3 * at(waits, 0.99),
        "arrival_p50_ms": 1e-6 * at(ages, 0.5),
        "arrival_p99_ms": 1e-6 * at(ages, 0.99),
        "peak_mib": said["peak_mib"],
    }


def received(side: str, arrivals: Arrivals, server: Server) -> Figures:
    """Run one receiver of a comparison once."""
    given = asdict(arrivals)
    if arrivals.database is not None:
        given["database"] = server.fresh()
    command = python("benchmarks.bench.receiving", side, json.dumps(given), core=1)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=HERE, check=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def passed_on(side: str, load: Passing) -> Figures:
    """Run one proxy of a comparison once."""
    command = python("benchmarks.bench.proxying", side, json.dumps(asdict(load)), core=0)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=HERE, check=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def label(side: str, special: Mapping[str, Any]) -> str:
    """Return a side's name in the table."""
    words = [
        "ready"
        if k == "events"
        else f"{v:,} {k.replace('_', ' ')}"
        if isinstance(v, int)
        else str(v)
        for k, v in special.items()
    ]
    return ", ".join([side, *words])


def at(ordered: Sequence[float], share: float) -> float:
    """Return a quantile."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def in_turn(runs: Mapping[str, Callable[[], Figures]], rounds: int) -> dict[str, Figures]:
    """Run the sides of a comparison in turn; return the medians of each, by its name."""
    found: dict[str, list[Figures]] = {}
    for _ in range(rounds):
        for side, run in runs.items():
            try:
                found.setdefault(side, []).append(run())
            except UnavailableError as exc:
                print(f"\n{side}: not counted: {exc}", flush=True)
    return {
        side: {name: statistics.median(one[name] for one in each) for name in each[0]}
        for side, each in found.items()
        if each
    }


def named(side: str, arrivals: Arrivals) -> str:
    """Return a receiver's name in the table."""
    more = {k: v for k, v in asdict(arrivals).items() if v != getattr(Arrivals(), k)}
    words = [str(v) for k, v in more.items() if k == "database"]
    words += [f"{more['backlog']:,} waiting"] if "backlog" in more else []
    words += [f"{more['processes']} processes"] if "processes" in more else []
    words += [f"{1000 * more['slow']:.0f} ms"] if "slow" in more else []
    return ", ".join([side, *words])


# The columns of a table: heading, figure and format. A ratio is to the last side; the ratio of CPU
# time is inverted, so that more is better.
RATIO = "ratio"
SENT = (
    ("per s", "per_second", ".0f"),
    (RATIO, "per_second", ".2f"),
    ("CPU µs", "cpu_us", ".1f"),
    ("call p50", "wait_p50_ms", ".2f"),
    ("p99 ms", "wait_p99_ms", ".2f"),
    ("arrives p50", "arrival_p50_ms", ".2f"),
    ("p99 ms", "arrival_p99_ms", ".2f"),
    ("MiB", "peak_mib", ".0f"),
)
RECEIVED = (
    ("answered/s", "answered", ".0f"),
    (RATIO, "answered", ".2f"),
    ("called/s", "called", ".0f"),
    (RATIO, "called", ".2f"),
    ("CPU µs", "cpu_us", ".1f"),
    (RATIO, "cpu_us", ".2f"),
    ("wait p50", "wait_p50_ms", ".2f"),
    ("call p50", "call_p50_ms", ".2f"),
)
PASSED = (
    ("per s", "per_second", ".0f"),
    (RATIO, "per_second", ".2f"),
    ("CPU µs", "cpu_us", ".1f"),
    (RATIO, "cpu_us", ".2f"),
    ("first p50", "wait_p50_ms", ".2f"),
    ("p99 ms", "wait_p99_ms", ".2f"),
)


def table(name: str, found: Mapping[str, Figures], columns: Columns) -> str:
    """Return the lines of a comparison."""
    base = list(found.values())[-1]
    lines = [f"\n{name}", f"  {'':30}{''.join(f'{heading:>12}' for heading, _, _ in columns)}"]
    for side, one in found.items():
        cells = []
        for heading, figure, written in columns:
            value = one[figure]
            if heading == RATIO:
                value = base[figure] / value if figure == "cpu_us" else value / base[figure]
            cells.append(f"{value:12{written}}")
        lines.append(f"  {side:30}{''.join(cells)}")
    return "\n".join(lines)


def main() -> int:
    """Run the scenarios, and print and keep their results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="The main scenarios, three rounds.")
    parser.add_argument("--only", action="append", help="Scenarios whose name contains this.")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--postgres", help="A DSN; by default a server is started.")
    given = parser.parse_args()
    rounds = given.rounds or (3 if given.quick else 5)
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {rounds} rounds"
    print(machine)
    results: dict[str, list[dict[str, Any]]] = {}
    server = Server(given.postgres)

    def chosen(each: Scenario | Comparison | Proxies) -> bool:
        wanted = not given.only or any(word in each.name for word in given.only)
        return wanted and (each.quick or not given.quick)

    def show(name: str, found: Mapping[str, Figures], columns: Columns) -> None:
        results[name] = [{"side": side, **figures} for side, figures in found.items()]
        print(table(name, found, columns), flush=True)

    for scenario in filter(chosen, SCENARIOS):
        with serving(scenario) as sink:
            runs = {
                label(side, special): functools.partial(sent, scenario, side, special, sink, server)
                for side, special in scenario.sides
            }
            show(scenario.name, in_turn(runs, rounds), SENT)
    for each in filter(chosen, COMPARISONS):
        receivers = {
            named(side, arrivals): functools.partial(received, side, arrivals, server)
            for side, arrivals in each.sides
        }
        show(each.name, in_turn(receivers, rounds), RECEIVED)
    for compared in filter(chosen, COMPARED):
        proxies = {
            side: functools.partial(passed_on, side, compared.load) for side in (GATEWAY, BARE)
        }
        show(compared.name, in_turn(proxies, rounds), PASSED)
    server.remove()
    if given.json:
        given.json.write_text(json.dumps({"machine": machine, "scenarios": results}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
