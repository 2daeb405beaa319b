"""`make pictures`: the demo as SVG, and photographs of both dashboards, into docs/images/.

    python -m tests.system.release.pictures [--chromium PATH]

`docs/reference/generate.py` draws the diagrams, and `benchmarks.bench.plot` the charts.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.chromium import CHROMIUM

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "docs" / "images"
DEMO = ROOT / "examples" / "demo"
# The picture of a page, and which photograph it is, of those that
# `tests.verification.soak.dashboards_in_chromium` takes.
PHOTOGRAPHS = {
    "dashboard-light.png": "sender-overview-light.png",
    "dashboard-dark.png": "sender-delivery-dark.png",
    "receiver-light.png": "receiver-overview-light.png",
    "receiver-refusal.png": "receiver-refusal-dark.png",
}


def main() -> int:
    """Draw the demo, and photograph the dashboards; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.release.pictures")
    parser.add_argument("--chromium", default=CHROMIUM)
    asked = parser.parse_args()
    output = _output_of(str(DEMO / "demo.py"))
    (IMAGES / "demo.svg").write_text(_output_of(str(DEMO / "picture.py"), said=output), "utf-8")
    with tempfile.TemporaryDirectory() as folder:
        clicks = ["-m", "tests.verification.soak.dashboards_in_chromium", "--pictures", folder]
        _output_of(*clicks, "--chromium", asked.chromium)
        for picture, photograph in PHOTOGRAPHS.items():
            shutil.copyfile(Path(folder) / photograph, IMAGES / picture)
    print(f"drawn: demo.svg, {', '.join(PHOTOGRAPHS)}")
    return 0


def _output_of(*arguments: str, said: str = "") -> str:
    """Run Python with these arguments; return what it writes. Raises CalledProcessError."""
    return subprocess.run(  # noqa: S603  # our own scripts
        [sys.executable, *arguments],
        cwd=ROOT,
        input=said,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
