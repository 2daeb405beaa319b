"""Imports: of names when they are first used (PEP 562), and of libraries that extras install."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
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


@contextlib.contextmanager
def from_extra(extra: str, needed: str) -> Iterator[None]:
    """Import what an extra installs, within; `needed` begins the message if it is missing.

    Raises:
        ConfigError: The extra is not installed.
    """
    try:
        yield
    except ImportError as exc:
        from pushkit.errors import ConfigError  # `import pushkit` alone does not need it

        says = f"{needed}: pip install '.[{extra}]' in pushkit's source folder"
        raise ConfigError(says) from exc
