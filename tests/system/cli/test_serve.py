"""`receiver serve` as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from pushkit import load_key_ring
from receiver.testing import SigningAgent
from tests.eventually import DEADLINE, eventually_sync
from tests.forked import forked
from tests.metrics_page import MetricsRead
from tests.ports import free_port
from tests.system.cli.conftest import ISSUER, UPDATE, UVLOOPS, Ran, Run, ended, page_at, running

pytestmark = pytest.mark.slow

CONFIG = """\
url = "http://127.0.0.1:{port}{prefix}"
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


# Each hangs with what it gets, as long as there is no file `go-on`.
HANGING = """\
import asyncio, contextlib, pathlib, time
def say(notification):  # threads do so at once: in one piece
    print(f"SEEN {notification.task_id} {notification.seq}\\n", end="", flush=True)
def wait():
    while not pathlib.Path("go-on").exists():
        time.sleep(0.05)
def seen(notification):
    say(notification)
    wait()
async def in_a_thread_of_the_loop(notification):
    say(notification)
    await asyncio.to_thread(wait)
async def swallows_its_cancellation(notification):
    say(notification)
    while not pathlib.Path("go-on").exists():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)
"""
EACH_ITS_TASK = """\
tasks = ["task-1"]
[[callbacks]]
call = "hanging:in_a_thread_of_the_loop"
tasks = ["task-2"]
[[callbacks]]
call = "hanging:swallows_its_cancellation"
tasks = ["task-3"]
"""


@dataclass
class Service:
    """A receiver that runs, and the sender's side of it."""

    port: int
    process: subprocess.Popen[str]
    output: Path
    token: str
    pushkit: Run

    def send(self, *options: str, task: str = "task-1") -> Ran:
        """Send the update with `pushkit send`."""
        url = f"http://127.0.0.1:{self.port}/a2a/push"
        to = ["--to", url, "--issuer", ISSUER, "--allow", "127.0.0.1:*", "--timeout", "120"]
        update = UPDATE.replace(b"task-1", task.encode())
        return self.pushkit("send", "-", *to, "--token", self.token, *options, stdin=update)

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


Start = Callable[..., Service]


@pytest.fixture
def start(jwks: Path, pushkit_command: Run, receiver_command: Run) -> Iterator[Start]:
    """Run the service with these options, and these lines before the tables of its file."""
    port, unused = free_port(), 1
    with contextlib.ExitStack() as stack:

        def run(
            *options: str,
            settings: str = "",
            first: str = "",
            prefix: str = "",
            handlers: str = HANDLERS,
            command: list[str] | None = None,
        ) -> Service:
            text = CONFIG.format(port=port, listen=unused, issuer=ISSUER, prefix=prefix)
            jwks.with_name("receiver.toml").write_text(first + text + settings)
            jwks.with_name("service_handlers.py").write_text(handlers)
            token = json.loads(receiver_command("expect").out)["token"]
            call = [*(command or forked("receiver.cli")), "serve", *options]
            process, output = stack.enter_context(
                running(jwks.parent, *call, RECEIVER_LISTEN=f"127.0.0.1:{port}")
            )
            eventually_sync(lambda: is_listening(port) or process.poll() is not None)
            return Service(
                port=port, process=process, output=output, token=token, pushkit=pushkit_command
            )

        yield run


@pytest.fixture
def service(start: Start) -> Service:
    return start()


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


def test_the_path_of_its_url_may_stand_before_its_senders_paths_or_be_left_out(
    start: Start,
) -> None:
    service = start(prefix="/hooks")
    audience = f"http://127.0.0.1:{service.port}/hooks/a2a/push"
    by = ["--issuer", ISSUER, "--keys", "keys.json", "--token", service.token, "--task", "t"]
    for path, status in [
        ("/hooks/a2a/push", 0),
        ("/a2a/push", 0),
        ("/%68ooks/a2a/push", 0),
        ("/hooks/hooks/a2a/push", 1),
    ]:
        to = f"http://127.0.0.1:{service.port}{path}"
        ran = service.pushkit("trigger", "working", to, "--audience", audience, *by)
        assert ran.status == status, ran
    assert f"receiving from agent at {audience} (" in service.output.read_text()


