"""`pushkit worker --http`, and `receiver serve` with `ops_listen`, as operators see them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pushkit import KeyRing, save_key_ring
from pushkit.terminal.processes import Relay
from tests.eventually import DEADLINE, eventually_sync
from tests.forked import forked
from tests.metrics_page import MetricsRead
from tests.ports import free_port
from tests.system.cli.conftest import (
    ISSUER,
    RECEIVER_TOML,
    TOKEN,
    UPDATE,
    Run,
    Webhook,
    enqueue,
    page_at,
    running,
)

pytestmark = pytest.mark.slow

Start = Callable[..., "tuple[subprocess.Popen[str], Path]"]

RECEIVER = f'{RECEIVER_TOML}tokens = ["{TOKEN}"]\ntasks = "any"\n'


@pytest.fixture
def start(jwks: Path) -> Iterator[Start]:
    """Start a command in a process of its own, and return that and its output."""
    with contextlib.ExitStack() as started:

        def run(
            module: str, *arguments: str, **variables: str
        ) -> tuple[subprocess.Popen[str], Path]:
            # systemd knows a process by its id.
            alone = "NOTIFY_SOCKET" in variables
            command = [sys.executable, "-m", module] if alone else forked(module)
            return started.enter_context(running(jwks.parent, *command, *arguments, **variables))

        yield run


def worker(*more: str, port: int, database: str) -> list[str]:
    to = ["--database", database, "--issuer", ISSUER, "--allow", "127.0.0.1:*"]
    return ["pushkit.cli.main", "worker", *to, "--http", f"127.0.0.1:{port}", *more]


def receiving_at(port: int, ops: int) -> dict[str, str]:
    """Return the variables that let `receiver serve` listen at two ports."""
    return {
        "RECEIVER_URL": f"http://127.0.0.1:{port}",
        "RECEIVER_LISTEN": f"127.0.0.1:{port}",
        "RECEIVER_OPS_LISTEN": f"127.0.0.1:{ops}",
    }


def test_the_processes_of_a_worker_answer_for_all_of_them(
    start: Start, webhook: Webhook, tmp_path: Path
) -> None:
    database, port = str(tmp_path / "outbox.db"), free_port()
    enqueue(database, webhook, 6)
    process, _ = start(*worker("--processes", "2", port=port, database=database))

    def all_delivered() -> MetricsRead | None:
        status, body = page_at(port, "/metrics")
        found = MetricsRead.of(body) if status == 200 else None
        both = found and found.value("pushkit_slots", state="free") == 512
        delivered = found and found.value("pushkit_delivery_latency_seconds_count")
        return found if both and delivered == 6 else None

    found = eventually_sync(all_delivered)
    assert found is not None
    origin = f"http://127.0.0.1:{webhook.port}"
    assert found.value("pushkit_attempts_total", origin=origin, code="ok") == 6
    assert found.value("pushkit_subscriptions", state="active") == 6
    assert page_at(port, "/healthz") == (200, b"alive\n")
    assert page_at(port, "/readyz") == (200, b"ready\n")
    assert page_at(port, "/else")[0] == 404
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", data=b"")
    with refused.value as answer:
        assert (answer.code, answer.headers["Allow"]) == (405, "GET, HEAD")
    process.terminate()
    assert process.wait(DEADLINE) == 0


def test_a_worker_that_has_no_key_says_so_in_one_line(start: Start, tmp_path: Path) -> None:
    ring = KeyRing.create(datetime.now(UTC))
    [key] = ring.keys
    save_key_ring(tmp_path / "keys.json", ring)
    port = free_port()
    start(*worker(port=port, database=str(tmp_path / "outbox.db")))
    eventually_sync(lambda: page_at(port, "/readyz") == (200, b"ready\n"))
    (tmp_path / "keys.json").unlink()
    later = KeyRing(keys=()).add(datetime.now(UTC))
    save_key_ring(tmp_path / "keys.json", later)
    eventually_sync(lambda: page_at(port, "/readyz")[0] == 503)
    status, body = page_at(port, "/readyz")
    first, second = body.decode().splitlines()
    assert (status, first) == (503, "not ready")
    assert second.startswith("keys: no ES256 key is active; the next one signs from ")
    assert key.kid not in body.decode()


def test_a_dashboard_logs_nothing_of_a_request_that_is_no_http(
    start: Start, webhook: Webhook, tmp_path: Path
) -> None:
    database, port = str(tmp_path / "outbox.db"), free_port()
    enqueue(database, webhook, 1)
    listen = ["--listen", f"127.0.0.1:{port}"]
    _, output = start("pushkit.cli.main", "dashboard", "--database", database, *listen)
    eventually_sync(lambda: page_at(port, "/")[0] == 200)
    with socket.create_connection(("127.0.0.1", port), DEADLINE) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\ncanary\r\n\r\n")
        assert b" 400 " in stranger.recv(1000)
    assert output.read_text() == f"dashboard on http://127.0.0.1:{port}/\n"


def test_a_port_that_is_taken_is_said_before_anything_starts(
    pushkit_command: Run, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = worker(port=port, database=str(tmp_path / "outbox.db"))[1:]
        ran = pushkit_command(*arguments)
    assert (ran.status, ran.error) == (
        1,
        f"--http: cannot listen on 127.0.0.1:{port}: Address already in use",
    )


@pytest.mark.parametrize("address", ["127.0.0.1", "9702", "127.0.0.1:99999", "127.0.0.1:http"])
@pytest.mark.parametrize("command", ["worker", "dashboard"])
def test_an_address_without_a_port_is_told(
    pushkit_command: Run, tmp_path: Path, command: str, address: str
) -> None:
    database = str(tmp_path / "outbox.db")
    assert pushkit_command("migrate", "--database", database).status == 0
    option = "--http" if command == "worker" else "--listen"
    issuer = ("--issuer", ISSUER) if command == "worker" else ()
    ran = pushkit_command(command, "--database", database, option, address, *issuer)
    assert (ran.status, ran.error) == (1, f"{option}: found {address!r}, expected host:port")


def test_a_receiver_answers_operators_apart_from_webhooks(
    start: Start, pushkit_command: Run, own_folder: Path
) -> None:
    port, ops = free_port(), free_port()
    (own_folder / "receiver.toml").write_text(RECEIVER)
    process, _ = start("receiver.cli", "serve", "--processes", "2", **receiving_at(port, ops))
    eventually_sync(lambda: page_at(ops, "/readyz") == (200, b"ready\n"))
    sent = pushkit_command(
        *("send", "-", "--to", f"http://127.0.0.1:{port}/a2a/push", "--issuer", ISSUER),
        *("--allow", "127.0.0.1:*", "--token", TOKEN),
        stdin=UPDATE,
    )
    assert sent.status == 0, sent.err
    found = MetricsRead.of(page_at(ops, "/metrics")[1])
    assert found.value("receiver_notifications_total", sender="agent", result="accepted") == 1
    assert found.value("receiver_keys_missing", sender="agent") == 0
    status, body = page_at(port, "/metrics")
    assert (status, b"receiver_" in body) == (404, False)
    process.terminate()
    assert process.wait(DEADLINE) == 0


def test_a_worker_logs_objects_with_code_and_delivery(
    start: Start, webhook: Webhook, tmp_path: Path
) -> None:
    database, port = str(tmp_path / "outbox.db"), free_port()
    webhook.status = 503
    [delivery_id] = enqueue(database, webhook, 1)
    _, output = start(*worker("--log-format", "json", port=port, database=database))

    def attempted() -> dict[str, object] | None:
        written = output.read_text().splitlines()
        lines = [json.loads(line) for line in written if line.startswith("{")]
        return next((line for line in lines if line.get("code") == "attempt"), None)

    line = eventually_sync(attempted)
    assert line is not None
    assert (line["delivery_id"], line["level"], line["task"]) == (delivery_id, "warning", "task-1")
    assert (line["outcome"], line["status"], line["error"]) == ("retry", 503, "status_503")


# --- systemd ------------------------------------------------------------------------------------


class Systemd:
    """A socket as systemd has it, and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.channel.bind(str(folder / "n"))
        self.channel.settimeout(DEADLINE)
        self.variables = {"NOTIFY_SOCKET": str(folder / "n"), "WATCHDOG_USEC": "200000"}

    def hears(self) -> tuple[str, int]:
        """Return the next thing that it is told, and by which process."""
        said = dict(line.split("=") for line in self.channel.recv(4096).decode().splitlines())
        return next(name for name in said if name != "X_PROCESS"), int(said["X_PROCESS"])

    def hears_until(self, word: str) -> set[int]:
        """Return who said anything until a word was said."""
        who = set()
        while True:
            said, process = self.hears()
            who.add(process)
            if said == word:
                return who


