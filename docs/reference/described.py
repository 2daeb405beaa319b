"""What the code says of the members of a class: the sentences of its docstring, or comments."""

from __future__ import annotations

import inspect
import re
from typing import Any

from pushkit.options import sentences_of


def described(kind: Any) -> dict[str, str]:
    """Return the description of each member, from comments and the docstring."""
    return {**_comments(kind), **sentences_of(kind)}


def _comments(kind: Any) -> dict[str, str]:
    """Return the comment behind each member, or above it."""
    found: dict[str, str] = {}
    above: list[str] = []
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # a class that is made of options
        return {}
    for line in source.splitlines():
        code, _, behind = line.partition("  # ")
        if line.startswith("    # "):
            above.append(line.removeprefix("    # "))
            continue
        said = " ".join(above) or behind
        if said and (match := re.match(r"    (\w+): ", code)):
            found[match[1]] = f"{said[0].upper()}{said[1:].removesuffix('.')}."
        above = []
    return found