def test_the_service_shows_its_inbox_on_a_listener_of_its_own(start: Start) -> None:
    port = free_port()
    service = start(settings=f'\n[dashboard]\nlisten = "127.0.0.1:{port}"\n')
    assert service.send().status == 0
    eventually_sync(service.seen)
    status, page = page_at(port, "/notifications")
    assert status == 200
    assert b"task-1" in page
    assert page_at(port, Host="evil.example.com")[0] == 421
    assert b"Inbox" not in page_at(service.port)[1]
    assert service.stop() == 0
    output = service.output.read_text()
    assert f"dashboard on http://127.0.0.1:{port}/" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("uvloop", UVLOOPS)
def test_the_service_runs_on_uvloop_where_it_is_installed(
    start: Start, tmp_path: Path, uvloop: str
) -> None:
    (tmp_path / "uvloop.py").write_text(UVLOOPS[uvloop])
    service = start()
    assert service.send().status == 0
    eventually_sync(service.seen)
    said = "the loop of uvloop" in service.output.read_text()
    assert said == (uvloop == "installed")


def test_a_hangup_changes_the_senders_and_a_mistake_changes_nothing(
    service: Service, tmp_path: Path
) -> None:
    config = tmp_path / "receiver.toml"
    assert service.send().status == 0
    config.write_text(config.read_text() + "\nno TOML")
    service.process.send_signal(signal.SIGHUP)
    eventually_sync(lambda: "stay in use" in service.output.read_text())
    assert service.send("--id", "dlv_2").status == 0

    another = CONFIG.format(
        port=service.port, prefix="", listen=1, issuer="https://other.example.com"
    )
    config.write_text(another)
    service.process.send_signal(signal.SIGHUP)

    eventually_sync(lambda: service.send("--id", "dlv_3").status == 1)
    assert "refused 403 unknown_sender" in service.output.read_text()
    assert service.stop() == 0


@pytest.fixture
def configured(jwks: Path) -> Path:
    """Return the configuration of a service with a dashboard, beside all that it needs."""
    path = jwks.with_name("receiver.toml")
    text = CONFIG.format(port=1, prefix="", listen=1, issuer=ISSUER)
    path.write_text(f'{text}\n[dashboard]\nlisten = "127.0.0.1:0"\n')
    jwks.with_name("service_handlers.py").write_text(HANDLERS)
    return path


def told_of_a_start(*options: str, **variables: str) -> str:
    """Run a service that cannot start; return the line that says why, all that it prints."""
    elsewhere = {"RECEIVER_LISTEN": f"127.0.0.1:{free_port()}"}
    done = ended(*forked("receiver.cli"), "serve", *options, **elsewhere | variables)
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    return line


def test_a_port_that_is_taken_is_one_line(service: Service) -> None:
    at = f"127.0.0.1:{service.port}"
    line = told_of_a_start(RECEIVER_LISTEN=at, RECEIVER_DATABASE="other.db")
    assert line == f"error: listen: cannot listen on {at}: Address already in use"


NOBODY = "postgresql://nobody@127.0.0.1:1/none"


@pytest.mark.usefixtures("configured")
@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize(
    ("database", "named"), [("none/inbox.db", "inbox.db"), (NOBODY, "127.0.0.1:1")]
)
def test_a_database_that_cannot_be_opened_is_one_line_and_nothing_is_said_to_be_received(
    processes: str, database: str, named: str
) -> None:
    line = told_of_a_start("--processes", processes, RECEIVER_DATABASE=database)
    assert line.startswith("error: ")
    assert named in line


def test_a_dashboard_beyond_loopback_needs_a_token(configured: Path) -> None:
    configured.write_text(configured.read_text().replace("127.0.0.1:0", "0.0.0.0:0"))
    line = told_of_a_start()
    assert "to listen on 0.0.0.0:0, a dashboard needs a token" in line
    assert "RECEIVER_DASHBOARD_TOKEN" in line


