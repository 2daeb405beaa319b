"""Mailboxes behind the service's own server: streams, and clients that mean harm."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.webhook import Headers
from receiver import Limits, MailboxOptions
from receiver.request import Answer, Request
from tests.eventually import DEADLINE, eventually
from tests.unit.receiver.serving.sockets import SOON, Client, Serve, raw

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

TOKEN = "the-token-of-the-laptop-is-private"


def asking(
    query: str = "", *, token: str = TOKEN, events: bool = False, verb: str = "", body: Any = None
) -> bytes:
    """Write a request to the mailbox as it goes over the wire."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{'POST' if verb else 'GET'} /mailbox/laptop{verb}{query} HTTP/1.1",
        "Host: client.example.com",
        f"Authorization: Bearer {token}",
        *(["Accept: text/event-stream"] if events else []),
        *([f"Content-Length: {len(content)}"] if content else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


def request(*, token: str = TOKEN, target: str = "/mailbox/laptop?wait=60") -> Request:
    async def read(_: int) -> bytes:
        return b""

    headers = Headers([("Authorization", f"Bearer {token}")])
    path = target.partition("?")[0]
    return Request(
        method="GET", path=path, target=target, headers=headers, peer="192.0.2.1", read=read
    )


@pytest.fixture
def world(world: World) -> World:
    world.receiver.mailbox(MailboxOptions(name="laptop", tokens=[TOKEN]))
    return world


async def accept(world: World, *numbers: int, task_id: str = "task-1") -> None:
    for number in numbers:
        draft = world.draft(number, task_id=task_id)
        assert (await world.receiver.receive(draft.request(), peer="192.0.2.1")).status == 202


class Stream:
    """A stream of events, read as it comes."""

    def __init__(self, client: Client) -> None:
        self._reader = client.reader

    async def head(self) -> str:
        async with asyncio.timeout(DEADLINE):
            return (await self._reader.readuntil(b"\r\n\r\n")).decode()

    async def next(self) -> dict[str, Any]:
        """Return the data of the next event; comments are skipped."""
        async with asyncio.timeout(DEADLINE):
            while True:
                event = (await self._reader.readuntil(b"\n\n")).decode()
                if event.startswith("event: notification\ndata: "):
                    found: dict[str, Any] = json.loads(event.partition("data: ")[2])
                    return found
                assert event.startswith(":")


async def opened(serve: Serve, world: World, query: str = "") -> tuple[Stream, Client]:
    site = await serve(world)
    client, other = await site.connect(), await site.connect()
    await client.send(asking(query, events=True))
    stream = Stream(client)
    head = await stream.head()
    assert head.startswith("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream")
    assert "Content-Length" not in head
    return stream, other


async def test_a_stream_sends_the_next_one_when_the_one_before_is_settled(
    serve: Serve, world: World
) -> None:
    stream, other = await opened(serve, world, "?max=8")
    await accept(world, 1, 2)
    await accept(world, 1, task_id="task-2")
    found = [await stream.next(), await stream.next()]
    assert sorted((each["task_id"], each["seq"]) for each in found) == [
        ("task-1", 1),
        ("task-2", 1),
    ]

    receipt = next(each["receipt"] for each in found if each["task_id"] == "task-1")
    await other.send(asking(verb="/ack", body={"receipt": receipt}))
    assert (await other.answer()).status == 200

    assert (await stream.next())["seq"] == 2


async def test_a_stream_sends_no_more_than_may_be_unsettled(serve: Serve, world: World) -> None:
    stream, other = await opened(serve, world, "?max=1")
    await accept(world, 1)
    first = await stream.next()
    await accept(world, 1, task_id="task-2")

    await other.send(asking(verb="/ack", body={"receipt": first["receipt"]}))
    assert (await other.answer()).status == 200

    assert (await stream.next())["task_id"] == "task-2"


async def test_a_stream_ends_when_the_service_stops(serve: Serve, world: World) -> None:
    site = await serve(world)
    client = await site.connect()
    await client.send(asking(events=True))
    await Stream(client).head()

    world.receiver.wind_down()

    assert (await client.ended()).startswith(b": open")


async def test_a_client_that_is_gone_gets_nothing_leased(serve: Serve, world: World) -> None:
    site = await serve(world)
    for events in (False, True):
        client = await site.connect()
        await client.send(asking("?wait=60", events=events))
        await eventually(lambda: site.server.in_progress)
        client.writer.transport.abort()
        await eventually(lambda: not site.server.in_progress)
    await accept(world, 1)

    client = await site.connect()
    await client.send(asking("?wait=60"))
    [found] = json.loads((await client.answer()).body)["notifications"]

    assert found["attempt"] == 1


async def test_a_client_that_does_not_read_its_stream_is_cut_off(
    serve: Serve, world: World
) -> None:
    site = await serve(world, write_timeout=SOON)
    client = await site.connect(receive_buffer=4096)
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(asking("?max=32", events=True))
    big = "x" * 500_000
    for number in range(32):
        draft = world.draft(1, task_id=f"task-{number}")
        body = json.loads(draft.body)
        body["statusUpdate"]["metadata"] = {"x": big}
        draft = replace(draft, body=json.dumps(body).encode())
        assert (await world.receiver.receive(draft.request(), peer="192.0.2.1")).status == 202

    await site.until(lambda connections: not len(connections))


async def test_of_ten_thousand_polls_few_wait_and_senders_are_served(world: World) -> None:
    await world.start()
    handle = world.receiver.handler.handle
    polls = [asyncio.create_task(handle(request())) for _ in range(10_000)]
    refused: Counter[str] = Counter()
    async with asyncio.timeout(DEADLINE):
        for answered in asyncio.as_completed(polls):
            answer: Answer = await answered
            refused[answer.code] += 1
            if refused.total() == 10_000 - 16:
                break
    assert set(refused) <= {"mailbox_busy", "rate_limited"}

    world.clock.advance(10)
    await accept(world, 1)
    async with asyncio.timeout(DEADLINE):
        done, waiting = await asyncio.wait(
            [each for each in polls if not each.done()], return_when=asyncio.FIRST_COMPLETED
        )
    assert (len(done), len(waiting)) == (1, 15)
    world.receiver.wind_down()
    await asyncio.wait(waiting)


async def test_one_mailbox_does_not_take_the_polls_of_another(world: World) -> None:
    world.receiver.mailbox(MailboxOptions(name="other", tokens=[TOKEN]))
    await world.start()
    handle = world.receiver.handler.handle
    polls = [asyncio.create_task(handle(request())) for _ in range(50)]
    await asyncio.sleep(0)

    answer = await handle(request(target="/mailbox/other"))

    assert answer.status == 200
    world.receiver.wind_down()
    await asyncio.wait(polls)


async def test_wrong_tokens_are_refused_at_once_and_wait_for_nothing(
    serve: Serve, world: World
) -> None:
    site = await serve(world)
    clients = [await site.connect() for _ in range(100)]
    for client in clients:
        await client.send(asking("?wait=60", token="a-guess-of-a-token-of-theirs"))

    answers = [await client.answer() for client in clients]

    assert {each.code for each in answers} == {"mailbox_unauthorized"}


async def test_polls_that_wait_leave_connections_to_senders(serve: Serve, world: World) -> None:
    site = await serve(world, max_connections=32, max_connections_per_peer=32)
    for _ in range(28):
        client = await site.connect()
        await client.send(asking("?wait=60"))
    sender = await site.connect()

    await sender.send(raw(world.draft(1)))

    assert (await sender.answer()).status == 202


async def test_a_settlement_that_stays_incomplete_is_refused_at_the_deadline(
    make_world: WorldFactory, serve: Serve
) -> None:
    world = make_world({"limits": Limits(request_timeout=SOON)})
    world.receiver.mailbox(MailboxOptions(name="laptop", tokens=[TOKEN]))
    client = await (await serve(world)).connect()

    await client.send(asking(verb="/ack", body={"receipt": "1.1"})[:-1])
    answer = await client.answer()

    assert (answer.status, answer.code) == (408, "body_timeout")


async def test_a_token_is_in_no_log_line(
    serve: Serve, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    site = await serve(world)
    for token in (TOKEN, "a-guess-of-a-token-of-theirs"):
        client = await site.connect()
        await client.send(asking(token=token))
        await client.answer()

    assert TOKEN not in caplog.text
    assert "a-guess" not in caplog.text


def test_options_do_not_show_a_token() -> None:
    options = MailboxOptions(name="laptop", tokens=[TOKEN], lease=timedelta(seconds=5))

    assert TOKEN not in repr(options)
