"""No text file of the project holds a merge's unsolved conflict."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARKER = re.compile(rb"^(<{7} |>{7} )", re.MULTILINE)


def files_with_markers(root: Path) -> list[str]:
    """The committed files under `root` in which a line begins with a conflict's marker."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if (root / name).is_file()]
    return [name for name in names if MARKER.search((root / name).read_bytes())]


def test_no_file_holds_an_unsolved_conflict() -> None:
    assert files_with_markers(ROOT) == []


def test_a_marker_is_found(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    tmp_path.joinpath("page.md").write_text("one\n" + "<" * 7 + " HEAD\n")
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    assert files_with_markers(tmp_path) == ["page.md"]
