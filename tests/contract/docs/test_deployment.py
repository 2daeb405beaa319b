"""What the files of docs/deploy start takes the options that stand there."""

from __future__ import annotations

import json
import re

import click
import pytest

from pushkit.cli.main import cli as pushkit
from receiver.cli import cli as receiver
from tests.contract.docs.blocks import ROOT

STARTS = re.compile(r'\b(pushkit|receiver)["\s,]+(worker|serve|gateway)\b(.*)')
FILES = [
    path
    for path in sorted((ROOT / "docs/deploy").rglob("*"))
    if path.suffix in {"", ".service", ".yaml"} and path.is_file()
]
STARTED = [
    pytest.param(name, command, options, id=path.name)
    for path in FILES
    for name, command, options in STARTS.findall(path.read_text("utf-8"))
]


def test_files_start_both_sides() -> None:
    assert {start.values[0] for start in STARTED} == {"pushkit", "receiver"}


def test_an_init_collects_what_programs_leave_behind() -> None:
    image = (ROOT / "docs/deploy/Dockerfile").read_text("utf-8").rpartition("\nFROM ")[2]
    [entry] = re.findall(r"^ENTRYPOINT (.+)$", image, re.MULTILINE)
    assert json.loads(entry) == ["tini", "--"]
    assert re.search(r"apt-get install .*\btini\b", image)
    # There, `command` would replace it.
    for path in (ROOT / "docs/deploy/kubernetes").rglob("*.yaml"):
        assert "command:" not in path.read_text("utf-8"), path


@pytest.mark.parametrize(("name", "command", "options"), STARTED)
def test_the_options_of_a_deployment_are_there(name: str, command: str, options: str) -> None:
    group = pushkit if name == "pushkit" else receiver
    found = group.get_command(click.Context(group), command)
    assert found is not None
    known = {option for parameter in found.params for option in parameter.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", options)) <= known