@pytest.mark.usefixtures("configured")
def test_an_empty_token_of_the_dashboard_does_not_open_it() -> None:
    line = told_of_a_start(RECEIVER_DASHBOARD_TOKEN="")
    says = "found an empty value, expected a secret; unset it if there is none"
    assert line == f"error: RECEIVER_DASHBOARD_TOKEN: {says}"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_sigterm_ends_a_service_whose_callbacks_hang_and_they_are_called_again(
    start: Start, receiver_command: Run, tmp_path: Path, processes: str
) -> None:
    options = ["--processes", processes]
    (tmp_path / "hanging.py").write_text(HANGING)
    files = {"settings": EACH_ITS_TASK, "handlers": "from hanging import seen\n"}
    service = start(*options, first="drain_seconds = 0\n", **files)
    for task in ("task-1", "task-2", "task-3"):
        token = json.loads(receiver_command("expect").out)["token"]
        assert service.send("--token", token, "--id", task, task=task).status == 0
    all_three = ["SEEN task-1 1", "SEEN task-2 1", "SEEN task-3 1"]
    eventually_sync(lambda: sorted(service.seen()) == all_three)

    assert service.stop() == 0
    assert not is_listening(service.port)

    (tmp_path / "go-on").touch()
    again = start(*options, **files)
    eventually_sync(lambda: sorted(again.seen()) == all_three)
    assert again.stop() == 0


# --- several processes --------------------------------------------------------------------------


def serving(service: Service, count: int) -> list[int]:
    """Return the process ids once so many have come up."""

    def found() -> list[int]:
        lines = service.output.read_text().splitlines()
        ids = [int(line.split()[1]) for line in lines if line.endswith(" serves")]
        return ids if len(ids) >= count else []

    return eventually_sync(found)


def test_a_full_disk_under_its_output_does_not_end_a_service(start: Start, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "receiver.cli"]
    to_full_disk = ["sh", "-c", 'exec "$@" > /dev/full 2>&1', "sh", *command]
    handlers = """\
import os, pathlib
async def seen(notification):
    pathlib.Path(f"{notification.seq}.seen").write_text(str(os.getpid()))
"""
    service = start("--processes", "2", command=to_full_disk, handlers=handlers)

    def called(number: int) -> int:
        """Return the process that called back, once it did."""
        assert service.send("--id", f"dlv_{number}", "--seq", str(number)).status == 0
        found = tmp_path / f"{number}.seen"
        return int(eventually_sync(lambda: found.exists() and found.read_text()))

    os.kill(called(1), signal.SIGKILL)
    called(2)
    assert service.stop() == 0


def test_a_process_that_dies_is_started_again_and_nothing_is_lost(start: Start) -> None:
    service = start("--processes", "2")
    first, _ = serving(service, 2)
    assert service.send("--id", "dlv_1").status == 0
    os.kill(first, signal.SIGKILL)
    for number in range(2, 6):
        assert service.send("--id", f"dlv_{number}", "--seq", str(number)).status == 0
    serving(service, 3)
    expected = [f"SEEN task-1 {number}" for number in range(1, 6)]
    eventually_sync(lambda: set(service.seen()) >= set(expected))
    # Only what was in hand at the kill may come again.
    assert sorted(service.seen()) in (expected, [expected[0], *expected])
    assert service.stop() == 0
    output = service.output.read_text()
    assert f"error: process {first} ended with -9" in output
    assert "Traceback" not in output


