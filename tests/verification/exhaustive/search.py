"""Visits every state that can be reached, and follows a fair schedule from each of them."""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["Found", "Wrong", "run", "search"]

S = TypeVar("S", bound=Hashable)


class Wrong(AssertionError):  # noqa: N818  # what it says is the finding
    """A promise is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a search."""

    states: int
    seconds: float
    wrong: str | None = None  # what was wrong, if anything
    trace: tuple[str, ...] = ()  # how it came to it
    transactions: int = 0  # different ones
    begun_stale: int = 0  # what began under a lease that was over, as its worker could not know
    arrived_late: int = 0


def run(explore: Callable[..., Found], budget: Any, description: str | None) -> None:
    """Explore one budget, from the command line.

    Args:
        explore: Explores a budget; it may take `shortest`.
        budget: The class of budgets, a `NamedTuple` of numbers and flags.
        description: What is explored.
    """
    parser = argparse.ArgumentParser(description=description)
    for name, default in budget._field_defaults.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        else:
            parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shortest", action="store_true", help="find a shortest trace")
    given = vars(parser.parse_args())
    shortest = given.pop("shortest")
    found = explore(budget(**given), shortest=shortest)
    sys.stdout.write(f"{found.states} states, {found.transactions} transactions,"
                     f" {found.seconds} s, {found.begun_stale} stale:"
                     f" {found.wrong or 'all promises hold'}\n")  # fmt: skip
    for line in found.trace:
        sys.stdout.write(f"    {line}\n")
    sys.exit(bool(found.wrong))


def search(
    start: S,
    *,
    moves: Callable[[S], Iterable[tuple[str, S]]],
    is_drained: Callable[[S], bool],
    fair: Callable[[S, Sequence[tuple[str, S]]], S | None],
    most: int,
    breadth_first: bool = False,
) -> Found:
    """Visit every state; stop at the first that breaks a promise.

    Args:
        start: The first state.
        moves: Returns what can happen next, with a label for each; raises `Wrong`.
        is_drained: Whether nothing is left to do.
        fair: Returns the next state of a schedule in which nothing more goes wrong.
        most: How many states to visit.
        breadth_first: Whether to find a shortest trace.
    """
    began = time.monotonic()
    index, parents, labels = {start: 0}, array("l", [-1]), [""]
    drains = array("l", [-2])  # the next state of the fair schedule; -1 if drained
    todo = deque([(start, 0)])

    def found(wrong: str | None = None, at: int = 0) -> Found:
        trace = []
        while at > 0:
            trace.append(labels[at])
            at = parents[at]
        seconds = round(time.monotonic() - began, 1)
        return Found(states=len(index), seconds=seconds, wrong=wrong, trace=tuple(reversed(trace)))

    while todo:
        state, at = todo.popleft() if breadth_first else todo.pop()
        try:
            following = list(moves(state))
        except Wrong as exc:
            return found(str(exc), at)
        ends = is_drained(state)
        preferred = None if ends else fair(state, following)
        if preferred is None and not ends:
            return found(f"stuck: {state}", at)
        for label, after in following:
            to = index.get(after)
            if to is None:
                to = index[after] = len(index)
                parents.append(at)
                labels.append(label)
                drains.append(-2)
                todo.append((after, to))
                if len(index) > most:
                    return found("too many states")
            if after is preferred:
                drains[at] = to
        if preferred is None:
            drains[at] = -1
    return _all_drain(drains, found)


def _all_drain(drains: array[int], found: Callable[..., Found]) -> Found:
    seen = bytearray(len(drains))  # 1: it drains; 2: on the way
    for start in range(len(drains)):
        path, at = [], start
        while at >= 0 and not seen[at]:
            seen[at] = 2
            path.append(at)
            at = drains[at]
        if at == -2 or (at >= 0 and seen[at] == 2):
            return found("never drains", start)
        for each in path:
            seen[each] = 1
    return found()
