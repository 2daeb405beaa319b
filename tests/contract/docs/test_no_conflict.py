"""No text file of the project holds a merge's unsolved conflict."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
MARKER = re.compile(rb"^(<{7} |>{7} )", re.MULTILINE)


def files_with_markers(root: Path) -> list[str]:
    """The texts under `root` in which a line begins with a conflict's marker."""
    texts = [path for kind in ("*.md", "*.py", "*.toml") for path in root.rglob(kind)]
    own = [path for path in texts if not {".venv", "site", "build"}.intersection(path.parts)]
    return [str(path.relative_to(root)) for path in own if MARKER.search(path.read_bytes())]


def test_no_file_holds_an_unsolved_conflict() -> None:
    assert files_with_markers(ROOT) == []


def test_a_marker_is_found(tmp_path: Path) -> None:
    tmp_path.joinpath("page.md").write_text("one\n" + "<" * 7 + " HEAD\n")
    assert files_with_markers(tmp_path) == ["page.md"]
