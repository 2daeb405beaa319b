"""What every command has in common."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from pushkit import __version__
from pushkit.clock import utc_now
from pushkit.keys.jwks import jwks_document
from tests.eventually import DEADLINE
from tests.system.cli.conftest import RECEIVER_TOML, RING, ROOT, Ran, Run, environment
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


@pytest.mark.parametrize("module", ["pushkit.cli.main", "receiver.cli"])
@pytest.mark.slow
def test_both_run_as_modules(module: str) -> None:
    done = subprocess.run(  # noqa: S603  # our own commands
        [sys.executable, "-m", module, "--help"],
        env=environment(),
        capture_output=True,
        check=False,
        timeout=DEADLINE,
    )
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.slow
def test_a_terminal_without_unicode_shows_a_code_in_place_of_a_character() -> None:
    done = subprocess.run(  # ours
        [sys.executable, "-m", "pushkit.cli.main", "outbox", "show", "--help"],
        env=environment(PYTHONIOENCODING="latin-1"),
        capture_output=True,
        check=False,
        timeout=DEADLINE,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"pushkit outbox show dlv_019bd4\\u2026 --body" in done.stdout


@pytest.mark.slow
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
    Path("jwks.json").write_bytes(jwks_document(RING, utc_now()))
    line = f"exec {shlex.quote(sys.executable)} -m {command} {closed}"
    done = subprocess.run(  # noqa: S602  # a shell closes it
        line, shell=True, env=environment(), capture_output=True, check=False, timeout=DEADLINE
    )
    assert b"Traceback" not in done.stderr
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

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603  # ours
            [sys.executable, "-m", "pushkit.cli.main", *words],
            env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"),
            capture_output=True,
            text=True,
            check=False,
        )

    said = f"cannot be loaded: {path} hides the package `receiver`: rename it"
    listed = run("--help")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "".join(f"listen {said}".split()) in "".join(listed.stdout.split())
    assert "\n  worker " in listed.stdout
    ran = run("listen", *options)
    assert ran.returncode == 1
    assert ran.stderr == f"Error: listen {said}\n"


@pytest.mark.slow
def test_a_command_whose_library_is_missing_is_reported_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "pydantic.py").write_text("raise ImportError('no pydantic here')")
    for program in ("pushkit.cli.main", "receiver.cli"):
        ran = subprocess.run(  # noqa: S603  # ours
            [sys.executable, "-m", program, "--help"],
            env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "cannot be loaded: no pydantic here" in ran.stdout
