"""Shrinks a failing scenario: fewer steps, fewer programs, simpler numbers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tests.verification.simulation.scenario import Scenario, Step

__all__ = ["kind_of", "shrink"]


def kind_of(violation: str) -> str:
    """Return the kind of a violation: its text without ids and numbers."""
    return re.sub(r"\S*\d\S*", "#", violation)[:50]


def shrink(
    scenario: Scenario, fails: Callable[[Scenario], bool], *, seconds: float = 60.0
) -> Scenario:
    """Return a smaller scenario for which `fails` still returns true.

    Args:
        scenario: A scenario that fails.
        fails: Plays a scenario, and returns whether it fails in the same way.
        seconds: The CPU time that shrinking may take.
    """
    until = _cpu() + seconds
    part = len(scenario.steps)
    while part:
        scenario, _ = _first(scenario, _fewer_steps(part), fails, until)
        part //= 2
    is_smaller = True
    while is_smaller and _cpu() < until:
        scenario, is_smaller = _first(scenario, _simpler, fails, until)
    return scenario


def _cpu() -> float:
    times = os.times()
    return times.user + times.children_user


def _first(
    scenario: Scenario,
    smaller: Callable[[Scenario], Iterator[Scenario]],
    fails: Callable[[Scenario], bool],
    until: float,
) -> tuple[Scenario, bool]:
    """Repeatedly take the first smaller scenario that fails; return whether there was any."""
    found = False
    candidates = smaller(scenario)
    while (each := next(candidates, None)) is not None and _cpu() < until:
        if each != scenario and fails(each):
            scenario, found = each, True
            candidates = smaller(scenario)
    return scenario, found


def _fewer_steps(part: int) -> Callable[[Scenario], Iterator[Scenario]]:
    """Return a generator of scenarios without one run of so many steps, the last run first."""

    def without(scenario: Scenario) -> Iterator[Scenario]:
        steps = scenario.steps
        for start in reversed(range(0, len(steps), part)):
            yield replace(scenario, steps=steps[:start] + steps[start + part :])

    return without


def _simpler(scenario: Scenario) -> Iterator[Scenario]:
    """Yield scenarios with one program less, an earlier end, or one simpler step."""
    if scenario.twins:
        yield replace(scenario, twins=False)
    for name, least in (
        ("workers", 0),
        ("readers", 0),
        ("receivers", 0),
        ("webhooks", 0),
        ("agents", 1),
    ):
        number = getattr(scenario, name)
        for fewer in dict.fromkeys((least, number - 1)):
            if least <= fewer < number:
                yield replace(scenario, **{name: fewer})
    last = max((step.at for step in scenario.steps), default=0.0)
    if scenario.ends > last + 60:
        yield replace(scenario, ends=float(round(last + 30)))
    for index, step in enumerate(scenario.steps):
        for simpler in _simpler_steps(step):
            steps = [*scenario.steps[:index], simpler, *scenario.steps[index + 1 :]]
            yield replace(scenario, steps=tuple(sorted(steps, key=lambda each: each.at)))


def _simpler_steps(step: Step) -> Iterator[Step]:
    for at in dict.fromkeys((float(int(step.at)), round(step.at, 1))):
        if len(repr(at)) < len(repr(step.at)):
            yield replace(step, at=at)
    for index, arg in enumerate(step.args):
        for simpler in _simpler_args(arg):
            yield replace(step, args=(*step.args[:index], simpler, *step.args[index + 1 :]))


def _simpler_args(arg: Any) -> Iterator[Any]:
    """Yield simpler values: 0 or half of it, fewer digits, the first of the same kind."""
    if isinstance(arg, bool):
        return
    if isinstance(arg, int) and arg > 0:
        yield from dict.fromkeys((0, arg // 2, arg - 1))
    elif isinstance(arg, float) and arg != int(arg):
        yield float(int(arg))
    elif isinstance(arg, str) and (named := re.fullmatch(r"([a-z]+)([1-9]\d*)", arg)):
        yield f"{named[1]}0"
