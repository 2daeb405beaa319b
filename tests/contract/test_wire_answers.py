"""What the sender makes of each answer of a webhook is what docs/wire.md says of it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiodns
import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from pushkit import (
    DeliveryState,
    DestinationCredentials,
    KeyRing,
    OAuthClient,
    PushSender,
    SecretKeys,
    SenderOptions,
    Signing,
    StatusUpdate,
    TaskState,
    TaskStatus,
)
from receiver.testing import SigningAgent
from tests.clock import START, Clock
from tests.contract.pages import codes_in, page, table

ROWS = dict(table("wire.md", "| status | the sender |"))
SCHEDULE = re.search(r"The schedule: at once, then after (.*?), each ± (\d+) %", page("wire.md"))
UNITS = {"s": timedelta(seconds=1), "min": timedelta(minutes=1), "h": timedelta(hours=1)}


def the_row(begin: str) -> str:
    [row] = [row for row in ROWS if row.startswith(begin)]
    return row


def durations(text: str) -> list[timedelta]:
    return [int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+) (s|min|h)\b", text)]


def is_about(found: timedelta, wait: timedelta) -> bool:
    """Return whether a wait is the one of the page, within what the schedule adds by chance."""
    assert SCHEDULE
    share = int(SCHEDULE[2]) / 100
    return (1 - share) * wait <= found <= (1 + share) * wait


@dataclass
class World:
    """A sender whose worker the test runs, and a webhook that answers as it is told."""

    database: Path
    clock: Clock
    url: str = ""
    answers: list[web.Response] = field(default_factory=list)
    arrived: list[str] = field(default_factory=list)
    senders: list[PushSender] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.arrived.append(request.path)
        return self.answers.pop(0) if self.answers else web.Response()

    async def sender(
        self,
        *,
        keys: Any = None,
        secrets: SecretKeys | None = None,
        allow: tuple[str, ...] = ("127.0.0.1:*",),
        **options: Any,
    ) -> PushSender:
        sender = PushSender(
            issuer="https://agent.example.com",
            keys=keys or KeyRing.create(START - timedelta(days=1)),
            secrets=secrets,
            database=self.database,
            allow=allow,
            options=SenderOptions(**options),
            clock=self.clock,
        )
        self.senders.append(sender)
        await sender.open()
        return sender

    async def notify(self, updates: int = 2, url: str = "", **options: Any) -> None:
        """Have a sender try to send the first of some updates to a webhook."""
        sender = await self.sender(**options)
        await sender.subscribe("task-1", {"url": url or self.url}, version="1.0", owner="alice")
        for _ in range(updates):
            await sender.notify(update())
        await self.run_once()

    async def run_once(self) -> int:
        return await self.senders[-1].worker.run_once()

    async def deliveries(self) -> Any:
        return await self.senders[-1].deliveries("task-1")


def update(task_id: str = "task-1") -> StatusUpdate:
    return StatusUpdate(task_id=task_id, context_id="c", status=TaskStatus(state=TaskState.WORKING))


@pytest.fixture
async def world(tmp_path: Path, aiohttp_server: AiohttpServer) -> AsyncIterator[World]:
    world = World(tmp_path / "outbox.db", Clock())
    app = web.Application()
    app.router.add_post("/{path:.*}", world.answer)
    world.url = str((await aiohttp_server(app)).make_url("/hook"))
    yield world
    for sender in world.senders:
        await sender.close()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the name servers: nothing is asked outside of this machine."""
    known = {"private.example.com": b"192.168.0.1", "public.example.com": b"93.184.216.34"}

    async def getaddrinfo(_: object, host: str, **__: object) -> SimpleNamespace:
        if host not in known:
            raise aiodns.error.DNSError(4, "no such name")
        return SimpleNamespace(nodes=[SimpleNamespace(addr=(known[host], 0))])

    monkeypatch.setattr(aiodns.DNSResolver, "getaddrinfo", getaddrinfo)


# --- what a row says the sender does -----------------------------------------------------------


async def is_delivered(world: World, _: str) -> None:
    first, _second = await world.deliveries()
    assert (first.state, first.last_error, first.attempts) == (DeliveryState.DELIVERED, None, 1)


async def is_retried_on_schedule(world: World, _: str) -> None:
    assert SCHEDULE
    first, second = await world.deliveries()
    assert (first.state, first.attempts) == (DeliveryState.PENDING, 1)
    assert (second.state, second.attempts) == (DeliveryState.PENDING, 0)
    assert is_about(first.not_before - world.clock.now, durations(SCHEDULE[1])[0])


async def is_dead_at_once(world: World, says: str) -> None:
    await world.run_once()
    first, second = await world.deliveries()
    assert (first.state, first.attempts) == (DeliveryState.DEAD, 1)
    assert second.state is DeliveryState.DELIVERED  # the task's next update follows
    if "recorded as" in says:
        assert codes_in(says) == [first.last_error]


