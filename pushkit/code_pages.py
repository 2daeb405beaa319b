"""Where the reference explains a code: its row in `docs/reference/codes.md` has an anchor.

A message that names a code leads on by this; the rows are written with the same anchors.
"""

from __future__ import annotations

from enum import StrEnum


class CodeTable(StrEnum):
    """The tables of the page; one code may have a row in several."""

    REFUSAL = "refusal"  # what the receiver answers
    DELIVERY = "delivery"  # why a delivery failed
    ERROR = "error"  # the errors of the packages


def anchor_of(table: CodeTable, code: str) -> str:
    """Return the anchor of a code's row."""
    return f"{table}-{code}"


def page_of(table: CodeTable, code: str) -> str:
    """Return where a code is explained, from the root of the tree."""
    return f"docs/reference/codes.md#{anchor_of(table, code)}"
