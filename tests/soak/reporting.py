"""Prints the report of a soak."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["write_report"]


def write_report(counts: Mapping[str, float], *, holds: bool, seed: int) -> int:
    """Print every number, and whether every promise was kept; return the exit status."""
    for name, value in counts.items():
        print(f"{name:24} {value:.2f}" if isinstance(value, float) else f"{name:24} {value}")
    print(f"{'every promise held' if holds else 'A PROMISE WAS BROKEN'} (seed {seed})")
    return 0 if holds else 1
