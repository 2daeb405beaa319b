"""Where a member stands in a TOML document: the parser does not tell."""

from __future__ import annotations

import re

__all__ = ["Location", "line_of"]

Location = tuple[int | str, ...]

_TABLE = re.compile(r"^\s*(\[\[?)\s*([\w.\"-]+)\s*\]\]?")
_KEY = re.compile(r"^\s*([\w\"-]+)\s*=")


def line_of(text: str, location: Location) -> int:
    """Return the line of a TOML document where a member stands, or the nearest one above it.

    Args:
        text: The document.
        location: The member's path, for example `("senders", 0, "issuer")`.
    """
    best, best_depth = 1, 0
    table: Location = ()
    here: Location
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            name = header[2].strip('"')
            table = (name,)
            if header[1] == "[[":
                counts[name] = counts.get(name, -1) + 1
                table = (name, counts[name])
            here = table
        elif key := _KEY.match(line):
            here = (*table, key[1].strip('"'))
        else:
            continue
        depth = len(here) if location[: len(here)] == here else 0
        if depth > best_depth:
            best, best_depth = number, depth
    return best
