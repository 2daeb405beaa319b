"""The reference names every option, setting, command, metric, event and code there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import click
import pytest

from pushkit.terminal.tables import SettingsTable, settings_in
from receiver.settings import ReceiverSettings
from tests.contract.test_public_api import PUBLIC
from tests.system.cli.every_command import PUSHKIT, RECEIVER, every_command

ROOT = Path(__file__).resolve().parent.parent.parent
GENERATE = ROOT / "docs" / "reference" / "generate.py"


def test_the_reference_is_what_the_code_says() -> None:
    checked = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, str(GENERATE), "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_has_a_signature(package: str) -> None:
    pages = [path.read_text("utf-8") for path in (ROOT / "docs/reference/python").glob("*.md")]
    sections = {
        match[1]: match[2]
        for page in pages
        for match in re.finditer(r"^## (\w+)\n\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    }
    for name in PUBLIC[package]:
        assert "```python\n" in sections[name], name


def test_every_table_of_the_receivers_file_has_a_section() -> None:
    page = (ROOT / "docs/reference/receiver-settings.md").read_text("utf-8")
    tables = [
        name
        for name, field in settings_in(ReceiverSettings).items()
        if any(
            isinstance(each, type) and issubclass(each, SettingsTable)
            for each in (field.annotation, *get_args(field.annotation))
        )
    ]
    assert {"mailbox", "tls"} < set(tables)
    for name in tables:
        assert re.search(rf"^## `\[+{name}\]+`$", page, re.MULTILINE), name


@pytest.mark.parametrize("group", [PUSHKIT, RECEIVER], ids=["pushkit", "receiver"])
def test_every_option_names_the_variable_that_may_stand_for_it(group: click.Group) -> None:
    page = (ROOT / "docs/reference/command-line.md").read_text("utf-8")
    rows = page.splitlines()
    found = {
        (option.opts[0], option.envvar)
        for _, command in every_command(group)
        for option in command.params
        if isinstance(option, click.Option) and option.envvar
    }
    assert found
    for name, variable in found:
        assert any(f"| `{name}` " in row and f"`{variable}`" in row for row in rows), variable


def test_a_command_that_cannot_be_loaded_writes_no_page(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('No module named jinja2')")
    metadata = tmp_path / "broken-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[pushkit.commands]\nbroken = broken:cli\n")
    written = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, str(GENERATE), "--check"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
    )
    assert written.returncode == 1
    assert "pushkit broken cannot be loaded: No module named jinja2" in written.stderr