def test_one_that_is_started_again_counts_where_the_dead_one_did(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, port = tmp_path / "counted", free_port()
    folder.mkdir()
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    service = start("--processes", "2", first=f'ops_listen = "127.0.0.1:{port}"\n')
    process_ids = serving(service, 2)
    for deaths in range(2):
        assert service.send("--id", f"dlv_{deaths}", "--seq", str(deaths + 1)).status == 0
        os.kill(process_ids[-1], signal.SIGKILL)
        process_ids = serving(service, 3 + deaths)

    def accepted() -> float | None:
        _, page = page_at(port, "/metrics")
        return MetricsRead.of(page).value(
            "receiver_notifications_total", sender="agent", result="accepted"
        )

    assert eventually_sync(lambda: accepted() == 2)
    shutil.rmtree(folder)  # as whoever cleans `/tmp` does
    eventually_sync(lambda: service.output.read_text().count("are written anew") == 2)
    assert accepted() == 2
    files = sorted(path.name for path in folder.iterdir())
    places = {name.rpartition("_")[2] for name in files}
    assert len(places) == 2, files
    assert service.stop() == 0


def test_a_dashboard_shows_what_any_of_the_processes_refused(start: Start) -> None:
    port = free_port()
    service = start("--processes", "2", settings=f'\n[dashboard]\nlisten = "127.0.0.1:{port}"\n')

    def refusals() -> int:
        return int(json.loads(page_at(port, "/api/v1/refusals")[1])["number"])

    for expected, stopped in enumerate(serving(service, 2), start=1):
        os.kill(stopped, signal.SIGSTOP)  # the other one has to answer
        try:
            assert page_at(service.port, "/a2a/push", data=b"{}")[0] == 415
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert eventually_sync(lambda: refusals() == expected)  # noqa: B023  # within this round
    assert service.stop() == 0
    assert "Traceback" not in service.output.read_text()


def test_processes_end_with_the_one_that_started_them(start: Start) -> None:
    service = start("--processes", "2")
    serving(service, 2)
    service.process.kill()
    eventually_sync(lambda: not is_listening(service.port))


# --- the end ------------------------------------------------------------------------------------


def signed_request(folder: Path, service: Service) -> tuple[bytes, bytes]:
    """Return the head and the body of a request that is accepted."""
    agent = SigningAgent(
        webhook_url=f"http://127.0.0.1:{service.port}/a2a/push",
        issuer=ISSUER,
        token=service.token,
        key=load_key_ring(folder / "keys.json").signing_key(datetime.now(UTC)),
    )
    request = agent.draft("task-1").request()
    fields = ["Host: x", *(f"{name}: {value}" for name, value in request.headers)]
    fields += [f"Content-Length: {len(request.body)}", "Expect: 100-continue"]
    return "\r\n".join(["POST /a2a/push HTTP/1.1", *fields, "", ""]).encode(), request.body


def test_a_request_in_flight_is_answered_at_the_end(service: Service, tmp_path: Path) -> None:
    serving(service, 1)
    head, body = signed_request(tmp_path, service)
    with socket.create_connection(("127.0.0.1", service.port), DEADLINE) as client:
        client.sendall(head)
        assert client.recv(100).startswith(b"HTTP/1.1 100 ")  # it waits for the body
        service.process.terminate()
        eventually_sync(lambda: "answers what is in flight" in service.output.read_text())
        client.sendall(body)
        answer = client.recv(1000)
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert b"connection: close" in answer.lower()
    assert service.process.wait(DEADLINE) == 0
    assert "Traceback" not in service.output.read_text()


def test_as_many_files_may_be_open_as_connections_need_and_no_more(start: Start) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        service = start(command=[sys.executable, "-m", "receiver.cli"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    serving(service, 1)
    soft, hard = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    assert hard == before[1]
    assert 512 < soft < 4096
    assert service.stop() == 0


# --- TLS ----------------------------------------------------------------------------------------


def write_certificate(folder: Path, name: str) -> str:
    """Write a certificate and its key; return the certificate."""
    made = trustme.CA().issue_cert(name)
    made.private_key_pem.write_to_path(folder / "key.pem")
    [certificate] = made.cert_chain_pems
    certificate.write_to_path(folder / "cert.pem")
    return certificate.bytes().decode()


TLS = """
[tls]
certificate = "cert.pem"
key = "key.pem"
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_renewed_certificate_is_served_after_sighup(
    start: Start, tmp_path: Path, processes: str
) -> None:
    first = write_certificate(tmp_path, "first.example.com")
    service = start("--processes", processes, settings=TLS)
    serving(service, int(processes))
    address = ("127.0.0.1", service.port)
    assert ssl.get_server_certificate(address, timeout=DEADLINE) == first

    second = write_certificate(tmp_path, "second.example.com")
    service.process.send_signal(signal.SIGHUP)
    reloaded = "reloaded the TLS certificate"
    eventually_sync(lambda: service.output.read_text().count(reloaded) == int(processes))
    for _ in range(4):
        assert ssl.get_server_certificate(address, timeout=DEADLINE) == second

    (tmp_path / "key.pem").write_text("not a key")
    service.process.send_signal(signal.SIGHUP)
    kept = "TLS certificate not reloaded, the old one stays in use: tls: "
    eventually_sync(lambda: service.output.read_text().count(kept) == int(processes))
    assert ssl.get_server_certificate(address, timeout=DEADLINE) == second
    assert service.stop() == 0
    assert "Traceback" not in service.output.read_text()


# --- a burst of connects ------------------------------------------------------------------------

FEW_FILES = ["sh", "-c", 'ulimit -n 400; exec "$@"', "sh", sys.executable, "-m", "receiver.cli"]


def connected(port: int, address: str, count: int) -> list[socket.socket]:
    """Connect this often from a loopback address."""
    at = ("127.0.0.1", port)
    peers = [socket.create_connection(at, DEADLINE, (address, 0)) for _ in range(count)]
    for each in peers:
        each.setblocking(False)
    return peers


def is_open(peer: socket.socket) -> bool:
    try:
        return bool(peer.recv(1))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize(
    ("settings", "uvloop"),
    [
        pytest.param("", "not installed", id="asyncio"),
        pytest.param("", None, id="uvloop"),
        pytest.param(TLS, None, id="TLS"),
    ],
)
def test_a_burst_of_connects_takes_no_files_from_others(
    start: Start, tmp_path: Path, settings: str, uvloop: str | None
) -> None:
    write_certificate(tmp_path, "client.example.com")
    if uvloop:
        (tmp_path / "uvloop.py").write_text(UVLOOPS[uvloop])
    service = start(settings=settings, command=FEW_FILES)
    [process] = serving(service, 1)

    # From many, the newest stay, and half of all files are left; from one, its share stays.
    for addresses, left_open in ((9, 200), (1, 128)):
        peers: list[socket.socket] = []
        with contextlib.ExitStack() as stack:
            os.kill(process, signal.SIGSTOP)  # they all wait when it goes on
            for number in range(addresses):
                for peer in connected(service.port, f"127.0.0.{number + 2}", 900 // addresses):
                    stack.callback(peer.close)
                    peers.append(peer)
            os.kill(process, signal.SIGCONT)
            eventually_sync(lambda: sum(map(is_open, peers)) == left_open)  # noqa: B023  # of this round

    assert service.stop() == 0
    lines = service.output.read_text().splitlines()
    assert "Traceback" not in "".join(lines)
    assert sum("refused connection" in line for line in lines) == 1
    assert len(lines) < 10


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_sighup_during_the_start_ends_nothing(start: Start, processes: str) -> None:
    service = start("--processes", processes)  # it listens; its processes are not up yet
    service.process.send_signal(signal.SIGHUP)
    serving(service, int(processes))
    assert service.stop() == 0
    assert "ended with" not in service.output.read_text()


# --- the log ------------------------------------------------------------------------------------


def test_the_log_says_as_json_why_a_notification_was_refused(start: Start) -> None:
    service = start("--log-format", "json", "--verbose")
    assert service.send("--id", "dlv_1").status == 0
    assert service.send("--token", "guessed").status == 1
    assert service.stop() == 0
    written = service.output.read_text().splitlines()
    lines = [json.loads(line) for line in written if line.startswith("{")]
    [refused] = [line for line in lines if line["level"] == "warning"]
    assert (refused["status"], refused["code"]) == (401, "invalid_token")
    assert (refused["peer"], refused["logger"]) == ("127.0.0.1", "receiver")
    assert "expected one handed out to sender agent" in refused["reason"]
    [accepted] = [line for line in lines if line.get("code") == "accepted"]
    assert (accepted["sender"], accepted["task"], accepted["seq"]) == ("agent", "task-1", 1)
    assert accepted["delivery_id"] == "dlv_1"
    assert "guessed" not in service.output.read_text()


OFF = 'logging.config.dictConfig({"version": 1})'
OWN_HANDLER = """logging.config.dictConfig({
    "version": 1, "disable_existing_loggers": False,
    "handlers": {"own": {"class": "logging.StreamHandler"}}, "root": {"handlers": ["own"]},
})"""
LEVEL = "logging.basicConfig(level=logging.CRITICAL, force=True)"


@pytest.mark.parametrize(
    "handlers",
    [
        pytest.param(f"{OFF}\n{HANDLERS}", id="all loggers off"),
        pytest.param(f"{OWN_HANDLER}\n{HANDLERS}", id="a handler"),
        pytest.param(f"{LEVEL}\n{HANDLERS}", id="a level"),
        pytest.param(f"logging.disable()\n{HANDLERS}", id="all levels off"),
        pytest.param(f"{HANDLERS}    {OFF}\n", id="all loggers off, when it is called"),
    ],
)
def test_the_log_is_the_services_own_whatever_a_callbacks_module_configures(
    start: Start, handlers: str
) -> None:
    service = start(
        "--log-format", "json", handlers=f"import logging\nimport logging.config\n{handlers}"
    )
    assert service.send().status == 0
    eventually_sync(service.seen)
    assert service.send("--token", "guessed").status == 1
    assert service.stop() == 0
    [refused] = [line for line in service.output.read_text().splitlines() if "_token" in line]
    assert json.loads(refused)["code"] == "invalid_token"
