"""What every command has in common."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from pushkit import __version__
from tests.eventually import DEADLINE
from tests.system.cli.conftest import ROOT, Run, environment
from tests.system.cli.every_command import PUSHKIT, RECEIVER, every_command


@pytest.mark.parametrize("command", [path for path, _ in every_command(PUSHKIT)])
def test_pushkit_explains_itself(pushkit_command: Run, command: str) -> None:
    ran = pushkit_command(*command.split(), "--help")
    assert ran.status == 0
    assert ran.out.startswith("Usage: ")
    assert "Example:" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize("command", [path for path, _ in every_command(RECEIVER)])
def test_receiver_explains_itself(receiver_command: Run, command: str) -> None:
    ran = receiver_command(*command.split(), "--help")
    assert ran.status == 0
    assert ran.out.startswith("Usage: ")
    assert ran.err == ""


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


@pytest.mark.parametrize(
    "call", [["nonsense"], ["keys", "nonsense"], ["send"], ["verify"], ["keys", "revoke"]], ids=str
)
def test_a_wrong_call_of_pushkit_ends_with_2_and_the_usage(
    pushkit_command: Run, call: list[str]
) -> None:
    ran = pushkit_command(*call)
    assert ran.status == 2
    assert ran.err.startswith("Usage: ")
    assert ran.out == ""


@pytest.mark.parametrize("call", [["nonsense"], ["serve", "--nonsense"]], ids=str)
def test_a_wrong_call_of_receiver_ends_with_2_and_the_usage(
    receiver_command: Run, call: list[str]
) -> None:
    ran = receiver_command(*call)
    assert ran.status == 2
    assert ran.err.startswith("Usage: ")


_OUTBOX = ("--database", "outbox.db")
_URL = "http://127.0.0.1:1/"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (["outbox", "purge", *_OUTBOX, "--keep", "1", "--state", "dead"], "--older-than"),
        (["outbox", "resend", *_OUTBOX, "dlv_1", "--from-seq", "3"], "a filter or --all"),
        (["outbox", "resend", *_OUTBOX, "dlv_1", "--state", "cancelled"], "a filter or --all"),
        (["doctor", _URL, "--token", "t", "--jwks", "jwks.json"], "--sender"),
        (["doctor", _URL, "--token", "t", "--run", "true"], "--sender"),
        (["doctor", "--sender", "--rounds", "3"], "a receiver, without --sender"),
    ],
    ids=str,
)
def test_an_option_of_pushkit_without_effect_is_refused(
    pushkit_command: Run, call: list[str], says: str
) -> None:
    ran = pushkit_command(*call)
    assert ran.status == 2
    assert f"{call[-2]} is only for {says}\n" in ran.err


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (["check", "--keys", __file__], "--url"),
        (["check", "--sender", "agent"], "--url"),
        (["expect", "--overlap", "60"], "--replaces"),
        (["inbox", "purge", "--keep", "1", "--status", "dead"], "--older-than"),
    ],
    ids=str,
)
def test_an_option_of_receiver_without_effect_is_refused(
    receiver_command: Run, call: list[str], says: str
) -> None:
    ran = receiver_command(*call)
    assert ran.status == 2
    assert f"{call[-2]} is only for {says}\n" in ran.err


def test_a_sender_or_the_receiver_at_a_url_is_examined(pushkit_command: Run) -> None:
    ran = pushkit_command("doctor", _URL, "--sender")
    assert ran.status == 2
    assert "expected URL and --token; or --sender" in ran.err


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
    ("file", "content"),
    [
        pytest.param("receiver.py", "", id="a file"),
        pytest.param("receiver.py", "raise SystemExit(3)", id="a program"),
        pytest.param("receiver/__init__.py", "", id="a package"),
    ],
)
def test_what_hides_a_package_with_commands_is_named_in_their_place(
    tmp_path: Path, file: str, content: str
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
    for options in ([], ["--help"], ["--jwks", "jwks.json"]):
        ran = run("listen", *options)
        assert ran.returncode == 1
        assert ran.stderr == f"Error: listen {said}\n"
    assert run("keys", "--help").returncode == 0


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


@pytest.mark.parametrize(
    ("command", "says"),
    [
        pytest.param(["keys", "new", "x" * 300], "File name too long", id="path"),
        pytest.param(["keys", "new", ""], ".: a folder, expected a file", id="no-key-file"),
        pytest.param(["secrets", "generate", ""], ".: a folder, expected a file", id="no-secrets"),
    ],
)
def test_what_the_system_refuses_is_an_error_on_one_line(
    pushkit_command: Run, command: list[str], says: str
) -> None:
    ran = pushkit_command(*command)
    assert ran.status == 1
    assert says in ran.error
