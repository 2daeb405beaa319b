"""A receiver that ends and starts again, at once or in another event loop (of `asyncio.run`)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pushkit import AlertOptions
from pushkit.errors import ConfigError, StorageError
from pushkit.events import HealthFault
from pushkit.net.transport import Transport
from pushkit.webhook import WebhookRequest
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from receiver.testing import SigningAgent
from tests.eventually import DEADLINE, eventually

AGENT = SigningAgent(webhook_url="https://client.example.com/a2a/push")


SENDER = TrustedSender(
    name="agent",
    issuer=AGENT.issuer,
    keys=[AGENT.key.to_verification_key()],
    tokens=[AGENT.token],
    tasks=TaskPolicy.ANY,
)


def receiver_of(folder: Path, alerts: AlertOptions | None = None) -> Receiver:
    return Receiver(
        url="https://client.example.com",
        senders=[SENDER],
        database=folder / "inbox.db",
        alerts=alerts,
    )


async def post(receiver: Receiver, number: int) -> int:
    request = AGENT.draft(f"task-{number}").request()
    verdict = await receiver.receive(
        WebhookRequest(target="/a2a/push", headers=request.headers, body=request.body)
    )
    return verdict.status


@pytest.mark.usefixtures("looks_often")
def test_a_receiver_opened_repeatedly_waits_for_and_calls_back_what_another_stored(
    tmp_path: Path,
) -> None:
    """`ours` waits for what `other` stored, and calls it back, each time it is opened."""
    ours, other = receiver_of(tmp_path), receiver_of(tmp_path)
    called: list[str | None] = []

    @ours.on_status()
    async def note(notification: Notification) -> None:
        called.append(notification.task_id)

    async def turn(number: int) -> None:
        async with ours:
            waiting = asyncio.create_task(ours.wait(f"task-{number}", until=lambda _: True))
            await asyncio.sleep(0)
            assert not await ours.unready()
            await other.open()
            assert await post(other, number) == 202
            await other.close()
            await waiting

            async def is_called() -> bool:
                assert not await ours.unready()
                return f"task-{number}" in called

            await eventually(is_called)

    for number in range(3):
        asyncio.run(turn(number))
    assert called == ["task-0", "task-1", "task-2"]


# Python says of each task that it was destroyed, and of each coroutine what it did then.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_wait_that_a_closed_event_loop_left_keeps_nothing_from_starting_again(
    tmp_path: Path,
) -> None:
    receiver, left = receiver_of(tmp_path), list[asyncio.Task[Notification]]()

    async def begin() -> None:
        await receiver.start()
        left.append(asyncio.create_task(receiver.wait("task-1")))
        await asyncio.sleep(0.1)

    async def start_again() -> None:
        async with receiver:
            assert await post(receiver, 1) == 202
            await receiver.wait("task-1", until=lambda _: True, timeout=DEADLINE)

    first = asyncio.new_event_loop()
    first.run_until_complete(begin())
    first.close()
    asyncio.run(start_again())
    left.clear()
    gc.collect()


def test_expecting_opens_it_anew_in_each_event_loop(tmp_path: Path) -> None:
    receiver = receiver_of(tmp_path)

    expected = [asyncio.run(receiver.expect()).config.token for _ in range(2)]

    async def withdraw() -> list[int]:
        withdrawn = [await receiver.unregister(token=each) for each in expected]
        await receiver.close()
        return withdrawn

    assert asyncio.run(withdraw()) == [1, 1]


def test_alerts_are_sent_in_each(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    note = f"open({str(sent)!r}, 'a').write('one ')"
    alerts = AlertOptions(command=[sys.executable, "-c", note])
    receiver = receiver_of(tmp_path, alerts)

    async def turn(number: int) -> None:
        async with receiver:
            await asyncio.sleep(0)  # whoever sends waits already
            fault = HealthFault(
                at=datetime.now(UTC), part="keys", about=f"agent-{number}", reason="none"
            )
            receiver.events.emit(fault)

            await eventually(lambda: sent.exists() and sent.read_text() == "one " * (number + 1))

    for number in range(2):
        asyncio.run(turn(number))


async def test_starting_during_closing_waits_and_then_starts(tmp_path: Path) -> None:
    receiver = receiver_of(tmp_path)
    inside, go_on = asyncio.Event(), asyncio.Event()
    called: list[str | None] = []

    @receiver.on_status()
    async def note(notification: Notification) -> None:
        inside.set()
        await go_on.wait()
        called.append(notification.task_id)

    await receiver.start()
    assert await post(receiver, 1) == 202
    await inside.wait()
    closing = asyncio.create_task(receiver.close())
    await asyncio.sleep(0)
    starting = asyncio.create_task(receiver.start())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(closing, starting)
    assert await receiver.unready() == {}
    assert await post(receiver, 2) == 202
    await receiver.close()
    assert called == ["task-1", "task-2"]


@pytest.mark.parametrize("rounds", [1, 2, 3])
async def test_a_cancelled_close_still_completes(tmp_path: Path, rounds: int) -> None:
    receiver = receiver_of(tmp_path)
    before = asyncio.all_tasks()
    await receiver.start()
    closing = asyncio.create_task(receiver.close())
    for _ in range(rounds):
        await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await receiver.close()

    assert asyncio.all_tasks() == before


async def test_closing_during_opening_leaves_nothing_open(tmp_path: Path) -> None:
    receiver = receiver_of(tmp_path)
    await receiver.open()
    await receiver.close()
    before = threading.enumerate()
    with contextlib.closing(sqlite3.connect(tmp_path / "inbox.db")) as other:
        other.execute("BEGIN IMMEDIATE")  # whoever opens it waits
        opening = asyncio.create_task(receiver.open())
        await asyncio.sleep(0)
        closing = asyncio.create_task(receiver.close())
        await asyncio.wait([closing], timeout=0.1)
        again = asyncio.create_task(receiver.open())
        await asyncio.sleep(0)
    await asyncio.gather(opening, closing, again)
    await receiver.close()

    began = set(threading.enumerate()) - set(before)  # asyncio's own stay
    assert [each for each in began if each.name.startswith("pushkit")] == []


async def test_a_start_right_behind_a_close_has_the_last_word(tmp_path: Path) -> None:
    receiver = receiver_of(tmp_path)
    await receiver.start()
    await asyncio.gather(receiver.close(), receiver.start())
    assert await receiver.unready() == {}
    await receiver.close()


async def test_a_wait_that_begins_during_closing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = receiver_of(tmp_path)
    close, waiting = Transport.close, []

    async def close_beside_who_waits(self: Transport) -> None:
        await receiver.open()
        waiting.append(asyncio.create_task(receiver.wait("task-1")))
        await eventually(lambda: receiver._arrivals._waiting)
        await close(self)

    monkeypatch.setattr(Transport, "close", close_beside_who_waits)
    before = asyncio.all_tasks()
    await receiver.start()
    await receiver.close()
    assert not receiver.is_open
    assert asyncio.all_tasks() - {*waiting} == before
    with pytest.raises(StorageError):
        await waiting[0]


async def test_calls_open_a_new_receiver_but_not_a_closed_one(
    tmp_path: Path,
) -> None:
    receiver = receiver_of(tmp_path)
    token = (await receiver.expect()).config.token
    await receiver.close()
    before = threading.enumerate()
    for asked in (
        receiver.expect(),
        receiver.unregister(token=token),
        receiver.wait("task-1", timeout=0),
        anext(receiver.updates("task-1")),
    ):
        with pytest.raises(StorageError, match="the receiver was closed"):
            await asked
    assert [each.name for each in set(threading.enumerate()) - set(before)] == []

    await receiver.open()
    assert await receiver.unregister(token=token) == 1
    await receiver.close()


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"url": None}, "url: found NoneType, expected str"),
        ({"senders": []}, "senders: expected a list of at least one trusted sender"),
        ({"senders": SENDER}, "senders: found TrustedSender, expected a list"),
        ({"limits": {"max_body_bytes": 1}}, "limits: found dict, expected Limits"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused(
    tmp_path: Path, argument: dict[str, Any], says: str
) -> None:
    given = {"url": "https://client.example.com", "senders": [SENDER], **argument}
    with pytest.raises(ConfigError, match=says):
        Receiver(database=tmp_path / "inbox.db", **given)
