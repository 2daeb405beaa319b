"""The blocks of code in README.md and docs/, and which of them no test runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "SESSIONS", "Block", "blocks", "of", "pages_with"]

ROOT = Path(__file__).resolve().parents[3]
# Pages of programs that a reader saves, starts, and compares with what is shown.
SESSIONS = ("README.md", "docs/tutorial.md")

_MARK = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of code.

    Attributes:
        page: Where it stands, from the root of the tree.
        line: Its first line, counted from 1.
        language: As its fence says; `sh` for what is indented.
        text: Without fence and indentation.
        exempt: Why no test runs it, as the mark before it says; `output` for a fence of `text`.
    """

    page: str
    line: int
    language: str
    text: str
    exempt: str | None


def blocks() -> Iterator[Block]:
    """Yield every block of every page; what the reference shows is written from the code."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for path in pages:
        if "reference" not in path.parts:
            yield from _blocks_of(path)


def of(page: str, *languages: str) -> list[Block]:
    """Return a page's blocks in these languages that are to be run."""
    found = _blocks_of(ROOT / page)
    return [each for each in found if each.language in languages and each.exempt is None]


def pages_with(*languages: str) -> list[str]:
    """Return the pages with blocks in these languages that are to be run."""
    return list(
        dict.fromkeys(
            each.page for each in blocks() if each.language in languages and not each.exempt
        )
    )


def _blocks_of(path: Path) -> Iterator[Block]:
    lines = path.read_text("utf-8").splitlines()
    page, mark, at = str(path.relative_to(ROOT)), None, 0
    while at < len(lines):
        begin, fence = at, re.match(r"```(\w*)$", lines[at])
        if fence:
            at = lines.index("```", begin + 1)
            language, inside = fence[1], lines[begin + 1 : at]
            begin += 1
        elif lines[at].startswith("    ") and not lines[at - 1].strip():
            while at + 1 < len(lines) and (lines[at + 1].startswith("    ") or not lines[at + 1]):
                at += 1
            language, inside = "sh", [line[4:] for line in lines[begin : at + 1]]
        else:
            found = _MARK.fullmatch(lines[at].strip())
            mark = found[1] if found else mark if not lines[at] else None
            at += 1
            continue
        yield Block(
            page=page,
            line=begin + 1,
            language=language,
            text="\n".join(inside).rstrip() + "\n",
            exempt="output" if language == "text" else mark,
        )
        mark, at = None, at + 1
