"""`listen` in its own process, and the use of what it saves."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import pytest

import pushkit.cli.main
import receiver.cli
from receiver.listening.command import listen
from tests.eventually import DEADLINE, eventually_sync
from tests.forked import forked
from tests.ports import free_port
from tests.system.cli.conftest import ROOT, Run, environment, running

pytestmark = pytest.mark.slow


def listening(
    folder: Path, *options: str
) -> contextlib.AbstractContextManager[tuple[subprocess.Popen[str], Path]]:
    """Run `receiver listen` until the block ends; yield the process and its output."""
    call = [*forked("receiver.cli"), "listen", "--listen", "127.0.0.1:0", *options]
    return running(folder, *call)


def trial(output: Path) -> list[str]:
    """Return the arguments of the command that it prints for trying it."""
    lines = eventually_sync(
        lambda: [line for line in output.read_text().splitlines() if "pushkit trigger" in line]
    )
    return shlex.split(lines[0])[1:]


def test_the_printed_command_works_and_saved_requests_are_verified_and_replayed(
    tmp_path: Path, pushkit_command: Run
) -> None:
    with listening(tmp_path, "--save", "saved", "--token", "it's;a-token") as (process, output):
        tried = trial(output)
        ran = pushkit_command(*tried)
        assert (ran.status, ran.err) == (0, "")
        saved = sorted(str(path) for path in (tmp_path / "saved").glob("*-accepted.http"))
        assert len(saved) == 3

        for path in saved:
            verified = pushkit_command("verify", path)
            assert (verified.status, verified.err) == (0, ""), verified.out
            assert "✗" not in verified.out

        url = next(argument for argument in tried if argument.startswith("http://"))
        replayed = pushkit_command("replay", *saved, url)
        assert (replayed.status, replayed.err) == (0, "")
        assert replayed.out.count("answered 200") == 3

        token = tried[tried.index("--token") + 1]
        refused = pushkit_command("trigger", "completed", url, "--token", token)
        assert refused.status == 1
        assert "a new key, which receivers do not know" in refused.err

        process.terminate()
        assert process.wait(DEADLINE) == 0
    shown = output.read_text()
    assert shown.count("202 accepted") == 3
    assert shown.count("200 duplicate") == 3
    assert shown.count("401 invalid_signature") == 1
    assert f'{{"url": "{url}", "token": "{token}"}}' in shown
    assert "Traceback" not in shown
    assert "\x1b" not in shown


def test_it_ends_when_nobody_reads_what_it_shows(tmp_path: Path, pushkit_command: Run) -> None:
    call = [*forked("receiver.cli"), "listen", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(  # noqa: S603  # our own command
        call,
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            [tried] = [line for line in iter(process.stdout.readline, "\n") if "trigger" in line]
            process.stdout.close()
            pushkit_command(*shlex.split(tried)[1:])

            assert process.wait(DEADLINE) == 1
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_request_that_was_changed_is_explained(tmp_path: Path, pushkit_command: Run) -> None:
    with listening(tmp_path, "--save", "saved", "--brief") as (_, output):
        assert pushkit_command(*trial(output)).status == 0
    [path] = (tmp_path / "saved").glob("*-0001-*.http")
    path.write_bytes(path.read_bytes().replace(b"120 of 480", b"480 of 480"))
    ran = pushkit_command("verify", str(path))
    assert ran.status == 1
    assert ran.error == "1 step fails: body"


def test_replay_names_the_file_that_is_no_request(pushkit_command: Run, tmp_path: Path) -> None:
    path = tmp_path / "0001-accepted.json"
    path.write_text("{}")
    ran = pushkit_command("replay", str(path), f"http://127.0.0.1:{free_port()}/")
    assert (ran.status, ran.out) == (1, "")
    assert "0001-accepted.json: the request file: expected members" in ran.err


def test_replay_says_what_cannot_be_reached(pushkit_command: Run, tmp_path: Path) -> None:
    path = tmp_path / "one.http"
    path.write_bytes(b"POST /a2a/push HTTP/1.1\r\nContent-Type: application/json\r\n\r\n{}")
    ran = pushkit_command("replay", str(path), f"http://127.0.0.1:{free_port()}/")
    assert ran.status == 1
    assert ran.err.startswith("one.http: connection_refused: ")


@pytest.mark.parametrize("version", ["1.0", "0.3"])
def test_trigger_makes_what_a_webhook_of_either_version_can_read(
    pushkit_command: Run, tmp_path: Path, version: str
) -> None:
    with listening(tmp_path, "--any-key") as (_, output):
        tried = trial(output)
        kinds = ["submitted", "working", "input-required", "artifact", "completed", "task"]
        rest = tried[tried.index("completed") + 1 :]
        ran = pushkit_command("trigger", *kinds, *rest, "--version", version)
        assert (ran.status, ran.err) == (0, "")
        to, token = tried[tried.index("completed") + 1], tried[tried.index("--token") + 1]
        with_a_fresh_key = pushkit_command("trigger", "completed", to, "--token", token)
        assert with_a_fresh_key.status == 0, with_a_fresh_key.out
    said = output.read_text()
    assert said.count("202 accepted") == len(kinds) + 1
    assert "warning: --any-key" in said


# --- `pushkit` offers the receiver's commands without importing it -------------------------------


def test_the_receiver_offers_pushkit_its_own_commands() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    context = click.Context(receiver.cli.cli)
    for name, target in project["entry-points"]["pushkit.commands"].items():
        module, _, attribute = target.partition(":")
        command = getattr(__import__(module, fromlist=[attribute]), attribute)
        assert command is receiver.cli.cli.get_command(context, name)
    assert receiver.cli.cli.get_command(context, "listen") is listen


def test_pushkit_has_the_commands_that_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "other-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[pushkit.commands]\neavesdrop = receiver.listening.command:listen\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    group = pushkit.cli.main.cli
    context = click.Context(group)
    assert {"eavesdrop", "send"} <= set(group.list_commands(context))
    assert group.get_command(context, "eavesdrop") is listen
    assert group.get_command(context, "nonsense") is None
