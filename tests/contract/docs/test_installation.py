"""It is installed from its folder: on the index, `pushkit` is another project."""

from __future__ import annotations

import re
import tomllib

from tests.contract.docs.blocks import ROOT

# A name, maybe after options: `pip install -U pushkit`, `pip install 'a2a-pushkit[redis]'`.
BY_NAME = re.compile(r"pip install\s(?:-\S+\s)*['\"]?(?:a2a-)?pushkit\b")


def test_nothing_tells_users_to_install_the_package_of_another_project() -> None:
    files = [ROOT / "README.md"]
    for folder in ("docs", "examples", "pushkit", "receiver"):
        for kind in ("*.md", "*.py", "*.toml", "*.yaml", "*.yml", "*Dockerfile*"):
            files += (ROOT / folder).rglob(kind)
    assert len(files) > 100
    found = [str(path) for path in files if BY_NAME.search(path.read_text("utf-8"))]
    assert found == []


def test_a_checkout_for_tests_runs_the_demo_as_well() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert set(extras["demo"]) <= set(extras["test"])  # the Makefile relies on it
