"""Charts of a file of `--json`: deliveries a second, and CPU time over the number of tasks.

python -m benchmarks.bench.plot results.json docs/images

They are light or dark as the reader's page.
"""

from __future__ import annotations

import html
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

WIDTH, BAR, GAP, LEFT, RIGHT = 760, 16, 14, 250, 130
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #24292f }
.name { font-weight: 600 }
.ours { fill: #1a7f64; stroke: #1a7f64 } .other { fill: #9aa4af; stroke: #9aa4af }
polyline { stroke-width: 2; fill: none !important } .axis { stroke: #9aa4af; stroke-width: 0.5 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .ours { fill: #3fb68b; stroke: #3fb68b }
  .other { fill: #6e7781; stroke: #6e7781 }
}
"""


CURVE = "CPU over tasks: "  # how the names of its scenarios begin
TOP, HEIGHT, PER_TICK = 30, 240, 500


def main() -> None:
    """Draw the scenarios that have pushkit and an SDK's sender, and the curve."""
    source, target = map(Path, sys.argv[1:3])
    found = json.loads(source.read_text("utf-8"))["scenarios"]
    curve = {name: sides for name, sides in found.items() if name.startswith(CURVE)}
    compared = {
        name: sides
        for name, sides in found.items()
        if "a2a-sdk" in sides[-1]["side"] and name not in curve
    }
    target.mkdir(parents=True, exist_ok=True)
    if compared:
        (target / "deliveries.svg").write_text(drawing(compared), "utf-8")
    if curve:
        (target / "cpu.svg").write_text(curves(curve), "utf-8")


def svg(what: str, height: int, parts: Sequence[str]) -> str:
    """Return a drawing of these parts."""
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{what}</title>'
        f"<style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )


def curves(scenarios: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the SVG: CPU time of a delivery over the number of tasks, a line for each side."""
    points: dict[str, list[tuple[int, float]]] = {}
    for name, sides in scenarios.items():
        tasks = int(name.removeprefix(CURVE).replace(",", ""))
        for side in sides:
            points.setdefault(side["side"], []).append((tasks, side["cpu_us"]))
    most_tasks = max(tasks for line in points.values() for tasks, _ in line)
    most = max(cpu for line in points.values() for _, cpu in line)
    width, left = WIDTH - RIGHT - 60, 60

    def x(tasks: int) -> float:
        return left + width * math.log(tasks) / math.log(most_tasks)

    def y(cpu: float) -> float:
        return TOP + HEIGHT * (1 - cpu / most)

    parts = [f'<text class="name" x="{left}" y="16">CPU time of a delivery, in µs</text>']
    parts += [
        f'<path class="axis" d="M{left} {y(tick):.1f}h{width}"/>'
        f'<text x="{left - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,}</text>'
        for tick in range(0, int(most) + 1, PER_TICK)
    ]
    for tasks in sorted({tasks for line in points.values() for tasks, _ in line}):
        at = f'x="{x(tasks):.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle"'
        parts.append(f"<text {at}>{tasks:,}</text>")
    parts.append(f'<text x="{left}" y="{TOP + HEIGHT + 36}">tasks at once, at one host</text>')
    for name, line in points.items():
        kind = "ours" if "pushkit" in name else "other"
        ends = " ".join(f"{x(tasks):.1f},{y(cpu):.1f}" for tasks, cpu in sorted(line))
        parts.append(f'<polyline class="{kind}" points="{ends}"/>')
        tasks, cpu = max(line)
        parts.append(
            f'<text x="{x(tasks) + 8:.1f}" y="{y(cpu) + 4:.1f}">{html.escape(name)}</text>'
        )
    return svg("CPU time of a delivery over the number of tasks", TOP + HEIGHT + 46, parts)


def drawing(compared: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the SVG: a group of bars for each scenario, each with its own scale."""
    parts, top = list[str](), 20
    for name, sides in compared.items():
        parts.append(f'<text class="name" x="0" y="{top}">{html.escape(name)}</text>')
        top += 8
        parts += bars(sides, top)
        top += len(sides) * (BAR + 4) + GAP + 12
    return svg("Deliveries a second", top, parts)


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
