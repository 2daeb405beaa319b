"""One group of all that a process writes of notifications: one transaction stores and settles.

In transactions of their own, what is accepted and what is settled of one task would have to wait
for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pushkit.storage.script import Group, Script


class Asked(NamedTuple):
    """An item of one of the groups that share a transaction."""

    group: Group[Any, Any]
    item: Any
    is_first: bool = False  # whether this group comes before the others


def together(asked: Sequence[Asked], /, *, wait: bool) -> Script[list[Any]]:
    """Make one script of several groups'."""
    by_group: dict[Group[Any, Any], list[int]] = {}
    for number, each in enumerate(asked):
        by_group.setdefault(each.group, []).append(number)
    results: list[Any] = [None] * len(asked)
    for group, numbers in sorted(by_group.items(), key=lambda one: not asked[one[1][0]].is_first):
        found = yield from group([asked[number].item for number in numbers], wait=wait)
        for number, result in zip(numbers, found, strict=True):
            results[number] = result
    return results
