"""`receiver serve` as a process of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import ISSUER, UPDATE, Ran, Run, environment, free_port
from tests.eventually import DEADLINE, eventually_sync

CONFIG = """\
url = "http://127.0.0.1:{port}"
listen = "127.0.0.1:{listen}"

[[senders]]
name = "agent"
issuer = "{issuer}"
jwks_file = "jwks.json"
tasks = "bind"

[[callbacks]]
call = "service_handlers:seen"
"""
HANDLERS = """\
async def seen(notification):
    print("SEEN", notification.task_id, notification.seq, flush=True)
"""


@dataclass
class Service:
    """A receiver that runs, and the sender's side of it."""

    port: int
    process: subprocess.Popen[str]
    output: Path
    token: str
    pushkit: Run

    def send(self, *options: str) -> Ran:
        """Send the update with `pushkit send`."""
        url = f"http://127.0.0.1:{self.port}/a2a/push"
        to = ["--to", url, "--issuer", ISSUER, "--allow", "127.0.0.1:*"]
        return self.pushkit("send", "-", *to, "--token", self.token, *options, stdin=UPDATE)

    def seen(self) -> list[str]:
        """Return what the callback printed."""
        lines = self.output.read_text().splitlines()
        return [line for line in lines if line.startswith("SEEN")]

    def stop(self) -> int:
        """End the service as an init system does; return its exit status."""
        self.process.terminate()
        return self.process.wait(DEADLINE)


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def running(folder: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run `receiver serve`, listening where the environment says."""
    output = folder / "output.log"
    with (
        output.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-m", "receiver.cli", "serve"],
            cwd=folder,
            env=environment(RECEIVER_LISTEN=f"127.0.0.1:{port}"),
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            eventually_sync(lambda: is_listening(port) or process.poll() is not None)
            yield process, output
        finally:
            process.kill()


@pytest.fixture
def service(tmp_path: Path, pushkit_command: Run, receiver_command: Run) -> Iterator[Service]:
    port, unused = free_port(), 1
    text = CONFIG.format(port=port, listen=unused, issuer=ISSUER)
    (tmp_path / "receiver.toml").write_text(text)
    (tmp_path / "service_handlers.py").write_text(HANDLERS)
    pushkit_command("keys", "new")
    pushkit_command("keys", "export", "--out", "jwks.json")
    token = json.loads(receiver_command("expect").out)["token"]
    with running(tmp_path, port) as (process, output):
        yield Service(
            port=port, process=process, output=output, token=token, pushkit=pushkit_command
        )


def test_a_sent_update_is_called_back_once_and_sigterm_ends_the_service(service: Service) -> None:
    assert service.send("--id", "dlv_1").status == 0
    again = service.send("--id", "dlv_1")
    assert "< 200 (delivered)" in again.out
    assert service.send("--id", "dlv_2", "--seq", "2").status == 0
    eventually_sync(lambda: len(service.seen()) >= 2)
    assert service.seen() == ["SEEN task-1 1", "SEEN task-1 2"]

    refused = service.send("--token", "guessed")
    assert refused.status == 1
    assert "< 401" in refused.out

    assert service.stop() == 0
    output = service.output.read_text()
    assert f"receiving from agent at http://127.0.0.1:{service.port}/a2a/push" in output
    assert "refused 401 invalid_token" in output
    assert "Traceback" not in output
    assert service.token not in output


def test_a_hangup_changes_the_senders_and_a_mistake_changes_nothing(
    service: Service, tmp_path: Path
) -> None:
    config = tmp_path / "receiver.toml"
    assert service.send().status == 0
    config.write_text(config.read_text() + "\nno TOML")
    service.process.send_signal(signal.SIGHUP)
    eventually_sync(lambda: "stay in use" in service.output.read_text())
    assert service.send("--id", "dlv_2").status == 0

    another = CONFIG.format(port=service.port, listen=1, issuer="https://other.example.com")
    config.write_text(another)
    service.process.send_signal(signal.SIGHUP)

    eventually_sync(lambda: service.send("--id", "dlv_3").status == 1)
    assert "refused 403 unknown_sender" in service.output.read_text()
    assert service.stop() == 0


def test_a_port_that_is_taken_is_one_line(service: Service, tmp_path: Path) -> None:
    taken = service.port
    done = subprocess.run(
        [sys.executable, "-m", "receiver.cli", "serve"],
        cwd=tmp_path,
        env=environment(RECEIVER_LISTEN=f"127.0.0.1:{taken}", RECEIVER_DATABASE="other.db"),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    expected = f"error: listen: cannot listen on 127.0.0.1:{taken}: Address already in use\n"
    assert done.stderr == expected


def test_a_database_that_cannot_be_opened_is_one_line(service: Service, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "receiver.cli", "serve"],
        cwd=tmp_path,
        env=environment(
            RECEIVER_LISTEN=f"127.0.0.1:{free_port()}", RECEIVER_DATABASE="none/inbox.db"
        ),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert service.process.poll() is None
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "inbox.db" in line