async def is_disabled(world: World, says: str) -> None:
    [subscription] = await world.senders[-1].subscriptions("task-1", owner="alice")
    assert not subscription.active
    assert "pending deliveries cancelled" in says
    states = [delivery.state for delivery in await world.deliveries()]
    assert states == [DeliveryState.DEAD, DeliveryState.CANCELLED]
    assert await world.run_once() == 0


async def waits_as_long(world: World, says: str) -> None:
    """Wait with all of that owner's at this destination, at most as long as the page says."""
    least, most = durations(says)
    assert least == timedelta(seconds=1)
    sender = world.senders[-1]
    for owner in ("alice", "bob"):
        config = {"url": world.url.replace("/hook", f"/{owner}")}
        await sender.subscribe("task-2", config, version="1.0", owner=owner)
    await sender.notify(update("task-2"))
    await world.run_once()
    world.clock.now += most - least
    await world.run_once()
    assert world.arrived == ["/hook", "/bob"]
    world.clock.now += least
    await world.run_once()
    assert set(world.arrived) == {"/hook", "/bob", "/alice"}


# By what the second column says.
DOES: dict[str, Callable[[World, str], Awaitable[None]]] = {
    "delivered": is_delivered,
    "retries on schedule": is_retried_on_schedule,
    "dead letter at once": is_dead_at_once,
    "subscription disabled": is_disabled,
    "waits that long": waits_as_long,
}


async def does_what_it_says(world: World, says: str) -> None:
    [check] = [check for words, check in DOES.items() if words in says]
    await check(world, says)


# --- answers -------------------------------------------------------------------------------------

# Of a hundred statuses, those that are tried.
SOME = (0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 18, 25, 26, 29, 31, 51, 99)
ERRORS = {
    int(said[1]): codes_in(code)[0]
    for code, means, _ in table("reference/codes.md", "| code | meaning | what to do |")
    if (said := re.search(r"the webhook answered (\d{3})", means))
}


def statuses() -> Iterator[Any]:
    """Yield the statuses of each row: those that it names, or some of its hundreds."""
    waiting = {row for row in ROWS if "Retry-After" in row}
    named = {status for row in ROWS.keys() - waiting for status in re.findall(r"\d{3}", row)}
    for row, says in ROWS.items():
        of_hundreds = [f"{hundred}{n:02}" for hundred in re.findall(r"(\d)xx", row) for n in SOME]
        for status in [
            *re.findall(r"\d{3}", row),
            *(one for one in of_hundreds if one not in named),
        ]:
            wait = " with a wait" * (row in waiting)
            yield pytest.param(int(status), row in waiting, says, id=status + wait)


