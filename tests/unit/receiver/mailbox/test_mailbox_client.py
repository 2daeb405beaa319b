"""`receiver.Mailbox`: once, in order, again after an error, and again after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from pushkit.errors import ConfigError
from receiver import Mailbox, MailboxRefusedError, Notification
from receiver.mailbox.client import _Answer
from tests.eventually import eventually
from tests.served import answering
from tests.unit.receiver.mailbox.conftest import MAILBOX_TOKEN

if TYPE_CHECKING:
    from tests.unit.receiver.mailbox.conftest import Laptop


@asynccontextmanager
async def working(laptop: Laptop, had: list[int | None]) -> AsyncIterator[None]:
    """Run a loop over the mailbox that notes what it had, until the end of the block."""

    async def work() -> None:
        async with Mailbox(laptop.url, MAILBOX_TOKEN) as mailbox:
            async for notification in mailbox:
                had.append(notification.seq)  # noqa: PERF401  # it has no end

    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def first(mailbox: Mailbox) -> Notification:
    async for notification in mailbox:
        return notification
    raise AssertionError("it has no end")


async def left(laptop: Laptop) -> int:
    """Return how many are not done."""
    states = await laptop.states()
    return states[0].pending if states else 0


async def test_a_loop_has_every_notification_once_and_in_order(laptop: Laptop) -> None:
    had: list[int | None] = []
    async with working(laptop, had):
        await laptop.accept(1, 2, 3)
        await eventually(lambda: len(had) == 3)
        await laptop.accept(4)
        await eventually(lambda: len(had) == 4)

    assert had == [1, 2, 3, 4]


async def test_a_loop_gets_what_a_callback_gets(laptop: Laptop) -> None:
    called: list[Notification] = []
    laptop.world.receiver.callbacks.is_frozen = False
    laptop.world.receiver.on_update(called.append)
    await laptop.accept(1)

    async with Mailbox(laptop.url, MAILBOX_TOKEN) as mailbox:
        assert [await first(mailbox)] == called


async def test_a_block_that_ends_without_an_error_is_done(
    laptop: Laptop, caplog: pytest.LogCaptureFixture
) -> None:
    await laptop.accept(1)
    async with Mailbox(laptop.url, MAILBOX_TOKEN) as mailbox:
        async for _ in mailbox:
            break

    assert await left(laptop) == 0
    assert [entry for entry in caplog.records if entry.name == "receiver.mailbox"] == []


async def test_after_an_error_it_comes_again(laptop: Laptop) -> None:
    await laptop.accept(1)

    async def fail() -> None:
        async with Mailbox(laptop.url, MAILBOX_TOKEN) as mailbox:
            async for _ in mailbox:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await laptop.poll()).found == []
    laptop.world.clock.advance(10)

    [again] = (await laptop.poll()).found

    assert again["attempt"] == 2


async def test_a_loop_without_a_block_that_is_left_gives_it_back(laptop: Laptop) -> None:
    await laptop.accept(1)
    async for _ in Mailbox(laptop.url, MAILBOX_TOKEN):
        break
    await eventually(lambda: given_back(laptop))
    laptop.world.clock.advance(10)

    assert len((await laptop.poll()).found) == 1


async def test_a_loop_without_a_block_that_fails_gives_it_back_though_another_begins(
    laptop: Laptop,
) -> None:
    await laptop.accept(1)
    await laptop.accept(1, task_id="task-2")
    mailbox, had = Mailbox(laptop.url, MAILBOX_TOKEN), list[str | None]()
    for _ in range(2):
        with contextlib.suppress(ZeroDivisionError):
            async for notification in mailbox:
                had.append(notification.task_id)
                raise ZeroDivisionError
    await eventually(lambda: given_back(laptop))
    laptop.world.clock.advance(10)

    again = (await laptop.poll("?max=8")).found

    assert sorted(each["task_id"] for each in again) == had == ["task-1", "task-2"]
    assert [each["attempt"] for each in again] == [2, 2]


async def given_back(laptop: Laptop) -> bool:
    [state] = await laptop.states()
    return not state.handed_out


async def test_a_lease_is_renewed_while_the_body_runs(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await laptop.accept(1)
    renewed = asyncio.Event()
    ask = Mailbox._ask

    async def noting(self: Mailbox, method: str, to: str, *more: Any, **options: Any) -> Any:
        if to == "/renew":
            renewed.set()
        return await ask(self, method, to, *more, **options)

    monkeypatch.setattr(Mailbox, "_ask", noting)
    monkeypatch.setattr("receiver.mailbox.client._PART_OF_LEASE", 6000)
    async with Mailbox(laptop.url, MAILBOX_TOKEN) as mailbox:
        async for _ in mailbox:
            await renewed.wait()
            break

    assert await left(laptop) == 0


async def test_a_lease_is_renewed_in_time_after_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 27 s, within a lease of 60 s."""
    now, renewed, sleep = 0.0, list[float](), asyncio.sleep

    async def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds
        await sleep(0)

    async def ask_once(*_: Any) -> _Answer:
        if now < 47:
            raise OSError("away")
        renewed.append(now)
        return _Answer(409, {"code": "lease_lost"}, 0)  # ends the renewing

    monkeypatch.setattr("receiver.mailbox.client.asyncio.sleep", pass_time)
    monkeypatch.setattr("receiver.mailbox.client.random.uniform", lambda *_: 1.0)
    monkeypatch.setattr(Mailbox, "_ask_once", ask_once)
    held: Any = SimpleNamespace(
        receipt="1.1", lease=timedelta(seconds=60), notification=SimpleNamespace(id=1)
    )
    await Mailbox("http://127.0.0.1:1/mailbox/laptop", MAILBOX_TOKEN)._renew(held)

    assert renewed[0] < 60


