"""No text file of the project holds a merge's unsolved conflict."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
MARKER = re.compile(rb"^(<{7} |>{7} )", re.MULTILINE)


def test_no_file_holds_an_unsolved_conflict() -> None:
    texts = [path for kind in ("*.md", "*.py", "*.toml") for path in ROOT.rglob(kind)]
    own = [path for path in texts if not {".venv", "site", "build"}.intersection(path.parts)]
    assert [str(path) for path in own if MARKER.search(path.read_bytes())] == []
