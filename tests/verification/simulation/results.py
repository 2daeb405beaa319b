"""A file of results: a line of JSON for each part, with its commit and version of Python."""

from __future__ import annotations

import json
import platform
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.verification.simulation.running import Part

__all__ = ["Results", "commit_here"]

_CODE = ("pushkit", "receiver", "tests/verification/simulation")


def commit_here() -> str:
    """Return the commit of this code, with a `+` if there are uncommitted changes."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[3]), *arguments]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        return run.stdout.strip()

    changed = git("status", "--porcelain", "--", *_CODE)
    return (git("rev-parse", "--short", "HEAD") or "unknown") + ("+" if changed else "")


class Results:
    """The results in a file.

    Args:
        path: The file.
        commit: The commit of new results (see `commit_here`).
    """

    def __init__(self, path: Path, commit: str) -> None:
        self._path = path
        self._whose = {"commit": commit, "python": ".".join(platform.python_version_tuple()[:2])}

    def lines(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def known(self) -> set[int]:
        """Return the seeds that were played by this commit and this version of Python."""
        found: set[int] = set()
        for line in self.lines():
            if self._whose.items() <= line.items():
                found.update(range(line["from"], line["from"] + line["count"]))
        return found

    def add(self, part: Part) -> None:
        line = self._whose | {
            "from": part.seeds.start,
            "count": len(part.seeds),
            "failed": [each.seed for each in part.played if each.violations],
            "simulated": round(sum(each.simulated for each in part.played)),
            "cpu": round(part.cpu, 1),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def total(self) -> str:
        """Return a summary by commit, and of all."""
        by_commit: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in self.lines():
            by_commit[f"{line['commit']} on {line['python']}"].append(line)
        found = [f"{whose}: {_sum(lines)}" for whose, lines in by_commit.items()]
        return "\n".join([*found, f"in all: {_sum(self.lines())}"])


def _sum(lines: list[dict[str, Any]]) -> str:
    failed = sorted({seed for line in lines for seed in line["failed"]})
    days = sum(line["simulated"] for line in lines) / 86_400
    return (
        f"{sum(line['count'] for line in lines)} seeds, {len(failed)} failed {failed[:20]},"
        f" {days:.1f} days simulated, {sum(line['cpu'] for line in lines) / 3600:.2f} h of CPU"
    )