async def test_what_was_handled_after_its_lease_had_ended_is_said(
    laptop: Laptop, caplog: pytest.LogCaptureFixture
) -> None:
    await laptop.accept(1)
    async with Mailbox(laptop.url, MAILBOX_TOKEN) as mailbox:
        async for _ in mailbox:
            laptop.world.clock.advance(60)
            await laptop.poll()
            break

    assert "was handled, but its lease had ended before" in caplog.text


async def test_a_renewal_that_crosses_the_ack_warns_of_nothing(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await laptop.accept(1)
    crossed = asyncio.Event()
    ask = Mailbox._ask

    async def crossing(self: Mailbox, method: str, to: str, *more: Any, **options: Any) -> Any:
        answer = await ask(self, method, to, *more, **options)
        if to == "/ack":
            await crossed.wait()
        elif to == "/renew" and answer.status == 409:
            crossed.set()
        return answer

    monkeypatch.setattr(Mailbox, "_ask", crossing)
    monkeypatch.setattr("receiver.mailbox.client._PART_OF_LEASE", 6000)
    async with Mailbox(laptop.url, MAILBOX_TOKEN) as mailbox:
        await first(mailbox)

    assert crossed.is_set()
    assert await left(laptop) == 0
    assert caplog.text == ""


@pytest.mark.parametrize(
    "naps",
    [
        pytest.param({"": 70.0}, id="during the poll"),
        pytest.param({"": 40.0, "/renew": 70.0}, id="during the renewal after a shorter one"),
    ],
)
async def test_an_answer_that_is_read_too_late_is_asked_for_again(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch, naps: dict[str, float]
) -> None:
    """A machine that slept meanwhile: somebody else may have the notification by now."""
    await laptop.accept(1)
    ask_once, slept, taken = Mailbox._ask_once, 0.0, list[str]()
    monkeypatch.setattr("receiver.mailbox.client.seconds", lambda: slept)

    async def sleeping(self: Mailbox, method: str, to: str, *more: Any) -> Any:
        nonlocal slept
        answer = await ask_once(self, method, to, *more)
        verb = to.partition("?")[0]
        if nap := naps.pop(verb, 0.0):
            slept += nap
            laptop.world.clock.advance(nap)
        if not naps and not taken:  # the lease has ended: it waits to be tried again
            assert (await laptop.poll()).found == []
            laptop.world.clock.advance(10)
            [other] = (await laptop.poll()).found
            taken.append(other["receipt"])
            await laptop.settle("ack", other["receipt"])
            await laptop.accept(2)
        return answer

    monkeypatch.setattr(Mailbox, "_ask_once", sleeping)
    async with Mailbox(laptop.url, MAILBOX_TOKEN) as mailbox:
        assert (await first(mailbox)).seq == 2

    assert len(taken) == 1
    assert await left(laptop) == 0


async def test_a_wrong_token_ends_the_loop(laptop: Laptop) -> None:
    async with Mailbox(laptop.url, "another-token-of-somebody") as mailbox:
        with pytest.raises(MailboxRefusedError, match="mailbox_unauthorized") as refused:
            await first(mailbox)

    assert "another-token" not in str(refused.value)


async def test_a_url_that_is_no_mailbox_ends_the_loop(laptop: Laptop) -> None:
    async with Mailbox(laptop.url.replace("/mailbox/", "/elsewhere/"), MAILBOX_TOKEN) as mailbox:
        with pytest.raises(MailboxRefusedError, match="expected a mailbox"):
            await first(mailbox)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("<html>", id="no-json"),
        pytest.param("[]", id="no-object"),
        pytest.param('{"notifications": [{}]}', id="no-notification"),
        pytest.param('{"notifications": [7]}', id="a-number"),
    ],
)
async def test_another_service_ends_the_loop(aiohttp_server: AiohttpServer, body: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=body)

    server = await aiohttp_server(answering(answer))

    async with Mailbox(str(server.make_url("/mailbox/laptop")), MAILBOX_TOKEN) as mailbox:
        with pytest.raises(MailboxRefusedError):
            await first(mailbox)


