"""How much is tried of what repeats: a share in each run, and all of it in a long one.

`make test-long` sets `PUSHKIT_TEST_LONG`: ten times the random cases, and full products.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["LONG", "examples", "share"]

T = TypeVar("T")
LONG = bool(os.environ.get("PUSHKIT_TEST_LONG"))


def examples(count: int) -> int:
    """Return how many random cases to try, where a run of every day tries so many."""
    return 10 * count if LONG else count


def share(cases: Iterable[T], nth: int, of: int) -> Iterator[T]:
    """Yield the n-th of so many shares of the cases; all of them in a long run."""
    return (case for number, case in enumerate(cases) if LONG or number % of == nth % of)
