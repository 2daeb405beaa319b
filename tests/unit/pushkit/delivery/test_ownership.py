"""Nothing is sent to a destination before it proved its ownership (wire profile §5)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from pushkit import PushSender
from pushkit.delivery import ownership
from pushkit.errors import OwnershipError
from pushkit.outbox.model import Delivery
from pushkit.outbox.states import DeliveryState
from tests.clock import Clock
from tests.eventually import DEADLINE, PATIENT
from tests.unit.pushkit.delivery.conftest import Senders, deliver_due, enqueue, status

DAY = 86_400


def _proof(token: str) -> web.Response:
    return web.Response(text=token)


@dataclass
class Echo:
    """A webhook that proves its ownership, unless the test sets another answer."""

    base: str = ""
    asked: list[web.BaseRequest] = field(default_factory=list)
    got: list[str] = field(default_factory=list)
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    answer: Callable[[str], web.Response] = field(default_factory=lambda: _proof)

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            self.asked.append(request)
            return self.answer(request.query["validationToken"])
        self.got.append(request.raw_path)
        self.reached.set()
        return web.Response()


@pytest.fixture
async def echo(aiohttp_server: Any) -> Echo:
    echo = Echo()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", echo.handle)
    server = await aiohttp_server(app)
    echo.base = f"http://127.0.0.1:{server.port}"
    return echo


@pytest.fixture
async def sender(senders: Senders) -> PushSender:
    return await senders.open(verify_ownership=True)


async def deliver(
    sender: PushSender, url: str, *, task_id: str = "task-1", owner: str = "alice", **config: Any
) -> Delivery:
    hook = {"url": url} | config
    await sender.subscribe(task_id, hook, version="1.0", owner=owner)
    await sender.notify(status(task_id=task_id))
    await deliver_due(sender)
    return (await sender.deliveries(task_id))[-1]


@pytest.mark.parametrize("target", ["/hook", "/hook?a=b&c=%2F", "/?validationTokens=1"])
async def test_a_url_is_asked_once_and_then_delivered_to(
    sender: PushSender, echo: Echo, target: str
) -> None:
    for _ in range(3):
        delivery = await deliver(sender, echo.base + target)
    assert delivery.state is DeliveryState.DELIVERED
    [asked] = echo.asked
    token = asked.query["validationToken"]
    assert len(token) >= 32
    separator = "&" if "?" in target else "?"
    assert asked.raw_path == f"{target}{separator}validationToken={token}"
    assert echo.got == [target] * 3


async def test_the_ownership_request_carries_no_secret(sender: PushSender, echo: Echo) -> None:
    authentication = {"scheme": "Bearer", "credentials": "canary-1"}
    await deliver(sender, echo.base + "/hook", token="canary-2", authentication=authentication)
    [asked] = echo.asked
    names = {name.lower() for name in asked.headers}
    assert names == {"host", "accept", "accept-encoding", "user-agent"}
    assert not any("canary" in value for value in asked.headers.values())
    assert await asked.read() == b""


async def test_a_remembered_failure_does_not_reference_its_delivery(
    sender: PushSender, echo: Echo
) -> None:
    echo.answer = lambda _: web.Response(text="no")
    for number in range(2):
        await deliver(sender, echo.base + "/hook", task_id=f"task-{number}")
    assert sender._ownership
    [proof] = sender._ownership._proofs.values()
    assert isinstance(proof.failure, OwnershipError)
    assert (proof.failure.status, proof.failure.__traceback__) == (200, None)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda _: web.Response(text=""), id="nothing"),
        pytest.param(lambda _: web.Response(text="OK"), id="another text"),
        pytest.param(lambda token: web.Response(text=f"{token}\n"), id="with a line break"),
        pytest.param(lambda token: web.Response(text=f" {token}"), id="with a space"),
        pytest.param(lambda token: web.Response(text=f'"{token}"'), id="in quotes"),
        pytest.param(lambda token: web.Response(text=token.lower() + "A"), id="in lower case"),
        pytest.param(lambda token: web.Response(text=token[:-1]), id="cut short"),
        pytest.param(lambda token: web.Response(text=token + "x" * 70_000), id="in a long page"),
        pytest.param(lambda token: web.Response(text=token, status=301), id="with a redirect"),
        pytest.param(lambda token: web.Response(text=token, status=404), id="not found"),
        pytest.param(lambda token: web.Response(text=token, status=500), id="an error"),
    ],
)
async def test_a_destination_without_a_proof_gets_no_notification(
    sender: PushSender, echo: Echo, clock: Clock, answer: Callable[[str], web.Response]
) -> None:
    echo.answer = answer
    delivery = await deliver(sender, echo.base + "/hook")
    assert (delivery.state, delivery.last_error) == (DeliveryState.PENDING, "ownership_unproven")
    assert delivery.last_status == answer("t" * 40).status
    assert echo.got == []
    # The retry asks again; after a proof the delivery is sent.
    echo.answer = _proof
    clock.advance(30)
    await deliver_due(sender)
    assert len(echo.asked) == 2
    assert echo.asked[0].query["validationToken"] != echo.asked[1].query["validationToken"]
    assert echo.got == ["/hook"]


async def test_a_refused_connection_proves_no_ownership(
    senders: Senders, unused_tcp_port: int
) -> None:
    sender = await senders.open(verify_ownership=True)
    delivery = await deliver(sender, f"http://127.0.0.1:{unused_tcp_port}/")
    assert (delivery.state, delivery.last_error) == (DeliveryState.PENDING, "connection_refused")


async def test_the_attempt_timeout_covers_the_ownership_request(
    senders: Senders, aiohttp_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, released = asyncio.Event(), asyncio.Event()

    async def keep_silent(_: web.Request) -> web.Response:
        asked.set()
        await released.wait()
        return web.Response()

    app = web.Application()
    app.router.add_route("*", "/", keep_silent)
    server = await aiohttp_server(app)
    # The ownership request's own timeout is longer, so that the attempt's applies.
    monkeypatch.setattr(ownership, "_TIMEOUT", 2 * PATIENT)
    sender = await senders.open(verify_ownership=True, timeout=timedelta(seconds=0.2))
    url, tasks = f"http://127.0.0.1:{server.port}/", itertools.count()
    while not asked.is_set():  # a busy machine may use up the 0.2 s before the request
        async with asyncio.timeout(DEADLINE):
            delivery = await deliver(sender, url, task_id=f"task-{next(tasks)}")
    released.set()
    assert (delivery.state, delivery.last_error) == (DeliveryState.PENDING, "timeout")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(lambda token: web.Response(text=token), None, id="a proof"),
        pytest.param(lambda _: web.Response(text="no"), "ownership_unproven", id="none"),
    ],
)
async def test_many_subscriptions_to_one_url_share_one_ownership_request(
    sender: PushSender, echo: Echo, answer: Callable[[str], web.Response], error: str | None
) -> None:
    echo.answer = answer
    tasks = [f"task-{number}" for number in range(12)]
    for task_id in tasks:
        await enqueue(sender, echo.base + "/hook", task_id, owner="alice")
    await deliver_due(sender)
    found = [each for task_id in tasks for each in await sender.deliveries(task_id)]
    assert {each.last_error for each in found} == {error}
    assert (len(echo.asked), len(echo.got)) == (1, 0 if error else 12)


async def test_a_proof_survives_a_restart(senders: Senders, echo: Echo) -> None:
    for _ in range(2):
        sender = await senders.open(verify_ownership=True)
        await deliver(sender, echo.base + "/hook")
        await sender.close()
    assert (len(echo.asked), len(echo.got)) == (1, 2)


async def test_a_changed_url_needs_a_new_proof(sender: PushSender, echo: Echo) -> None:
    for target in ("/a", "/b", "/a?c", "/a"):
        await deliver(sender, echo.base + target)
    assert [asked.path for asked in echo.asked] == ["/a", "/b", "/a"]


async def test_the_proof_of_one_owner_is_no_proof_for_another(
    sender: PushSender, echo: Echo
) -> None:
    for owner in ("alice", "bob", "alice"):
        await deliver(sender, echo.base + "/hook", owner=owner, task_id=f"of-{owner}")
    assert len(echo.asked) == 2


async def test_a_restart_does_not_renew_a_proof(senders: Senders, echo: Echo, clock: Clock) -> None:
    for days in (0, 29, 2):
        clock.advance(days * DAY)
        sender = senders.made[-1] if days == 2 else await senders.open(verify_ownership=True)
        await deliver(sender, f"{echo.base}/hook")
    assert len(echo.asked) == 2


async def test_a_destination_that_hangs_does_not_delay_the_others(
    senders: Senders, echo: Echo
) -> None:
    hanging, gone = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hanging.set()
        await reader.read()
        writer.close()
        gone.set()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sender = await senders.open(verify_ownership=True, drain=timedelta(0))
    await sender.start()
    async with asyncio.timeout(DEADLINE):
        await enqueue(sender, f"http://127.0.0.1:{port}/", "slow")
        await hanging.wait()
        await enqueue(sender, echo.base + "/hook")
        await echo.reached.wait()
        assert not gone.is_set()
        await sender.close()
        await gone.wait()
    server.close()


async def test_without_the_option_no_proof_is_requested(senders: Senders, echo: Echo) -> None:
    await deliver(await senders.open(), echo.base + "/hook")
    assert (echo.asked, echo.got) == ([], ["/hook"])
