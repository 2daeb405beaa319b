"""Packages whose names are imported when they are first used."""

from __future__ import annotations

import importlib
import py_compile
import zipfile
from pathlib import Path

import pytest

DOOR = """
from typing import TYPE_CHECKING
from pushkit.lazy import names_on_demand

if TYPE_CHECKING:
    from json import dumps as dumps
    from antigravity import fly as fly  # no program loads it by mistake
else:
    __all__, __getattr__, __dir__ = names_on_demand()
"""


def test_a_package_of_a_zip_without_source_has_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, archive = tmp_path / "door.py", tmp_path / "frozen.zip"
    source.write_text(DOOR, "utf-8")
    compiled = py_compile.compile(str(source), str(tmp_path / "door.pyc"), doraise=True)
    with zipfile.ZipFile(archive, "w") as written:
        written.write(str(compiled), "frozen_door/__init__.pyc")
    monkeypatch.syspath_prepend(str(archive))
    door = importlib.import_module("frozen_door")
    assert door.__all__ == dir(door) == ["dumps", "fly"]
    assert "dumps" not in vars(door)
    assert door.dumps([1]) == "[1]"
    assert "dumps" in vars(door), "the next access does not ask again"
