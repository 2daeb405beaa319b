"""Imports: of names when they are first used (PEP 562), and of libraries that extras install."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from types import SimpleNamespace


def names_on_demand() -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__all__`, the `__getattr__` and the `__dir__` (PEP 562) of the calling package.

    Its names are those that it imports `if TYPE_CHECKING`, so that each is written once, where
    type checkers, editors and freezers of programs look. To read them, the package's code runs once
    more, apart: there `TYPE_CHECKING` is true, and `import` notes names and loads nothing.
    """
    door = sys._getframe(1)
    package = door.f_globals["__name__"]
    home_of: dict[str, str] = {}

    def note(
        home: str, _globals: object, _locals: object, names: Iterable[str], _level: int
    ) -> object:
        if home not in ("typing", __name__):  # these two serve the package itself
            home_of.update(dict.fromkeys(names, home))
        return SimpleNamespace(**dict.fromkeys(names, True))

    exec(door.f_code, {"__builtins__": {"__import__": note}})  # noqa: S102 - the caller's own code

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        loaded = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, loaded)  # the next access does not come here
        return loaded

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
