"""From a failing scenario to the smallest one that still fails: fewer steps, fewer programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.simulation.scenario import Scenario

__all__ = ["shrink"]


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], *, tries: int = 300) -> Scenario:
    """Return a smaller scenario for which `fails` still holds.

    Args:
        scenario: One for which it holds.
        fails: Plays a scenario, and says whether it fails in the same way.
        tries: How many plays that may take.
    """
    part = len(scenario.steps) // 2
    while part and tries > 0:
        for smaller in _without(scenario, part):
            tries -= 1
            if fails(smaller):
                scenario = smaller
                break
            if tries <= 0:
                return scenario
        else:
            part //= 2
    return scenario


def _without(scenario: Scenario, part: int) -> Iterator[Scenario]:
    """Yield the scenario without each run of so many steps."""
    steps = scenario.steps
    for start in range(0, len(steps), part):
        yield replace(scenario, steps=steps[:start] + steps[start + part :])