async def test_a_redirect_gets_no_token(aiohttp_server: AiohttpServer) -> None:
    asked: list[str] = []

    async def lead(request: web.Request) -> web.Response:
        asked.append(request.path)
        raise web.HTTPFound("/elsewhere")

    server = await aiohttp_server(answering(lead))
    async with Mailbox(str(server.make_url("/mailbox/laptop")), MAILBOX_TOKEN) as mailbox:
        with pytest.raises(MailboxRefusedError):
            await first(mailbox)

    assert asked == ["/mailbox/laptop"]


async def test_the_loop_waits_while_the_service_is_out_of_reach(
    laptop: Laptop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "receiver.mailbox")
    had: list[int | None] = []
    await laptop.accept(1)
    await laptop.world.receiver.close()
    async with working(laptop, had):
        await eventually(lambda: "trying again" in caplog.text)
        await laptop.world.receiver.start()
        await eventually(lambda: had)

    assert had == [1]


async def test_the_loop_does_not_spin_while_the_service_stops(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ask_once = 0, Mailbox._ask_once

    async def counting(self: Mailbox, method: str, to: str, *more: Any) -> Any:
        nonlocal asked
        asked += 1
        return await ask_once(self, method, to, *more)

    monkeypatch.setattr(Mailbox, "_ask_once", counting)
    laptop.world.receiver.wind_down()
    async with working(laptop, []):
        await asyncio.sleep(1)

    assert 0 < asked < 10


@pytest.mark.parametrize(
    ("url", "token"),
    [
        pytest.param("http://client.example.com/mailbox/a", MAILBOX_TOKEN, id="plain-http"),
        pytest.param("client.example.com", MAILBOX_TOKEN, id="no-url"),
        pytest.param("https://client.example.com/mailbox/a", "", id="no-token"),
        pytest.param("https://client.example.com/mailbox/a", "a\r\nb", id="line-break"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(url: str, token: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Mailbox(url, token)

    assert not token or token not in str(refused.value)


def test_a_host_that_is_named_may_be_plain() -> None:
    Mailbox("http://receiver:9000/mailbox/a", MAILBOX_TOKEN, allow=["receiver:9000"])
