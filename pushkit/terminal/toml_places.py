"""Finds the lines of members in a TOML document, and suggests corrections of names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import TypeAlias

Location: TypeAlias = tuple[int | str, ...]

_TABLE = re.compile(r"^\s*(\[\[?)\s*([\w.\"-]+)\s*\]\]?")
_KEY = re.compile(r"^\s*([\w\"-]+)\s*=")


def line_of(text: str, location: Location) -> int:
    """Return the line number of a member in a TOML document, or of its closest parent."""
    best, best_depth = 1, 0
    table: Location = ()
    here: Location
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = here = _opened(header[2], counts, of_array=header[1] == "[[")
        elif key := _KEY.match(line):
            here = (*table, key[1].strip('"'))
        else:
            continue
        depth = len(here) if location[: len(here)] == here else 0
        if depth > best_depth:
            best, best_depth = number, depth
    return best


def name_of(location: Location) -> str:
    """Return the name of a member, for example `senders[0].issuer`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message about an unknown name; empty for none."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _opened(name: str, counts: dict[str, int], *, of_array: bool) -> Location:
    """Return the location of a table, and count the tables of each array."""
    if of_array:
        counts[name] = counts.get(name, -1) + 1
    path: list[int | str] = []
    steps = name.split(".")
    for depth, step in enumerate(steps, start=1):
        path.append(step.strip('"'))
        array = ".".join(steps[:depth])
        if array in counts:
            path.append(counts[array])
    return tuple(path)
