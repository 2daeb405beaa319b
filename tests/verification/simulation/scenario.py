"""Scenarios: what a seed decides, as plain data, so that it can be shrunk."""

from __future__ import annotations

import random
import textwrap
from dataclasses import dataclass, fields, replace
from typing import Any

from tests.verification.simulation.triggers import add_triggers
from tests.verification.simulation.workload import (
    GENERATORS,
    SELDOM_GENERATORS,
    SPAN,
    Actors,
    Step,
    any_behaviour,
    losses,
    mailboxes,
    staggered,
    subscriptions,
    together,
    updates,
)

__all__ = ["HOURS", "Scenario", "Step", "as_python", "from_python", "make_scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The actors of a simulated world, and what happens there."""

    seed: int  # also decides the order of ready tasks, latencies and ids
    generators: str = ""  # the names of its generators (see `workload`), for readers
    # Whether limits are low, hostile owners use them up, and other owners must not be delayed by
    # that.
    crowded: bool = False
    coalesces: bool = False  # whether queues are short, and newer statuses replace older ones
    most: int | None = None  # the most subscriptions of an owner, in place of the usual limit
    agents: int = 1  # how many agents enqueue (and deliver, if there are no workers)
    workers: int = 0  # how many processes only deliver
    mute: int = 0  # how many agents, the last ones, do not deliver if there are no workers
    webhooks: int = 1  # how many plain webhooks there are
    receivers: int = 0  # how many receivers of this project there are
    readers: int = 0  # how many clients fetch from the mailbox of each; without any, none has one
    # How many notifications an owner may have sent again in a day, where receivers lose inboxes.
    recovered: int | None = None
    twins: bool = False  # whether each receiver is two processes that share an inbox
    postgres: bool = False  # whether they share a PostgreSQL server; a SQLite file otherwise
    sealed: bool = False  # whether tokens and credentials are encrypted at rest
    behind: int = 0  # by how many migrations the databases are behind when the scenario begins
    slow: bool = False  # whether it lasts hours in place of minutes
    steps: tuple[Step, ...]  # what happens, in order of time
    ends: float  # when all faults end, in seconds


def as_python(scenario: Scenario) -> str:
    """Return a scenario as Python source, without members that have their default."""
    members = ", ".join(
        f"{each.name}={getattr(scenario, each.name)!r}"
        for each in fields(scenario)
        if each.name not in ("generators", "steps") and getattr(scenario, each.name) != each.default
    )
    lines = ["Scenario(", f"    {members},", "    steps=("]
    lines += [f"        Step({each.at}, {each.kind!r}, {each.args!r})," for each in scenario.steps]
    return "\n".join((*lines, "    ),", ")"))


def from_python(text: str) -> Scenario:
    """Return the scenario that Python source describes, as `as_python` writes it."""
    names = {"Scenario": Scenario, "Step": Step}
    scenario: Scenario = eval(textwrap.dedent(text), names)  # noqa: S307  # the user's own file
    return scenario


_CONNECTION_FAULTS = ("refused", "silent", "reset", "reset_answer", "stall", "drip", "certificate")
_DISK_ERRORS = ("busy", "full", "error", "refused", "uncertain", "seldom", "seldom")
# The generators used besides subscriptions and updates; in how many of a hundred scenarios.
_COMBINATIONS = {
    (): 25,
    ("changes",): 10,
    ("operators",): 8,
    ("changes", "operators"): 5,
    ("answers",): 15,
    ("answers", "operators"): 5,
    ("names",): 6,
    ("keys",): 6,
    ("callbacks",): 7,
    ("callbacks", "keys"): 3,
    ("attacks",): 8,
    ("hostile",): 5,
    ("leaving",): 3,
    ("endless",): 2,
    ("attacks", "keys"): 3,
    ("changes", "operators", "answers", "names", "keys", "callbacks"): 3,
}
# Factors of a scenario's two minutes. Half of all scenarios are short, so that more coincides.
_SHORT = 0.5
_HASTE = 0.2  # for a crowded one, in which every worker looks for work each second
HOURS = 600.0  # for a slow one: twenty hours
_MAILBOXES = 0.2  # the share of scenarios with receivers in which these have mailboxes
_LOSSES = 0.35  # the share of those without attacks and mailboxes in which inboxes are lost
# What relies on an inbox that forgets nothing.
_REMEMBERED = {"attacks", "disputes", "mailboxes", "renewals"}
_OF_RECEIVERS = {"attacks", "callbacks", "keys"}
_HOSTILE = {"hostile", "leaving", "endless"}


def make_scenario(seed: int) -> Scenario:
    """Return the scenario of a seed."""
    chance = random.Random(f"scenario {seed}")
    postgres = chance.random() < 0.3
    agents = chance.choice((1, 1, 2, 3))
    workers = chance.choice((0, 0, 1, 2, 3))
    [generators] = chance.choices(list(_COMBINATIONS), list(_COMBINATIONS.values()))
    if "endless" in generators:
        agents, workers = 2, 0
    mute = 1 if "endless" in generators else chance.choice((0, 0, 0, 1))
    is_hostile = not _HOSTILE.isdisjoint(generators)
    webhooks = chance.randint(1, 4) + 2 * is_hostile
    receivers = chance.choice((1, 1, 2) if _OF_RECEIVERS & {*generators} else (0, 0, 1, 2))
    twins = chance.random() < 0.3
    actors = Actors(
        agents=agents,
        webhooks=[f"hook{n}" for n in range(webhooks)],
        receivers=[f"recv{n}" for n in range(receivers)],
        owners=[f"owner{n}" for n in range(chance.randint(1, 4))],
        tasks=[f"task{n}" for n in range(chance.choice((1, 1, 1, 2, 2, 3, 5)))],
    )
    innocent = replace(actors, webhooks=actors.webhooks[:-2]) if is_hostile else actors
    steps = [*subscriptions(chance, innocent), *updates(chance, innocent)]
    if postgres and agents > 1 and not is_hostile and chance.random() < 0.5:
        steps += together(chance, actors)
    if agents > 1 and not workers and not is_hostile and chance.random() < 0.3:
        steps += staggered(chance, actors)
    seldom: list[str] = []
    for name, (generator, share) in SELDOM_GENERATORS.items():
        apart = random.Random(f"{name} {seed}")
        is_possible = not is_hostile and (postgres or name != "enlisting")
        if is_possible and apart.random() < share / 100:
            seldom.append(name)
            steps += generator(apart, actors)
    for name in generators:
        steps += GENERATORS[name](chance, actors)

    def add(at: float, kind: str, *args: Any) -> None:
        steps.append(Step(round(at, 3), kind, args))

    if not is_hostile:
        _add_faults(chance, add, actors, postgres, workers, twins)
        add_triggers(chance, add, actors)
    sealed = chance.random() < 0.15
    if sealed and not is_hostile:  # resealing restarts programs, which is a fault
        for _ in range(chance.choice((0, 1, 1, 2))):
            add(2 + chance.random() * SPAN, "reseal", 30.0)
    is_slow = not is_hostile and chance.random() < 0.04
    apart, readers = random.Random(f"mailboxes {seed}"), 0
    # Clients poll all the time: hours of that would be simulated for nothing.
    if receivers and not is_hostile and not is_slow and apart.random() < _MAILBOXES:
        readers = apart.choice((1, 2, 2, 3))
        seldom.append("mailboxes")
        names = [f"reader{number}" for number in range(receivers * readers)]
        steps += mailboxes(apart, actors, names)
    # What was accepted before a loss may be accepted again: attackers use that, and it is allowed.
    is_attacked = not _REMEMBERED.isdisjoint((*generators, *seldom))
    may_lose = receivers > 0 and not (is_hostile or is_slow or is_attacked)
    recovered, lost = _losses(random.Random(f"losses {seed}"), actors) if may_lose else (None, [])
    seldom += ["losses"] if lost else []
    steps += lost
    steps.sort(key=lambda step: step.at)
    pace = _HASTE if is_hostile else HOURS if is_slow else chance.choice((_SHORT, 1.0))
    steps = [replace(step, at=round(step.at * pace, 3)) for step in steps]
    return Scenario(
        seed=seed,
        generators=" ".join((*generators, *seldom)),
        crowded=is_hostile,
        coalesces="coalescing" in seldom,
        agents=agents,
        workers=workers,
        mute=mute,
        webhooks=webhooks,
        receivers=receivers,
        readers=readers,
        recovered=recovered,
        twins=twins,
        postgres=postgres,
        sealed=sealed,
        behind=0 if postgres else chance.choice((0, 0, 0, 1, 2, 9)),
        slow=is_slow,
        steps=tuple(steps),
        ends=(SPAN + 30) * pace,
    )


def _losses(chance: random.Random, actors: Actors) -> tuple[int | None, list[Step]]:
    """Return `Scenario.recovered`, and the steps of a loss, if there is one."""
    if chance.random() >= _LOSSES:
        return None, []
    return chance.choice((10_000, 10_000, 10_000, 10, 3)), [*losses(chance, actors)]


def _add_faults(
    chance: random.Random,
    add: Any,
    actors: Actors,
    postgres: bool,
    workers: int,
    twins: bool,
) -> None:
    units = [f"agent{n}" for n in range(actors.agents)] + [f"worker{n}" for n in range(workers)]
    units += actors.receivers
    units += [f"twin{n}" for n in range(len(actors.receivers))] if twins else []
    targets = {"units": units, "webhooks": actors.webhooks, "hosts": actors.hosts}

    def drawn(what: Any) -> Any:
        return what(chance) if callable(what) else chance.choice(targets.get(what, what))

    kinds = [kind for kind in _FAULTS if postgres or kind not in _OF_SERVERS]
    weights = [_FAULTS[kind][0] for kind in kinds]
    for _ in range(chance.choice((0, 1, 2, 4, 8))):
        at = 2 + chance.random() * SPAN
        [what] = chance.choices(kinds, weights)
        for _ in range(chance.choice((1, 1, 1, 5)) if what in _REPEATED else 1):
            add(at, what, *map(drawn, _FAULTS[what][1:]))
            at += chance.random() * 3
        if what == "upgrade":  # gives old programs something to write during the upgrade
            for agent in range(actors.agents):
                add(at + chance.random(), "burst", agent, chance.choice(actors.tasks), 3)


def _perhaps(chance: random.Random) -> bool:
    return chance.random() < 0.5


# The faults: the weight of each, and the arguments of its step: whom it strikes, a function of
# chance, or what is chosen from.
_FAULTS: dict[str, tuple[Any, ...]] = {
    "behaviour": (3, "webhooks", any_behaviour),
    "network": (2, "hosts", _CONNECTION_FAULTS, range(901), (1.0, 10.0, 60.0)),
    "crash": (2, "units", (0.1, 1.0, 20.0)),
    "stop": (1, "units", (0.1, 1.0, 20.0)),
    "statement": (2, "units", range(61), (0.1, 5.0)),
    "doze": (1, "units", range(61), (30.0, 100.0)),
    "await": (2, "units", range(401), (0.1, 5.0)),
    "flap": (1, "units", range(5, 101), range(2, 9)),
    "power": (1, "units", (0.1, 5.0, 60.0)),
    "upgrade": (2, "units", (0.1, 4.0, 25.0), _perhaps),
    "freeze": (1, "units", (3.0, 30.0, 40.0, 90.0)),
    "disk": (2, _DISK_ERRORS, (0.2, 3.0, 30.0)),
    "partition": (2, "units", (2.0, 25.0, 80.0), _perhaps),
    "server": (2, "units", ("restart", "away", "power"), (0.5, 5.0, 50.0)),
    "cut": (1, "hosts", (1.0, 20.0)),
    "clock": (1, (-3600.0, 3600.0, -5.0, 5.0, 60.0)),
    "names": (1, "hosts", ("none", "private", "back")),
}
_REPEATED = {"crash", "stop"}
_OF_SERVERS = {"partition", "server"}
