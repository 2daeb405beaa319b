"""Progress of long work: the code that does it reports each batch, and a terminal may follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_follower: ContextVar[Callable[[int], None] | None] = ContextVar("follower", default=None)


def advance(count: int) -> None:
    """Report that `count` more items are done."""
    follower = _follower.get()
    if follower is not None:
        follower(count)


def following() -> Callable[[int], None]:
    """Return the current follower, to be called from another thread."""
    return _follower.get() or (lambda _count: None)


@contextlib.contextmanager
def followed(follower: Callable[[int], None]) -> Iterator[None]:
    """Call a function with every advance within the block, and in tasks that the block starts."""
    before = _follower.set(follower)
    try:
        yield
    finally:
        _follower.reset(before)
