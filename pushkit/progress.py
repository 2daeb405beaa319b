"""How far long work is: whoever does it says so, lot by lot, and a terminal may listen."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_follower: ContextVar[Callable[[int], None] | None] = ContextVar("follower", default=None)


def advance(count: int) -> None:
    """Say that so many more are done; costs nothing where nobody follows."""
    follower = _follower.get()
    if follower is not None:
        follower(count)


def following() -> Callable[[int], None]:
    """Return who follows here, for work that goes on in another thread."""
    return _follower.get() or (lambda _count: None)


@contextlib.contextmanager
def followed(follower: Callable[[int], None]) -> Iterator[None]:
    """Have a function called with every advance within the block, tasks of it included."""
    before = _follower.set(follower)
    try:
        yield
    finally:
        _follower.reset(before)
