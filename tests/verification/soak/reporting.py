"""The options of the kill scripts, and the report of a soak."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

__all__ = ["kill_options", "write_report"]


def kill_options(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that every kill script has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--database", help="A SQLite file or a PostgreSQL DSN; must be empty.")
    return parser


def write_report(counts: Mapping[str, float], *, holds: bool, seed: int) -> int:
    """Print every number, and whether every promise was kept; return the exit status."""
    for name, value in counts.items():
        print(f"{name:24} {value:.2f}" if isinstance(value, float) else f"{name:24} {value}")
    print(f"{'every promise held' if holds else 'A PROMISE WAS BROKEN'} (seed {seed})")
    return 0 if holds else 1
