"""Limits: the last value that is accepted, and the first that is refused, in one test."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import pytest

__all__ = ["refused_unless"]


def refused_unless(
    accepted: bool, error: type[Exception], match: str
) -> AbstractContextManager[object]:
    """Expect an error from the block unless what it does is accepted."""
    return nullcontext() if accepted else pytest.raises(error, match=match)
