"""One group of several: a process stores and settles notifications in one transaction.

In transactions of their own, the notifications of one task that are stored and those that are
settled would wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pushkit.storage.script import Group, Script


class GroupItem(NamedTuple):
    """An item of one of the groups that share a transaction."""

    group: Group[Any, Any]
    item: Any
    is_first: bool = False  # whether this group comes before the others


def together(items: Sequence[GroupItem], /, *, wait: bool) -> Script[list[Any]]:
    """Run the scripts of several groups one after another, each with all of its items."""
    by_group: dict[Group[Any, Any], list[int]] = {}
    for number, each in enumerate(items):
        by_group.setdefault(each.group, []).append(number)
    results: list[Any] = [None] * len(items)
    for group, numbers in sorted(by_group.items(), key=lambda one: not items[one[1][0]].is_first):
        found = yield from group([items[number].item for number in numbers], wait=wait)
        for number, result in zip(numbers, found, strict=True):
            results[number] = result
    return results
