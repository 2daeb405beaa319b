"""Diagrams as SVG, from what the code says: a delivery's life, and the steps of a receiver.

`generate.py` writes them into docs/images/. The first is drawn from the table of transitions in
`pushkit/outbox/states.py`, the second from `receiver/steps.py` and `receiver/refusals.py`. They are
light or dark as the reader's page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f } .small { font-size: 12px; fill: #57606a }
.page { fill: #ffffff; stroke: #d0d7de } .box { fill: #f6f8fa; stroke: #57606a }
.strong { font-weight: 600 } .good { fill: #dafbe1 } .bad { fill: #ffebe9 }
path { fill: none; stroke: #57606a; stroke-width: 1.4 } .tip { fill: #57606a; stroke: none }
.number { fill: #0f766e; stroke: none } .in { fill: #ffffff; font-weight: 600 }
.code { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #9a3412 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .small { fill: #9aa5b1 } .page { fill: #0d1117; stroke: #30363d }
  .box { fill: #161b22; stroke: #9aa5b1 } .good { fill: #12261e } .bad { fill: #2d1416 }
  path { stroke: #9aa5b1 } .tip { fill: #9aa5b1 } .in { fill: #ffffff } .code { fill: #f0a875 }
}
"""
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8"'
    ' orient="auto"><path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>'
)


class StepRow(NamedTuple):
    """One numbered step of a receiver."""

    number: int
    words: list[str]
    checks: list[str]
    refusals: dict[int, list[str]]  # codes by their status


def receiver_steps() -> list[StepRow]:
    """Return the numbered steps, with what each can refuse a request with."""
    from receiver.refusals import REFUSALS
    from receiver.steps import Step

    rows = []
    for number in sorted({step.number for step in Step}):
        steps = [step for step in Step if step.number == number]
        refused: dict[int, list[str]] = {}
        for code, row in REFUSALS.items():
            if set(steps).intersection(row.steps):
                refused.setdefault(row.status, []).append(code)
        rows.append(
            StepRow(number, [step.word for step in steps], [step.checks for step in steps], refused)
        )
    callbacks = "callbacks, from the inbox: per task in order, retried, dead letters kept"
    return [*rows, StepRow(len(rows) + 1, [], [callbacks], {})]


def steps_drawing() -> str:
    """Draw the steps of a receiver from top to bottom, with the answers of those that refuse."""
    top, parts = 54, [_text(24, 30, "A request", "strong")]
    for row in receiver_steps():
        refusals = [
            line
            for status, codes in row.refusals.items()
            for line in _wrapped(f"{status}  {', '.join(codes)}", 58)
        ]
        left = [", ".join(row.words)] if row.words else []
        left += [line for check in row.checks for line in _wrapped(check, 50)]
        height = 16 + 17 * max(len(left), len(refusals))
        parts.append(f'<path d="M38 {top - 14} V{top - 1}" marker-end="url(#tip)"/>')
        parts.append(f'<rect class="box" x="24" y="{top}" width="372" height="{height}" rx="6"/>')
        parts.append(f'<circle class="number" cx="46" cy="{top + 20}" r="12"/>')
        parts.append(_text(46, top + 24.5, str(row.number), "in", "middle"))
        for line, text in enumerate(left):
            kind = "strong" if row.words and line == 0 else "small"
            parts.append(_text(68, top + 22 + 17 * line, text, kind))
        if refusals:
            middle = top + height / 2
            parts.append(f'<path d="M396 {middle:g} H424" marker-end="url(#tip)"/>')
        for line, text in enumerate(refusals):
            parts.append(_text(432, top + 22 + 17 * line, text, "code"))
        top += height + 14
        if row.number == 9:
            parts.append(
                _text(68, top + 4, "202 accepted; 200 for a repetition, from step 7", "strong")
            )
            top += 20
    return _svg("The steps of a receiver", 860, top + 6, parts)


# --- a delivery's life ---------------------------------------------------------------------------

BOXES = {  # of each state: the middle of its box, and its colour
    "pending": (230, 170, ""),
    "in flight": (550, 170, ""),
    "delivered": (860, 90, "good"),
    "dead": (860, 250, "bad"),
    "cancelled": (230, 350, ""),
}
ARROWS = {  # of each pair of states: the line, and where its text begins
    ("nothing", "pending"): ("M230 60 V144", (220, 84), "end"),
    ("pending", "in flight"): ("M290 158 H488", (389, 148), "middle"),
    ("in flight", "pending"): ("M490 184 H292", (389, 204), "middle"),
    ("in flight", "delivered"): ("M610 156 L798 98", (690, 104), "middle"),
    ("in flight", "dead"): ("M610 184 L798 242", (668, 184), "start"),
    ("pending", "cancelled"): ("M215 196 V324", (205, 246), "end"),
    ("in flight", "cancelled"): ("M540 196 C520 280 410 335 294 344", (440, 262), "middle"),
    ("delivered", "pending"): ("M860 64 C840 20 380 20 256 142", (600, 58), "middle"),
    ("dead", "pending"): ("M820 276 C640 430 400 390 275 197", (650, 380), "middle"),
    ("cancelled", "pending"): ("M245 324 V197", (255, 312), "start"),
}
LEASED = "its queue is leased"


def transitions() -> dict[tuple[str, str], list[str]]:
    """Return what leads from a state to another, as the table in `pushkit.outbox.states` says."""
    from pushkit.outbox import states

    found: dict[tuple[str, str], list[str]] = {("pending", "in flight"): [LEASED]}
    for line in (states.__doc__ or "").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or cells[0] in ("event", "---"):
            continue
        event, before, after, _ = cells
        for first in before.split(", "):
            for second in after.split(", "):
                if second != first:
                    found.setdefault((first, second), []).append(event)
    return found


def life_drawing() -> str:
    """Draw the states of a delivery, and every transition between them."""
    parts = []
    for arrow, events in transitions().items():
        line, (left, top), anchor = ARROWS[arrow]
        parts.append(f'<path d="{line}" marker-end="url(#tip)"/>')
        for number, text in enumerate(_wrapped(", ".join(events), 26)):
            parts.append(_text(left, top + 15 * number, text, "small", anchor))
    for state, (left, top, kind) in BOXES.items():
        parts.append(
            f'<rect class="box {kind}" x="{left - 60}" y="{top - 25}" width="120" height="50"'
            ' rx="8"/>'
        )
        parts.append(_text(left, top + 5, state, "strong", "middle"))
    return _svg("A delivery's life", 950, 400, parts)


# --- SVG -----------------------------------------------------------------------------------------


def _svg(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" role="img"><title>{title}</title><style>{STYLE}</style>{TIP}'
        f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(left: float, top: float, text: str, kind: str, anchor: str = "start") -> str:
    said = html.escape(text)
    return f'<text class="{kind}" x="{left:g}" y="{top:g}" text-anchor="{anchor}">{said}</text>'


def _wrapped(text: str, width: int) -> Iterator[str]:
    line = ""
    for word in re.split(r" (?! )", text):
        if line and len(line) + len(word) >= width:
            yield line
            line = ""
        line = f"{line} {word}" if line else word
    yield line
