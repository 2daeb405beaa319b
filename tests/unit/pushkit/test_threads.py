"""Sender and receiver in threads of their own, used by synchronous code."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.errors import ConfigError, InvalidPushConfigError, StorageError
from pushkit.threads import ServingThread
from receiver import Headers, Notification, Receiver, TrustedSender, WebhookRequest
from tests.eventually import DEADLINE

ISSUER = "https://agent.example.com"
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    return tmp_path / "jwks.json"


@pytest.fixture
def sender(tmp_path: Path, jwks: Path) -> PushSender:
    sender = PushSender(
        issuer=ISSUER,
        keys=KeyRing.create(datetime.now(UTC)),
        database=tmp_path / "outbox.db",
        allow=["127.0.0.1:*"],
    )
    jwks.write_bytes(sender.jwks().body)
    return sender


@pytest.fixture
def receiver(tmp_path: Path, jwks: Path, sender: PushSender) -> Receiver:
    del sender  # which has written the keys
    agent = TrustedSender(name="agent", issuer=ISSUER, jwks_file=jwks)
    return Receiver(url="http://127.0.0.1", senders=[agent], database=tmp_path / "inbox.db")


@pytest.fixture
def webhook() -> Iterator[ThreadingHTTPServer]:
    """A synchronous HTTP server; a test sets `thread` to that of a receiver."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = Headers(self.headers.items())
            request = WebhookRequest(target=self.path, headers=headers, body=body)
            answer = server.thread.call(server.receiver.receive(request))  # type: ignore[attr-defined]
            self.send_response(answer.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the interface
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def update(task_id: str, state: TaskState = TaskState.COMPLETED) -> StatusUpdate:
    return StatusUpdate(task_id=task_id, context_id="c", status=TaskStatus(state=state))


def test_a_notification_goes_from_one_thread_to_the_other(
    sender: PushSender, tmp_path: Path, jwks: Path, webhook: ThreadingHTTPServer
) -> None:
    url = f"http://127.0.0.1:{webhook.server_address[1]}"
    agent = TrustedSender(name="agent", issuer=ISSUER, jwks_file=jwks)
    receiver = Receiver(url=url, senders=[agent], database=tmp_path / "inbox.db")
    called: list[str | None] = []

    @receiver.on_status("completed")
    def completed(notification: Notification) -> None:
        called.append(notification.task_id)

    with receiver.in_thread() as receiving, sender.in_thread() as sending:
        webhook.thread, webhook.receiver = receiving, receiver  # type: ignore[attr-defined]
        expected = receiving.call(receiver.expect(task_id="task-1"))
        sending.call(sender.subscribe("task-1", expected.config, version="1.0"))
        sending.call(sender.notify(update("task-1")))
        done = receiving.call(receiver.wait("task-1", timeout=10))
    assert done.state is TaskState.COMPLETED
    assert called == ["task-1"]


def test_many_threads_call_at_once(sender: PushSender) -> None:
    def subscribe(number: int) -> None:
        config = {"url": "https://client.example.org/push"}
        sending.call(sender.subscribe(f"task-{number}", config, version="1.0"))

    with sender.in_thread() as sending:
        callers = [threading.Thread(target=subscribe, args=[n]) for n in range(20)]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        found = sending.call(sender.subscription_admin.find())
    assert len(found) == 20


def test_many_threads_start_it_at_once(sender: PushSender) -> None:
    thread, together = sender.in_thread(), threading.Barrier(4)

    def start_and_call() -> dict[str, str]:
        together.wait(DEADLINE)
        return thread.start().call(sender.unready())

    with ThreadPoolExecutor() as threads:
        calls = [threads.submit(start_and_call) for _ in range(4)]
    assert [each.result() for each in calls] == [{}] * 4
    thread.close()


def test_errors_reach_the_caller(sender: PushSender, receiver: Receiver) -> None:
    with sender.in_thread() as sending, pytest.raises(InvalidPushConfigError):
        sending.call(sender.subscribe("task-1", {"url": "http://10.0.0.1/"}, version="1.0"))
    with receiver.in_thread() as receiving, pytest.raises(TimeoutError):
        receiving.call(receiver.wait("task-1", timeout=0.01))


def test_what_cannot_start_raises_there(tmp_path: Path) -> None:
    keys = KeyRing.create(datetime.now(UTC))
    sender = PushSender(issuer=ISSUER, keys=keys, database=tmp_path / "missing" / "outbox.db")
    thread = sender.in_thread()
    with pytest.raises(StorageError, match="there is no folder"):
        thread.start()
    with pytest.raises(ConfigError, match="does not run"):
        thread.call(sender.subscriptions("task-1"))


def test_a_thread_starts_again(sender: PushSender) -> None:
    thread = sender.in_thread()
    for _ in range(2):
        with thread:
            assert thread.start() is thread  # runs already
            assert thread.call(sender.unready()) == {}
        assert not [each for each in threading.enumerate() if each.name == thread.name]
    thread.close()  # does nothing


def test_a_call_to_a_thread_that_does_not_run_is_an_error(sender: PushSender) -> None:
    thread = sender.in_thread()
    with pytest.raises(ConfigError, match=r"the thread does not run: start\(\) it"):
        thread.call(sender.unready())
    with thread:
        pass
    with pytest.raises(ConfigError, match="the thread does not run"):
        thread.call(sender.unready())


def test_a_thread_that_died_is_an_error(sender: PushSender) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    thread = sender.in_thread().start()
    with pytest.raises((SystemExit, ConfigError)):
        thread.call(leave())
    for each in threading.enumerate():
        if each.name == thread.name:
            each.join(5)
    with pytest.raises(ConfigError, match="does not run"):
        thread.call(sender.unready())
    with pytest.raises(SystemExit):
        thread.close()
    with thread:  # it starts again
        assert thread.call(sender.unready()) == {}


def test_a_call_ends_when_the_thread_is_closed(receiver: Receiver) -> None:
    thread = receiver.in_thread().start()
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            thread.call(receiver.wait("task-1"))
        except BaseException as exc:  # noqa: BLE001  # which one is asserted
            failed.append(exc)

    def stay() -> None:
        try:
            thread.call(asyncio.sleep(1000))
        except BaseException as exc:  # noqa: BLE001
            failed.append(exc)

    waiting = [threading.Thread(target=wait), threading.Thread(target=stay)]
    for each in waiting:
        each.start()
    time.sleep(0.05)
    thread.close()
    for each in waiting:
        each.join(5)
    assert {type(each) for each in failed} <= {StorageError, ConfigError}
    assert len(failed) == 2


def test_the_threads_own_loop_may_not_wait_for_itself(sender: PushSender) -> None:
    async def call() -> None:
        with pytest.raises(ConfigError, match="own event loop"):
            thread.call(sender.unready())
        with pytest.raises(ConfigError, match="own event loop"):
            thread.close()

    with sender.in_thread() as thread:
        thread.call(call())


def test_a_fork_has_no_thread(sender: PushSender) -> None:
    thread = ServingThread(sender, "sender").start()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            thread.call(sender.unready())
        except ConfigError as exc:
            status = 0 if "forked" in str(exc) else 2
            thread.close()  # does nothing
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert thread.call(sender.unready()) == {}
    thread.close()


PROGRAM = """
import asyncio, sys, threading
from pushkit import PushSender, KeyRing
from datetime import UTC, datetime

def refuse(self):
    raise RuntimeError("can't create new thread at interpreter shutdown")

def sender_in_thread(name):
    sender = PushSender(issuer="https://a.example.com", keys=KeyRing.create(datetime.now(UTC)),
                        database=f"{sys.argv[1]}/{name}.db")
    closing = sender.close
    async def close():
        await closing()
        print("closed", name)
    sender.close = close
    thread = sender.in_thread().start()
    thread.call(sender.subscribe("t", {"url": "https://c.example.org/"}, version="1.0"))
    thread.call(asyncio.to_thread(int))

if __name__ == "__main__":
    sender_in_thread("first")
    sender_in_thread("second")
    if sys.argv[2] == "refused":
        threading.Thread.start = refuse
"""


@pytest.mark.parametrize(
    "new_threads",
    [pytest.param("allowed", id=""), pytest.param("refused", id="as-on-python-3.12.1")],
)
def test_threads_that_nobody_closed_are_closed_at_the_end_of_the_process(
    tmp_path: Path, new_threads: str
) -> None:
    ran = subprocess.run(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", PROGRAM, str(tmp_path), new_threads],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=30,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "closed second\nclosed first\n", "")
