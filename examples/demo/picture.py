"""Draws the output of the demo as SVG.

python examples/demo/demo.py | python examples/demo/picture.py > docs/images/demo.svg
"""

from __future__ import annotations

import html
import re
import sys

LINE, LEFT, WIDTH = 17, 20, 720
STYLE = """
text { font: 12.5px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f }
rect { fill: #f6f8fa; stroke: #d0d7de } .ok { fill: #1a7f64 } .refused { fill: #b35900 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } rect { fill: #161b22; stroke: #30363d }
  .ok { fill: #3fb68b } .refused { fill: #e3a35a }
}
"""


def main() -> None:
    """Read lines and write them as SVG, with a light and a dark style."""
    output, _, _ = sys.stdin.read().rstrip().rpartition("\n\n")  # without the line with the time
    lines = ["$ make demo", "", *output.splitlines()]
    drawn = []
    for number, line in enumerate(lines, 2):
        text = html.escape(line).replace(" ", "\u00a0").replace("✓", '<tspan class="ok">✓</tspan>')
        text = re.sub(r"(4\d\d\u00a0\w+)", r'<tspan class="refused">\1</tspan>', text)
        drawn.append(f'<text x="{LEFT}" y="{number * LINE}">{text}</text>')
    height = (len(lines) + 3) * LINE
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img"><title>make demo</title><style>{STYLE}</style>'
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>'
    )
    print("\n".join(drawn) + "</svg>")


if __name__ == "__main__":
    main()
