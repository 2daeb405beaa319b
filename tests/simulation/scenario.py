"""What a seed decides: who there is, and what happens when. Plain data, so that it shrinks."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.simulation.strikes import add_strikes

__all__ = ["Scenario", "Step", "make_scenario"]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens.

    Attributes:
        at: When, in seconds.
        kind: The name of a method of `Play`.
        args: Its arguments.
    """

    at: float
    kind: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.at:9.3f} {self.kind}({', '.join(map(repr, self.args))})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A world and its story.

    Attributes:
        seed: Decides the order of what is ready, latencies and ids, too.
        agents: How many agents enqueue (and deliver, if there are no workers).
        workers: How many processes deliver and do nothing else.
        webhooks: How many plain webhooks there are.
        receivers: How many of our receivers.
        twins: Whether each receiver is two processes that share an inbox.
        postgres: Whether they share a PostgreSQL server; a SQLite file otherwise.
        steps: The story.
        ends: When all faults end.
    """

    seed: int
    agents: int
    workers: int
    webhooks: int
    receivers: int
    twins: bool
    postgres: bool
    steps: tuple[Step, ...]
    ends: float


_MOODS = (
    "ok",
    "ok",
    "ok",
    "slow",
    "late",
    "hang",
    "close",
    "drip",
    "500",
    "503",
    "429",
    "410",
    "400",
    "409",
    "404",
    "301",
    "garbage",
)
_FATES = ("refused", "silent", "reset", "reset_answer", "stall", "drip", "certificate")
_DISK_ERRORS = ("busy", "full", "error", "refused", "uncertain")
_SPAN = 120.0


def make_scenario(seed: int) -> Scenario:
    """Return what a seed decides."""
    chance = random.Random(f"scenario {seed}")
    postgres = chance.random() < 0.3
    agents = chance.choice((1, 1, 2, 3))
    workers = chance.choice((0, 0, 1, 2, 3))
    webhooks = chance.randint(1, 4)
    receivers = chance.choice((0, 0, 1, 2))
    twins = chance.random() < 0.3
    hosts = [f"hook{n}" for n in range(webhooks)] + [f"recv{n}" for n in range(receivers)]
    owners = [f"owner{n}" for n in range(chance.randint(1, 4))]
    tasks = [f"task{n}" for n in range(chance.randint(1, 6))]
    steps: list[Step] = []

    def add(at: float, kind: str, *args: Any) -> None:
        steps.append(Step(round(at, 3), kind, args))

    for task in tasks:
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            version = chance.choice(("1.0", "1.0", "0.3", "0.1"))
            add(
                chance.random() * 2,
                "subscribe",
                chance.randrange(agents),
                task,
                chance.choice(owners),
                chance.choice(hosts),
                version,
            )
    for task in tasks:
        at = 2 + chance.random() * _SPAN / 2
        for number in range(chance.randint(1, 8)):
            at += chance.expovariate(1.0) * chance.choice((0.01, 1.0, 10.0))
            if at < _SPAN:
                add(at, "notify", chance.randrange(agents), task, number)
        if chance.random() < 0.6:
            add(min(at + 1, _SPAN), "finish", chance.randrange(agents), task)
    _add_operators_work(chance, add, agents, tasks, owners, hosts)
    _add_faults(chance, add, agents, workers, receivers, twins, hosts[:webhooks], hosts)
    add_strikes(chance, add, _SPAN)
    steps.sort(key=lambda step: step.at)
    return Scenario(
        seed=seed,
        agents=agents,
        workers=workers,
        webhooks=webhooks,
        receivers=receivers,
        twins=twins,
        postgres=postgres,
        steps=tuple(steps),
        ends=_SPAN + 30,
    )


def _add_operators_work(
    chance: random.Random,
    add: Any,
    agents: int,
    tasks: list[str],
    owners: list[str],
    hosts: list[str],
) -> None:
    for kind in ("pause", "unsubscribe", "redrive", "move", "rotate"):
        while chance.random() < 0.25:
            at, agent = 2 + chance.random() * _SPAN, chance.randrange(agents)
            task, owner = chance.choice(tasks), chance.choice(owners)
            if kind in ("redrive", "rotate"):
                add(at, kind, agent)
            elif kind == "move":
                add(at, "subscribe", agent, task, owner, chance.choice(hosts), "1.0")
            else:
                add(at, kind, agent, task, owner)
            if kind == "pause":
                add(at + chance.random() * 20, "resume", agent, task, owner)


def _add_faults(
    chance: random.Random,
    add: Any,
    agents: int,
    workers: int,
    receivers: int,
    twins: bool,
    webhooks: list[str],
    hosts: list[str],
) -> None:
    units = [f"agent{n}" for n in range(agents)] + [f"worker{n}" for n in range(workers)]
    units += [f"recv{n}" for n in range(receivers)]
    units += [f"twin{n}" for n in range(receivers)] if twins else []
    stage = _Stage(units, webhooks, hosts)
    kinds, weights = list(_FAULTS), [weight for weight, _ in _FAULTS.values()]
    for _ in range(chance.choice((0, 1, 2, 4, 8))):
        at = 2 + chance.random() * _SPAN
        [what] = chance.choices(kinds, weights)
        for _ in range(chance.choice((1, 1, 1, 5)) if what in _REPEATED else 1):
            add(at, what, *_FAULTS[what][1](chance, stage))
            at += chance.random() * 3


@dataclass(frozen=True, slots=True)
class _Stage:
    units: list[str]
    webhooks: list[str]
    hosts: list[str]


# What may go wrong: how often beside the others, and the arguments of its step.
_FAULTS: dict[str, tuple[int, Callable[[random.Random, _Stage], tuple[Any, ...]]]] = {
    "mood": (3, lambda c, on: (c.choice(on.webhooks), c.choice(_MOODS))),
    "fate": (
        2,
        lambda c, on: (
            c.choice(on.hosts),
            c.choice(_FATES),
            c.randint(0, 900),
            c.choice((1.0, 10.0, 60.0)),
        ),
    ),
    "crash": (2, lambda c, on: (c.choice(on.units), c.choice((0.1, 1.0, 20.0)))),
    "stop": (1, lambda c, on: (c.choice(on.units), c.choice((0.1, 1.0, 20.0)))),
    "statement": (2, lambda c, on: (c.choice(on.units), c.randint(0, 60), c.choice((0.1, 5.0)))),
    "await": (2, lambda c, on: (c.choice(on.units), c.randint(0, 400), c.choice((0.1, 5.0)))),
    "flap": (1, lambda c, on: (c.choice(on.units), c.randint(5, 100), c.randint(2, 8))),
    "power": (1, lambda c, on: (c.choice(on.units), c.choice((0.1, 5.0, 60.0)))),
    "freeze": (1, lambda c, on: (c.choice(on.units), c.choice((3.0, 30.0, 40.0, 90.0)))),
    "disk": (2, lambda c, _: (c.choice(_DISK_ERRORS), c.choice((0.2, 3.0, 30.0)))),
    "cut": (1, lambda c, on: (c.choice(on.hosts), c.choice((1.0, 20.0)))),
    "clock": (1, lambda c, _: (c.choice((-3600.0, 3600.0, -5.0, 5.0, 60.0)),)),
    "names": (1, lambda c, on: (c.choice(on.hosts), c.choice(("none", "private", "back")))),
}
_REPEATED = {"crash", "stop"}
