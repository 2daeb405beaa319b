"""A page of what a script found, newest first, and where the next one begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["WINDOW", "Page"]

T = TypeVar("T")

WINDOW = 4000
"""How many rows one page looks through, however few of them it wants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """What was found, and where to look further.

    Attributes:
        items: What was found, newest first.
        before: What to pass as `before` for what is older; None if nothing is.
        is_cut: Whether so many rows were looked through that the page was not filled.
    """

    items: tuple[T, ...]
    before: str | None = None
    is_cut: bool = False
