"""What a sender and a receiver have in common: how they are opened, started and closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.errors import ConfigError
from pushkit.keys.jwks import jwks_document
from pushkit.webhook import WebhookRequest
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from receiver.testing import SigningAgent
from tests.eventually import DEADLINE, eventually

ISSUER = "https://agent.example.com"


@pytest.fixture(params=["sender", "receiver"])
def part(request: pytest.FixtureRequest, tmp_path: Path) -> PushSender | Receiver:
    ring, database = KeyRing.create(datetime.now(UTC)), tmp_path / "part.db"
    if request.param == "sender":
        return PushSender(issuer=ISSUER, keys=ring, database=database)
    (tmp_path / "jwks.json").write_bytes(jwks_document(ring, datetime.now(UTC)))
    agent = TrustedSender(name="agent", issuer=ISSUER, jwks_file=tmp_path / "jwks.json")
    return Receiver(url="https://client.example.com", senders=[agent], database=database)


def tasks() -> set[str]:
    """Return the names of the tasks of pushkit that run."""
    names = {task.get_name() for task in asyncio.all_tasks()}
    return {name for name in names if name.startswith(("pushkit", "receiver"))}


async def test_it_runs_for_the_lifespan_of_a_host(part: PushSender | Receiver) -> None:
    async with part.lifespan(object()):
        assert part.is_open
        assert await part.unready() == {}
    assert not part.is_open
    assert tasks() == set()


async def test_an_opening_during_a_close_waits_for_its_end(part: PushSender | Receiver) -> None:
    await part.start()
    await asyncio.gather(part.close(), part.open())
    assert part.is_open
    assert tasks() <= {"pushkit-closing", "receiver-closing"}
    await part.close()


@pytest.mark.parametrize("turns", range(3))
async def test_an_opening_waits_for_a_close_that_follows_the_one_it_waited_for(
    part: PushSender | Receiver, turns: int
) -> None:
    await part.start()
    closing = asyncio.create_task(part.close())
    await asyncio.sleep(0)
    starting = asyncio.create_task(part.start())

    async def close_again() -> None:
        while part._closing is None or not part._closing.done():  # noqa: ASYNC110 - turn by turn
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        await part.close()

    await asyncio.gather(closing, starting, close_again())

    # Whichever came last, it is open as a whole, or closed.
    assert part._closed is not part.is_open
    assert bool(part._background) is part.is_open
    await part.close()


def test_a_close_whose_event_loop_ended_is_made_anew_in_another(
    part: PushSender | Receiver,
) -> None:
    first = asyncio.new_event_loop()
    first.run_until_complete(part.open())
    closing = first.create_task(part.close())
    for _ in range(2):  # it has begun to close
        first.run_until_complete(asyncio.sleep(0))
    first.close()

    asyncio.run(part.close())

    assert not closing.done()
    assert not part.is_open


@pytest.mark.parametrize("begins_to_close", [True, False])
def test_what_an_event_loop_did_not_close_to_its_end_starts_in_another(
    part: PushSender | Receiver, monkeypatch: pytest.MonkeyPatch, begins_to_close: bool
) -> None:
    close_parts, hang = part._close_parts, asyncio.Event()

    async def close_parts_later() -> None:
        if hang.is_set():
            return await close_parts()
        hang.set()
        return await asyncio.Event().wait() and None

    async def start() -> None:
        await part.start()
        if begins_to_close:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await part.close()

    async def start_again() -> None:
        async with part:
            assert await part._database.write(part._database.now())
            assert await part.unready() == {}

    if begins_to_close:
        monkeypatch.setattr(part, "_close_parts", close_parts_later)
    asyncio.run(start())
    asyncio.run(start_again())


# Python says of each task that it was destroyed, and of each coroutine what it did then.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed")
def test_deliveries_that_a_closed_event_loop_left_under_way_are_not_waited_for(
    location: str, caplog: pytest.LogCaptureFixture
) -> None:
    ring = KeyRing.create(datetime.now(UTC))
    sender = PushSender(issuer=ISSUER, keys=ring, database=location, allow=["127.0.0.1:*"])

    async def send(url: str) -> None:
        await sender.start()
        await sender.subscribe("task", {"url": url}, version="1.0")
        status = TaskStatus(state=TaskState.WORKING)
        await sender.notify(StatusUpdate(task_id="task", context_id="context", status=status))
        await eventually(lambda: sender.worker.runner.scheduler.free < sender.options.concurrency)

    async def start_again() -> None:
        async with asyncio.timeout(DEADLINE):
            await sender.start()
            assert sender.worker.runner.scheduler.free == sender.options.concurrency
            assert await sender.unready() == {}
            await sender.close()

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        first = asyncio.new_event_loop()
        first.run_until_complete(send(f"http://127.0.0.1:{silent.getsockname()[1]}/"))
        first.close()
        asyncio.run(start_again())
        gc.collect()
    assert "closed by force" not in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_async", [True, False])
def test_callbacks_that_a_closed_event_loop_left_running_keep_nothing(
    tmp_path: Path, is_async: bool
) -> None:
    agent = SigningAgent(webhook_url="https://client.example.com/a2a/push")
    trusted = TrustedSender(
        name="agent",
        issuer=agent.issuer,
        keys=[agent.key.to_verification_key()],
        tokens=[agent.token],
        tasks=TaskPolicy.ANY,
    )
    receiver = Receiver(
        url="https://client.example.com",
        senders=[trusted],
        database=tmp_path / "inbox.db",
        concurrency=1,
    )
    begun, may_end = list[str | None](), threading.Event()

    async def call(notification: Notification) -> None:
        begun.append(notification.task_id)
        if len(begun) == 1:
            await asyncio.Event().wait()

    def call_in_thread(notification: Notification) -> None:
        begun.append(notification.task_id)
        if len(begun) == 1:
            may_end.wait(DEADLINE)

    receiver.on_status()(call if is_async else call_in_thread)

    async def post(task_id: str) -> None:
        await receiver.start()
        request = agent.draft(task_id).request()
        answer = await receiver.receive(
            WebhookRequest(target="/a2a/push", headers=request.headers, body=request.body)
        )
        assert answer.status == 202
        await eventually(lambda: task_id in begun)

    async def post_again() -> None:
        await post("second")
        await receiver.close()

    first = asyncio.new_event_loop()
    first.run_until_complete(post("first"))
    first.close()
    asyncio.run(post_again())
    may_end.set()
    gc.collect()


# Python says of each task that it was destroyed, and of each coroutine what it did then.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_an_event_loop_left_running_when_it_was_closed_starts_in_another(
    part: PushSender | Receiver,
) -> None:
    first = asyncio.new_event_loop()
    first.run_until_complete(part.start())
    first.run_until_complete(asyncio.sleep(0.1))
    first.close()

    async def start_again() -> None:
        async with part:
            assert await part._database.write(part._database.now())

    asyncio.run(start_again())
    gc.collect()


@pytest.mark.parametrize("call", ["start", "close"])
async def test_it_belongs_to_the_event_loop_that_opened_it(
    part: PushSender | Receiver, call: str
) -> None:
    async with part:
        with pytest.raises(ConfigError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, getattr(part, call)())
        assert await part.unready() == {}


@pytest.mark.parametrize("call", ["start", "close"])
async def test_it_belongs_to_the_event_loop_that_closes_it_until_the_end_of_the_close(
    part: PushSender | Receiver, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    close_parts = part._close_parts

    async def call_then_close_parts() -> None:
        with pytest.raises(ConfigError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, getattr(part, call)())
        await close_parts()

    monkeypatch.setattr(part, "_close_parts", call_then_close_parts)
    await part.open()
    await part.close()


def test_one_of_two_event_loops_that_open_it_at_once_does_so(part: PushSender | Receiver) -> None:
    both, done = threading.Barrier(2), threading.Barrier(2)

    async def open_and_close() -> None:
        both.wait(DEADLINE)
        try:
            await part.open()
        finally:
            done.wait(DEADLINE)
        await part.close()

    with ThreadPoolExecutor() as threads:
        ends = [threads.submit(asyncio.run, open_and_close()) for _ in range(2)]
    [refused] = filter(None, (each.exception() for each in ends))
    assert "another event loop" in str(refused)
    assert not part.is_open


def test_what_an_event_loop_left_when_it_was_stopped_is_closed_there(
    part: PushSender | Receiver,
) -> None:
    first = asyncio.new_event_loop()
    first.run_until_complete(part.start())
    with pytest.raises(ConfigError, match="another event loop"):
        asyncio.run(part.close())
    first.run_until_complete(part.close())
    first.close()
    asyncio.run(part.start())


async def test_an_async_with_that_is_cancelled_at_its_start_leaves_nothing_open(
    part: PushSender | Receiver, tmp_path: Path
) -> None:
    await part.open()
    await part.close()
    before = set(threading.enumerate())
    with contextlib.closing(sqlite3.connect(tmp_path / "part.db")) as other:
        other.execute("BEGIN IMMEDIATE")  # whoever opens it waits
        entering = asyncio.create_task(part.__aenter__())
        await asyncio.wait([entering], timeout=0.1)
        entering.cancel()
        await asyncio.wait([entering], timeout=0.1)
    with pytest.raises(asyncio.CancelledError):
        await entering

    def have_ended() -> bool:
        began = set(threading.enumerate()) - before
        return not [each for each in began if each.name.startswith("pushkit")]

    await eventually(have_ended)
    assert not part.is_open
    assert tasks() == set()


async def test_an_async_with_that_fails_once_the_database_is_open_leaves_nothing_open(
    part: PushSender | Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(part, "_start_parts", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        await part.__aenter__()
    assert not part.is_open
    assert tasks() == set()


async def test_metrics_that_are_made_while_it_runs_measure_at_once(
    part: PushSender | Receiver,
) -> None:
    async with part:
        await asyncio.to_thread(lambda: part.metrics)  # a synchronous application's thread
        await eventually(lambda: "pushkit-metrics" in tasks())
    assert tasks() == set()


async def test_metrics_that_were_made_before_measure_from_its_opening(
    part: PushSender | Receiver,
) -> None:
    assert part.metrics
    assert tasks() == set()
    await part.open()
    assert tasks() == {"pushkit-metrics"}
    await part.close()
    assert tasks() == set()
