"""What every command has in common."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from pushkit import __version__
from tests.system.cli.conftest import RECEIVER_TOML, ROOT, Ran, Run, ended
from tests.system.cli.every_command import PUSHKIT, RECEIVER, every_command


@pytest.mark.parametrize(
    "command",
    [f"pushkit {path}" for path, _ in every_command(PUSHKIT)]
    + [f"receiver {path}" for path, _ in every_command(RECEIVER)],
)
def test_every_command_explains_itself(run_line: Callable[[str], Ran], command: str) -> None:
    ran = run_line(f"{command} --help")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("Usage: ")
    assert "Example:" in ran.out or command.startswith("receiver")


@pytest.mark.parametrize("group", [PUSHKIT, RECEIVER], ids=["pushkit", "receiver"])
def test_no_list_of_commands_cuts_a_sentence(group: click.Group) -> None:
    groups = [each for _, each in every_command(group) if isinstance(each, click.Group)]
    listed = [each.get_help(click.Context(each, terminal_width=80)) for each in groups]
    lines = "\n".join(listed).splitlines()
    assert len(groups) > 1
    assert [line for line in lines if line.endswith("...") and "Usage:" not in line] == []


def test_both_say_their_version(pushkit_command: Run, receiver_command: Run) -> None:
    assert pushkit_command("--version").out == f"pushkit, version {__version__}\n"
    assert receiver_command("--version").out == f"receiver, version {__version__}\n"


@pytest.mark.slow
def test_a_terminal_without_unicode_shows_a_code_in_place_of_a_character() -> None:
    call = [sys.executable, "-m", "pushkit.cli.main", "outbox", "show", "--help"]
    done = ended(*call, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pushkit outbox show dlv_019bd4\\u2026 --body" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("jwks")
@pytest.mark.parametrize(
    ("command", "closed", "status"),
    [
        pytest.param("pushkit.cli.main migrate --database outbox.db", "2>&-", 0, id="progress"),
        pytest.param("receiver.cli check", ">&-", 0, id="colours"),
        pytest.param("pushkit.cli.main card inspect -", "<&-", 1, id="a file that is piped"),
        pytest.param("receiver.cli check", "<&- >&- 2>&-", 0, id="all"),
    ],
)
def test_a_closed_standard_stream_is_as_the_null_device(
    command: str, closed: str, status: int
) -> None:
    Path("receiver.toml").write_text(RECEIVER_TOML)
    line = f"exec {shlex.quote(sys.executable)} -m {command} {closed}"
    done = ended("sh", "-c", line)
    assert "Traceback" not in done.stderr
    assert done.returncode == status, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content", "options"),
    [
        pytest.param("receiver.py", "", [], id="a file"),
        pytest.param("receiver.py", "raise SystemExit(3)", ["--help"], id="a program"),
        pytest.param("receiver/__init__.py", "", ["--jwks", "jwks.json"], id="a package"),
    ],
)
def test_what_hides_a_package_with_commands_is_named_in_their_place(
    tmp_path: Path, file: str, content: str, options: list[str]
) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)

    call, before_ours = [sys.executable, "-m", "pushkit.cli.main"], f"{tmp_path}:{ROOT}"
    said = f"cannot be loaded: {path} hides the package `receiver`: rename it"
    listed = ended(*call, "--help", PYTHONPATH=before_ours)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "".join(f"listen {said}".split()) in "".join(listed.stdout.split())
    assert "\n  worker " in listed.stdout
    ran = ended(*call, "listen", *options, PYTHONPATH=before_ours)
    assert (ran.returncode, ran.stderr) == (1, f"Error: listen {said}\n")


@pytest.mark.slow
def test_a_command_whose_library_is_missing_is_reported_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("raise ImportError('no pydantic here')")
    for program in ("pushkit.cli.main", "receiver.cli"):
        ran = ended(sys.executable, "-m", program, "--help", PYTHONPATH=f"{tmp_path}:{ROOT}")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "cannot be loaded: no pydantic here" in ran.stdout
