"""The commands as a user calls them, and a webhook that does as the test says."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import secrets
import shlex
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest

import pushkit.cli.main
import receiver.cli
from pushkit import KeyRing, PushSender, SenderOptions, StatusUpdate, TaskState, TaskStatus
from tests.eventually import DEADLINE

ROOT = Path(__file__).resolve().parents[3]
ISSUER = "https://agent.example.com"
TOKEN = "a-token-that-nobody-may-read"
UPDATE = (
    b'{"statusUpdate":{"taskId":"task-1","contextId":"c","status":{"state":"TASK_STATE_WORKING"}}}'
)


RECEIVER_TOML = f"""\
url = "https://client.example.com"
[[senders]]
name = "agent"
issuer = "{ISSUER}"
jwks_file = "jwks.json"
"""
SECRET = "a-word-of-the-payload"
RING = KeyRing.create(datetime(2026, 1, 1, tzinfo=UTC))

T = TypeVar("T")


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that says what was wrong."""
        [line] = self.err.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, without settings from outside."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("PUSHKIT_", "RECEIVER_")):
            monkeypatch.delenv(name)
    return tmp_path


def _runner(
    main: Callable[[], None],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    def run(*arguments: str, stdin: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        assert "PRIVATE" not in captured.out + captured.err
        assert TOKEN not in captured.out + captured.err
        status = ended.value.code or 0
        assert isinstance(status, int)
        return Ran(status=status, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def pushkit_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `pushkit`."""
    return _runner(pushkit.cli.main.main, "pushkit", monkeypatch, capsys)


@pytest.fixture
def receiver_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `receiver`."""
    return _runner(receiver.cli.main, "receiver", monkeypatch, capsys)


@pytest.fixture
def run_line(pushkit_command: Run, receiver_command: Run) -> Callable[[str], Ran]:
    """Call either, as it is written in a shell."""

    def run(line: str) -> Ran:
        program, *arguments = shlex.split(line)
        return (pushkit_command if program == "pushkit" else receiver_command)(*arguments)

    return run


@pytest.fixture
def jwks(pushkit_command: Run, own_folder: Path) -> Path:
    """Make a key file, `keys.json`, and return the JWK Set of its public keys, `jwks.json`."""
    assert pushkit_command("keys", "new").status == 0
    assert pushkit_command("keys", "export", "--out", "jwks.json").status == 0
    return own_folder / "jwks.json"


def environment(**changes: str) -> dict[str, str]:
    """Return an environment in which a process finds this source tree, installed or not."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PUSHKIT_", "RECEIVER_"))}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **changes}


def ended(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ours as a process of its own until it ends."""
    return subprocess.run(  # noqa: S603  # our own command
        command,
        env=environment(**variables),
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE,
    )


@contextlib.contextmanager
def running(
    folder: Path, *command: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run a command of ours until the block ends; yield the process and its output."""
    output = folder / f"output-{secrets.token_hex(4)}.log"
    with (
        output.open("w") as file,
        subprocess.Popen(  # noqa: S603  # our own command
            command,
            cwd=folder,
            env=environment(**variables),
            stdout=file,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process,
    ):
        try:
            yield process, output
        finally:
            process.kill()


def page_at(
    port: int, path: str = "/", data: bytes | None = None, **headers: str
) -> tuple[int, bytes]:
    """Return the status and content of a page, or of the answer to a POST; 0 if there is none."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:  # noqa: S310
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()
    except OSError:
        return 0, b""


# Modules to put before the real one: a process of ours finds them in its folder.
UVLOOPS = {
    "installed": """\
import asyncio
def new_event_loop():
    print("the loop of uvloop", flush=True)
    return asyncio.new_event_loop()
""",
    "not installed": "raise ImportError('there is no uvloop')",
}


# --- a webhook ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Captured:
    """A request as it came over the wire."""

    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return a header's value."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)


@dataclass
class Webhook:
    """Answers every POST with `status` and `answer`, and every GET with `document`.

    If there are `documents`, a GET is answered with that of its path.
    """

    port: int = 0
    status: int = 202
    answer: bytes = b""
    document: bytes = b""
    documents: dict[str, bytes] = field(default_factory=dict)
    requests: list[Captured] = field(default_factory=list)

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Where to post."""
        return f"{self.origin}/a2a/push"


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """A webhook in a thread of its own: the commands run their own event loop."""
    webhook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            captured = Captured(target=self.path, headers=self.headers.items(), body=body)
            webhook.requests.append(captured)
            self._answer(webhook.status, webhook.answer)

        def do_GET(self) -> None:
            found = webhook.documents.get(self.path) if webhook.documents else webhook.document
            self._answer(404 if found is None else 200, found or b"")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the interface
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        webhook.port = server.server_address[1]
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        yield webhook
        server.shutdown()
        serving.join()


# --- an outbox ----------------------------------------------------------------------------------


@pytest.fixture
def outbox(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the commands look for the outbox."""
    path = own_folder / "outbox.db"
    monkeypatch.setenv("PUSHKIT_DATABASE", str(path))
    return path


def on_outbox(
    database: str | Path,
    work: Callable[[PushSender], Coroutine[Any, Any, T]],
    options: SenderOptions | None = None,
) -> T:
    """Run a piece of a sender's life; its worker does nothing by itself."""

    async def live() -> T:
        sender = PushSender(
            issuer=ISSUER, keys=RING, database=database, allow=["127.0.0.1:*"], options=options
        )
        await sender.open()
        try:
            return await work(sender)
        finally:
            await sender.close()

    return asyncio.run(live())


def enqueue(database: str | Path, webhook: Webhook, tasks: int) -> list[str]:
    """Store an update of each of so many tasks; return the ids of the deliveries."""

    async def notify(sender: PushSender) -> list[str]:
        ids = []
        for number in range(1, tasks + 1):
            task_id, config = f"task-{number}", {"url": webhook.url, "token": TOKEN}
            await sender.subscribe(task_id, config, version="1.0", owner="alice")
            status = TaskStatus(state=TaskState.WORKING)
            update = StatusUpdate(task_id=task_id, context_id=SECRET, status=status)
            ids += (await sender.notify(update)).ids
        return ids

    return on_outbox(database, notify)


def deliver(database: str | Path, options: SenderOptions | None = None) -> None:
    """Attempt what is due, once."""
    on_outbox(database, lambda sender: sender.worker.run_once(), options)
