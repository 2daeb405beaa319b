"""The reference names every option, setting, command, metric, event and code there is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATE = ROOT / "docs" / "reference" / "generate.py"


def test_the_reference_is_what_the_code_says() -> None:
    checked = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, str(GENERATE), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_page_of_the_documentation_is_in_the_sites_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if f" {page}\n" not in navigation} == set()