@pytest.fixture
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    systemd = Systemd(tmp_path_factory.mktemp("s"))
    yield systemd
    systemd.channel.close()


def test_systemd_hears_of_a_worker(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    command = worker(port=free_port(), database=str(tmp_path / "outbox.db"))
    process, _ = start(*command, **systemd.variables)
    assert systemd.hears() == ("READY", process.pid)
    for _ in range(3):
        assert systemd.hears() == ("WATCHDOG", process.pid)
    process.terminate()
    assert systemd.hears_until("STOPPING") == {process.pid}
    assert process.wait(DEADLINE) == 0


def test_a_process_that_died_does_not_speak_for_one_that_is_silent(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.variables["NOTIFY_SOCKET"])
    with Relay(2) as relay, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as process:
        with relay.receiving():
            process.connect(os.environ["NOTIFY_SOCKET"])

        def says(word: str, number: int) -> None:
            process.send(f"{word}=1\nX_PROCESS={number}\n".encode())
            relay.forward()

        for number in (101, 102):  # started again and again, beside one that does not begin
            says("READY", number)
            says("WATCHDOG", number)
            relay.forget(number)
        says("READY", 103)
        says("READY", 201)
        says("WATCHDOG", 201)
        says("WATCHDOG", 103)
    assert [systemd.hears()[0] for _ in range(2)] == ["READY", "WATCHDOG"]
    systemd.channel.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.hears()


def test_systemd_hears_of_all_processes_from_the_one_that_it_started_alone(
    start: Start, systemd: Systemd, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    temporary = tmp_path_factory.mktemp("t")
    command = worker("--processes", "2", port=free_port(), database=str(tmp_path / "outbox.db"))
    process, _ = start(*command, **systemd.variables, TMPDIR=str(temporary))
    assert systemd.hears() == ("READY", process.pid)
    for _ in range(3):
        assert systemd.hears() == ("WATCHDOG", process.pid)

    # Where temporary files were removed, they go on reporting.
    for folder in temporary.iterdir():
        shutil.rmtree(folder)
    for _ in range(5):
        assert systemd.hears() == ("WATCHDOG", process.pid)

    # One that stands still silences the whole.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    worker_processes = [
        int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert len(worker_processes) == 2
    os.kill(worker_processes[0], signal.SIGSTOP)
    systemd.channel.settimeout(1)
    with pytest.raises(TimeoutError):
        systemd.hears_until("STOPPING")
    os.kill(worker_processes[0], signal.SIGCONT)
    systemd.channel.settimeout(DEADLINE)
    assert systemd.hears() == ("WATCHDOG", process.pid)

    process.terminate()
    assert systemd.hears_until("STOPPING") == {process.pid}
    assert process.wait(DEADLINE) == 0
    assert list(temporary.iterdir()) == []


def test_systemd_hears_of_a_receiver(start: Start, systemd: Systemd, own_folder: Path) -> None:
    port, ops = free_port(), free_port()
    (own_folder / "receiver.toml").write_text(RECEIVER)
    process, _ = start("receiver.cli", "serve", **receiving_at(port, ops), **systemd.variables)
    assert systemd.hears() == ("READY", process.pid)
    assert page_at(port, "/healthz")[0] == 200
    assert systemd.hears() == ("WATCHDOG", process.pid)
    process.terminate()
    assert systemd.hears_until("STOPPING") == {process.pid}
    assert process.wait(DEADLINE) == 0
