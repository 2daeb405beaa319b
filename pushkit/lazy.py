"""Packages that import each of their names when it is first used (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def names_on_demand(
    package: str, homes: Mapping[str, str]
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__all__`, the `__getattr__` and the `__dir__` (PEP 562) of a package.

    `homes` has for each module the names that it defines, separated by blanks.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, found)  # the next access does not come here
        return found

    names = sorted(home_of, key=lambda name: (not name.isupper(), name))  # constants first
    return names, load, lambda: names
