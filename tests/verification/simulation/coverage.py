"""Coverage of a run: which changes of state it saw shortly after which fault, and which never."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TypeAlias

__all__ = ["FAULTS", "RECENT", "Move", "key_of", "table_of"]

Move: TypeAlias = "tuple[str, str | None, str | None]"  # table, state before, state after

RECENT = 20.0  # seconds for which a fault counts
# The kinds of steps that are faults.
FAULTS = (
    *("behaviour", "network", "cut", "names", "crash", "stop", "flap", "power", "freeze"),
    *("statement", "await", "doze", "trigger", "disk", "clock", "callbacks", "reload", "lose"),
)


def key_of(move: Move, error: str | None, fault: str) -> str:
    """Return the key by which a change is counted, as a string for JSON."""
    return "|".join((*(str(each) for each in move), error or "", fault))


def table_of(
    moves: Mapping[str, int], allowed: Mapping[str, Collection[tuple[str | None, ...]]]
) -> str:
    """Return a table of changes by faults, the errors of each, and the pairs never seen."""
    cells: Counter[tuple[str, str]] = Counter()
    errors: Counter[tuple[str, str]] = Counter()
    for key, times in moves.items():
        table, before, after, error, fault = key.split("|")
        name = _name(table, before, after)
        cells[name, fault] += times
        if error and fault == "all":
            errors[name, error] += times
    names = [
        _name(table, str(before), str(after))
        for table, pairs in allowed.items()
        for before, after in sorted(pairs, key=str)
        if before != after
    ]
    columns = ("all", "none", *FAULTS)
    lines = [f"{'':42}" + "".join(f"{column[:8]:>9}" for column in columns)]
    lines += [f"{name:42}" + "".join(f"{cells[name, c]:9}" for c in columns) for name in names]
    lines.append("by error:")
    lines += [f"{times:9} {name} ({error})" for (name, error), times in sorted(errors.items())]
    never = [name for name in names if not cells[name, "all"]]
    alone = [
        f"{name} under {fault}" for name in names for fault in FAULTS if not cells[name, fault]
    ]
    lines.append(f"never: {', '.join(never) or 'none'}")
    lines.append(
        f"{len(names) * len(FAULTS) - len(alone)} of {len(names) * len(FAULTS)} pairs seen"
    )
    return "\n".join(lines)


def _name(table: str, before: str, after: str) -> str:
    return f"{table.removeprefix('pushkit_')}: {before} -> {after}"
