"""A bar chart of deliveries a second, from a file of `--json`; light or dark as the reader's page.

python -m benchmarks.bench.plot results.json docs/images/deliveries.svg
"""

from __future__ import annotations

import html
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

WIDTH, BAR, GAP, LEFT, RIGHT = 760, 16, 14, 250, 130
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.name { font-weight: 600 }
.ours { fill: #1a7f64 } .other { fill: #9aa4af }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .ours { fill: #3fb68b } .other { fill: #6e7781 }
}
"""


def main() -> None:
    """Draw the scenarios that have pushkit and an SDK's sender."""
    source, target = map(Path, sys.argv[1:3])
    found = json.loads(source.read_text("utf-8"))
    compared = {
        name: sides for name, sides in found["scenarios"].items() if "a2a-sdk" in sides[-1]["side"]
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(drawing(compared), "utf-8")


def drawing(compared: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the SVG: a group of bars for each scenario, each with its own scale."""
    parts, top = list[str](), 20
    for name, sides in compared.items():
        parts.append(f'<text class="name" x="0" y="{top}">{html.escape(name)}</text>')
        top += 8
        parts += bars(sides, top)
        top += len(sides) * (BAR + 4) + GAP + 12
    size = f'viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    what = "<title>Deliveries a second</title>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">{what}'
        f"<style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )


def bars(sides: Sequence[Mapping[str, Any]], top: int) -> Iterator[str]:
    """Return the bars of a scenario; ratios are to its last side, as in the table."""
    longest = max(side["per_second"] for side in sides)
    for number, side in enumerate(sides):
        y = top + number * (BAR + 4)
        long = (WIDTH - LEFT - RIGHT) * side["per_second"] / longest
        kind = "ours" if "pushkit" in side["side"] else "other"
        ratio = side["per_second"] / sides[-1]["per_second"]
        said = f"{side['per_second']:,.0f}/s" + (
            f" · {ratio:.2f}x" if side is not sides[-1] else ""
        )
        at = f'x="{LEFT - 8}" y="{y + 12}" text-anchor="end"'
        yield f"<text {at}>{html.escape(side['side'])}</text>"
        yield f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{long:.1f}" height="{BAR}" rx="2"/>'
        yield f'<text x="{LEFT + long + 6:.1f}" y="{y + 12}">{said}</text>'


if __name__ == "__main__":
    main()