@pytest.mark.parametrize(("status", "waits", "says"), list(statuses()))
async def test_an_answer_means_what_its_row_says(
    world: World, status: int, waits: bool, says: str
) -> None:
    headers = {"Retry-After": "999999"} if waits else {"Location": world.url}
    world.answers.append(web.Response(status=status, headers=headers))
    await world.notify()

    first, _ = await world.deliveries()
    error = {2: None, 3: "redirect"}.get(status // 100, ERRORS.get(status, f"status_{status}"))
    assert (first.last_status, first.last_error) == (status, error)

    await does_what_it_says(world, says)


# --- no answer -----------------------------------------------------------------------------------


async def nobody_listens(_: World, __: AsyncExitStack) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return {"url": f"http://127.0.0.1:{listener.getsockname()[1]}/"}


async def no_such_name(_: World, __: AsyncExitStack) -> dict[str, Any]:
    return {"url": "https://unknown.example.com/", "allow": ()}


async def no_tls(world: World, _: AsyncExitStack) -> dict[str, Any]:
    return {"url": world.url.replace("http:", "https:")}


async def says_nothing(_: World, stack: AsyncExitStack) -> dict[str, Any]:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    return {"url": url, "timeout": timedelta(milliseconds=50)}


async def hangs_up(_: World, stack: AsyncExitStack) -> dict[str, Any]:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    await stack.enter_async_context(server)
    return {"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"}


NO_ANSWER = {
    "connection_refused": nobody_listens,
    "dns_failure": no_such_name,
    "tls_failure": no_tls,
    "timeout": says_nothing,
    "transport": hangs_up,
}
UNANSWERED = the_row("no answer")
REFUSED = the_row("the address is refused")
FAULT = the_row("a fault on the sender's side")


@pytest.mark.parametrize("code", codes_in(UNANSWERED))
@pytest.mark.usefixtures("names")
async def test_no_answer_means_what_its_row_says(world: World, code: str) -> None:
    async with AsyncExitStack() as stack:
        await world.notify(**await NO_ANSWER[code](world, stack))

    await does_what_it_says(world, ROWS[UNANSWERED])

    first, _ = await world.deliveries()
    assert (first.last_error, first.last_status) == (code, None)


@pytest.mark.parametrize("code", codes_in(REFUSED))
@pytest.mark.usefixtures("names")
async def test_a_refused_destination_is_tried_as_its_row_says(world: World, code: str) -> None:
    if code == "address_refused":
        await world.notify(1, "https://private.example.com/", allow=())
    else:  # its URL was allowed once
        await world.notify(0)
        await world.senders[-1].notify(update())
        await world.senders.pop().close()
        await world.sender(allow=())
        await world.run_once()
    for wait in durations(ROWS[REFUSED]):
        [delivery] = await world.deliveries()
        assert (delivery.state, delivery.last_error) == (DeliveryState.PENDING, code)
        assert is_about(delivery.not_before - world.clock.now, wait)
        world.clock.now = delivery.not_before
        await world.run_once()
    [delivery] = await world.deliveries()
    assert delivery.state is DeliveryState.DEAD
    assert "then dead letter" in ROWS[REFUSED]
    assert world.arrived == []


# --- faults of this side -------------------------------------------------------------------------


AGENT = SigningAgent(webhook_url="https://client.example.com/")


class Broken:
    """A key in a service that is out of reach."""

    public_jwk = json.loads(json.dumps(AGENT.jwks()))["keys"][0]

    async def sign(self, data: bytes) -> bytes:
        raise OSError(f"no service signs {len(data)} bytes")


def no_signing(_: object) -> Signing:
    raise LookupError


OAUTH = OAuthClient(token_url="http://127.0.0.1:1/", client_id="a", client_secret="b")
FAULTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "key": lambda _: {"profile": "a2a-samples"},  # needs an RSA key
    "KMS": lambda _: {"keys": Broken()},
    "sealed secret": lambda _: {"secrets": SecretKeys.generate()},
    "OAuth token": lambda url: {"credentials": [DestinationCredentials(origin=url, oauth=OAUTH)]},
    "egress proxy": lambda _: {"proxy": "http://127.0.0.1:1", "url": "https://public.example.com/"},
    "an application's function": lambda _: {"signing": no_signing},
}
# What cannot be brought about from outside: tests/unit/pushkit/delivery/test_local_faults.py does.
NOT_FROM_OUTSIDE = {"no socket or memory left", "database"}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.usefixtures("names")
async def test_a_fault_of_this_side_is_retried_as_its_row_says(world: World, kind: str) -> None:
    options = FAULTS[kind](world.url.removesuffix("/hook"))
    config = {"url": options.pop("url", world.url), "token": "the-token-is-private"}
    profile = options.pop("profile", "standard")
    if secrets := options.pop("secrets", None):
        sealing = await world.sender(secrets=secrets)
        await sealing.subscribe("task-1", config, version="1.0")
        await sealing.close()
    sender = await world.sender(**options)
    if not secrets:
        await sender.subscribe("task-1", config, version="1.0", profile=profile)
    await sender.notify(update())
    *first, most = durations(ROWS[FAULT])
    waits = []
    for _ in range(11):
        await world.run_once()
        [delivery] = await world.deliveries()
        assert (delivery.state, delivery.attempts) == (DeliveryState.PENDING, 0)
        waits.append(delivery.not_before - world.clock.now)
        world.clock.now = delivery.not_before
    assert waits == [min(first[0] * 2**number, most) for number in range(11)]
    assert waits[: len(first)] == first
    assert world.arrived == []


def test_every_fault_of_the_row_has_a_case() -> None:
    [kinds] = re.findall(r"\((.*)\)", FAULT)
    assert set(kinds.split(", ")) == {*FAULTS, *NOT_FROM_OUTSIDE}


# --- the schedule --------------------------------------------------------------------------------


async def test_the_schedule_is_the_one_of_the_page(world: World) -> None:
    assert SCHEDULE
    world.answers.extend(web.Response(status=500) for _ in range(20))
    await world.notify(1)
    for number, wait in enumerate(durations(SCHEDULE[1]), start=1):
        [delivery] = await world.deliveries()
        assert (delivery.state, delivery.attempts) == (DeliveryState.PENDING, number)
        assert is_about(delivery.not_before - world.clock.now, wait)
        world.clock.now = delivery.not_before
        await world.run_once()
    [delivery] = await world.deliveries()
    assert delivery.state is DeliveryState.DEAD


def test_every_row_has_a_test() -> None:
    of_statuses = {row for row in ROWS if re.search(r"\d\d\d|\dxx", row)}
    assert ROWS.keys() - of_statuses == {UNANSWERED, REFUSED, FAULT}
