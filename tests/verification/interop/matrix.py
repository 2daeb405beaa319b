"""Real peers, both ways: `make interop`, which writes docs/interop.md.

python -m tests.verification.interop.matrix [--only a2a-js] [--write docs/interop.md]

Each cell starts its peer as a process, lets it do one task of several updates, and looks at what
arrived: a pass means every update, once, in order, verified by the scheme that is named. At the end
stands the matrix: a row for each peer, a column for each thing that it does with pushkit.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections import Counter
from pathlib import Path

import aiohttp

from tests.verification.interop.cell import Cell, Direction
from tests.verification.interop.cells import cells
from tests.verification.interop.defects import DEFECTS
from tests.verification.interop.environments import MissingToolError, UnavailableError
from tests.verification.interop.processes import PATIENCE, MismatchError

__all__ = ["key_of", "matrix_of", "row_of"]

NOT_RUN = "not run here"


async def outcome(cell: Cell) -> tuple[str, str]:
    """Try a cell; return `pass`, `fail` or `not run here`, and how far, or the reason."""
    try:
        told = await cell.attempt()
    except MissingToolError as exc:
        return NOT_RUN, str(exc)
    except UnavailableError as exc:
        return "fail", f"not tried: {exc}"
    except MismatchError as exc:
        return "fail", str(exc)
    except TimeoutError:
        return "fail", f"nothing for {PATIENCE:.0f} s"
    except (OSError, aiohttp.ClientError) as exc:  # it ended meanwhile, for example
        return "fail", f"no answer: {exc}"
    return "pass", told or ""


_COLUMNS = list(dict.fromkeys(direction.column for direction in Direction))
_MATRIX = f"| peer | {' | '.join(_COLUMNS)} |\n|{'---|' * (1 + len(_COLUMNS))}\n"
_DETAILS = "| peer | direction | A2A | scheme | result |\n|---|---|---|---|---|\n"


def key_of(row: str) -> str:
    """Return what tells a row of the details from the others."""
    return " | ".join(row.split(" | ")[:4])


def row_of(cell: Cell, result: str) -> str:
    """Return a row of the details."""
    return f"| {cell.peer} | {cell.direction.told} | {cell.version} | {cell.scheme} | {result} |"


def matrix_of(results: dict[str, str]) -> str:
    """Return a row for each peer, from the rows of the details."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for cell in cells():
        row = results.get(key_of(row_of(cell, "")))
        if row is not None:
            peer = found.setdefault(cell.peer.partition(" (")[0], {})
            counts = peer.setdefault(cell.direction.column, Counter())
            counts[_verdict(cell, row.split(" | ")[4].removesuffix(" |"))] += 1
    lines = [
        f"| {peer} | {' | '.join(_counted(columns.get(name)) for name in _COLUMNS)} |\n"
        for peer, columns in found.items()
    ]
    return _MATRIX + "".join(lines)


def _verdict(cell: Cell, result: str) -> str:
    if not result.startswith("fail"):
        return NOT_RUN if result.startswith(NOT_RUN) else "pass"
    return "fail (the peer's)" if cell.cause and cell.cause.why in result else "FAIL"


def _counted(counts: Counter[str] | None) -> str:
    if counts is None:
        return "-"
    if counts.total() == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())[::-1])


def _put(page: Path, rows: dict[str, str]) -> None:
    """Write both tables of a page anew; of what was not tried now, the row that stands there."""
    text = page.read_text("utf-8")
    for line in text.splitlines():
        rows.setdefault(key_of(line), line)
    keys = [key_of(row_of(cell, "")) for cell in cells()]
    details = _DETAILS + "".join(f"{rows[key]}\n" for key in keys if key in rows)
    for table in (matrix_of(rows), details):
        heading = re.escape(table.partition("\n")[0])
        old = re.search(rf"^{heading}\n(\|.*\n)*", text, re.MULTILINE)
        assert old is not None, f"{page} has no table {heading}"
        text = text[: old.start()] + table + text[old.end() :]
    page.write_text(text, "utf-8")


async def _still_wrong(only: str | None) -> int:
    """Show what is wrong elsewhere; return how many of it are not so, or no longer."""
    gone = 0
    for defect in DEFECTS:
        if only and only not in defect.peer:
            continue
        try:
            await defect.shown()
            told = "still so"
        except MissingToolError as exc:
            told = f"{NOT_RUN}: {exc}"
        except (MismatchError, UnavailableError) as exc:
            told, gone = str(exc), gone + 1
        sys.stdout.write(f"wrong elsewhere: {defect.peer}: {defect.what}: {told}\n")
        sys.stdout.flush()
    return gone


async def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="Only peers, or the column, whose name contains this.")
    parser.add_argument("--write", type=Path, help="The page whose table is written.")
    arguments = parser.parse_args()
    rows: dict[str, str] = {}
    broken = 0
    for cell in cells():
        if arguments.only and arguments.only not in f"{cell.peer} {cell.direction.column}":
            continue
        found, reason = await outcome(cell)
        known = found == "fail" and cell.cause is not None and cell.cause.shows in reason
        mended = found == "pass" and cell.cause is not None
        broken += (found == "fail" and not known) or mended
        told = cell.cause.why if cell.cause and known else reason
        row = row_of(cell, f"{found}: {told}" if told else found)
        also = f" ({reason})" if known else " (no longer wrong: say so)" if mended else ""
        sys.stdout.write(f"{row}{also}\n")
        sys.stdout.flush()
        rows[key_of(row)] = row
    broken += await _still_wrong(arguments.only)
    if arguments.write is not None:
        _put(arguments.write, rows)
    sys.stdout.write("\n" + matrix_of(rows))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
