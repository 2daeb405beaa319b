"""The tables of the documentation, for tests that compare them with what the programs do."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["DOCS", "codes_in", "page", "table"]

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def table(name: str, heading: str) -> list[list[str]]:
    """Return the rows of the one table of a page whose heading begins so, as lists of cells."""
    lines = iter(page(name).splitlines())
    assert any(line.startswith(heading) for line in lines), f"{name} has no table {heading!r}"
    assert next(lines).startswith("|---")
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
    return rows


def codes_in(text: str) -> list[str]:
    """Return what stands between backticks."""
    return re.findall(r"`([^`]+)`", text)
