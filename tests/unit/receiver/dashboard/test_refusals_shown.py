"""The dashboard of a receiver in this process: who was refused, why, and what mends it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pytest_aiohttp.plugin import AiohttpClient

from pushkit.errors import ConfigError
from pushkit.webui.access import DashboardAccess
from receiver.dashboard.app import dashboard_of, receiver_dashboard, steps_of_refused
from receiver.dashboard.memory import RecentEvents, event_sockets, receiving, sending
from receiver.refusals import REFUSALS
from tests.browser import Browser
from tests.emitted import refused
from tests.eventually import eventually

if TYPE_CHECKING:
    from receiver import Notification
    from tests.unit.receiver.conftest import World, WorldFactory


@pytest.fixture
async def client(world: World, aiohttp_client: AiohttpClient) -> Browser:
    receiver = world.receiver
    site = dashboard_of(receiver, access=DashboardAccess())
    return await Browser.at(site, aiohttp_client)


async def test_a_refusal_is_found_understood_and_its_mend_named(
    world: World, client: Browser
) -> None:
    draft = replace(world.draft(), audience="https://elsewhere.example.com/a2a/push")
    assert (await world.receive(draft)).code == "wrong_audience"

    found = await client.get("/")
    assert "wrong_audience" in found
    found = await client.get("/refusals")
    assert REFUSALS["wrong_audience"].remedy.split(":")[0] in found
    link = re.search(r'href="(/refusals/\d+)"', found)
    assert link
    found = await client.get(link[1])
    assert "https://elsewhere.example.com/a2a/push" in found
    assert re.search(r"audience</strong><span class=\"state refused\"", found)
    assert found.count("not reached") == 9


async def test_text_of_a_refused_request_is_escaped(world: World, client: Browser) -> None:
    draft = replace(world.draft(), issuer="`<script>alert(1)</script>`")
    await world.receive(draft)
    draft = replace(
        world.draft(), audience="https://client.example.com/`<img src=x onerror=alert(1)>`"
    )
    await world.receive(draft)
    shown = await client.get("/refusals")
    for number in (1, 2):
        shown += await client.get(f"/refusals/{number}")
    assert "&lt;script&gt;alert" in shown
    assert "&lt;img src=x" in shown
    assert "<script>alert" not in shown
    assert "<img src=x" not in shown


async def test_a_sender_that_is_refused_needs_a_look_and_strangers_do_not(
    world: World, client: Browser
) -> None:
    stranger = replace(world.draft(), issuer="https://somebody.example.com")
    await world.receive(stranger)
    assert (await client.document("/overview"))["verdict"] == "idle"

    elsewhere = replace(world.draft(), audience="https://elsewhere.example.com/a2a/push")
    for draft in (world.draft(token="guessed-by-the-agent"), elsewhere):
        await world.receive(draft)
    found = await client.document("/overview")
    assert found["says"] == "Nothing is accepted: every notification is refused."
    links = {each["link"]: each["severity"] for each in found["findings"]}
    assert links == {
        "/refusals?code=invalid_token": "warning",
        "/refusals?code=wrong_audience": "warning",
        "/refusals": "note",
    }
    assert "guessed" not in str(found)
    world.clock.now += timedelta(hours=2)
    assert (await client.document("/overview"))["verdict"] == "idle"


async def test_refusals_come_newest_first_in_pages_and_by_reason(
    world: World, client: Browser
) -> None:
    for number in range(3):
        await world.receive(world.draft(number, token="guessed-by-the-agent"))
    stranger = replace(world.draft(), issuer="https://somebody.example.com")
    await world.receive(stranger)
    first = await client.document("/refusals?limit=2")
    second = await client.document(f"/refusals?limit=2&before={first['before']}")
    assert second["before"] is None
    shown = [each["number"] for page in (first, second) for each in page["refusals"]]
    assert shown == [4, 3, 2, 1]
    found = await client.document("/refusals?code=unknown_sender")
    assert [each["number"] for each in found["refusals"]] == [4]


async def test_calls_are_timed_and_their_failures_kept(world: World, client: Browser) -> None:
    @world.receiver.on_update(name="told")
    async def told(_: Notification) -> None:
        raise ValueError("a-word-of-the-error")

    await world.receive(world.draft())

    async def called() -> bool:
        found = await client.document("/callbacks")
        return bool(found["callbacks"])

    await eventually(called)
    [found] = (await client.document("/callbacks"))["callbacks"]
    assert found["calls"]["failed"] == 1
    assert found["calls"]["failures"][0]["error"] == "ValueError"
    shown = await client.get("/callbacks")
    assert "a-word-of-the-error" not in shown


def test_a_flood_of_strangers_pushes_out_neither_senders_nor_other_reasons(world: World) -> None:
    memory = RecentEvents()
    memory.record(refused(world.clock.now, "invalid_token", "agent"))
    memory.record(refused(world.clock.now, "unknown_sender", None))
    for _ in range(1000):
        memory.record(refused(world.clock.now, "invalid_token", None))
    kept = memory.refusals()
    assert len(kept) == 102
    assert [each.number for each in kept[-2:]] == [2, 1]
    assert memory.counts["invalid_token"] == 1001
    assert max(len(each.reason) for each in kept) <= 500


async def test_a_burst_of_another_process_arrives_whole(world: World) -> None:
    memory = RecentEvents()
    incoming, outgoing = event_sockets()
    with incoming, outgoing:
        send = sending(outgoing)
        for _ in range(1000):
            send(refused(world.clock.now, "invalid_token", None))
        with receiving(incoming, memory.record):
            await eventually(lambda: memory.counts.total() == 1000)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        pytest.param(1, "1 request refused", id="one"),
        pytest.param(99, "99 requests refused", id="all of them are kept"),
        pytest.param(500, "100+ requests refused", id="the newest are kept"),
    ],
)
async def test_the_overview_says_whether_there_were_more_refusals_than_are_kept(
    world: World, aiohttp_client: AiohttpClient, number: int, says: str
) -> None:
    await world.start()
    memory = RecentEvents()
    site = dashboard_of(world.receiver, access=DashboardAccess(), memory=memory)
    client = await Browser.at(site, aiohttp_client)
    for _ in range(number):
        memory.record(refused(world.clock.now, "invalid_token", "agent"))
    assert f"{says} within the last hour" in await client.get("/")


def test_a_request_that_was_no_notification_has_no_steps(world: World) -> None:
    assert steps_of_refused(refused(world.clock.now, "not_found", None)) == []


@pytest.mark.parametrize(
    ("token", "expected"), [("short", "20 visible"), (None, "token: found NoneType, expected str")]
)
def test_a_mounted_dashboard_needs_a_token(world: World, token: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        receiver_dashboard(world.receiver, token=token, hosts=["ops.example.com"])


async def test_a_notification_in_its_callback_is_not_due(
    make_world: WorldFactory, aiohttp_client: AiohttpClient
) -> None:
    world, called = make_world({"drain": timedelta(0)}), asyncio.Event()

    @world.receiver.on_update
    async def hang(_: Notification) -> None:
        called.set()
        await asyncio.Event().wait()

    async def findings() -> list[str]:
        site = dashboard_of(world.receiver, access=DashboardAccess())
        shown = await (await Browser.at(site, aiohttp_client)).document("/overview")
        return [each["says"] for each in shown["findings"]]

    await world.receive(world.draft())
    await called.wait()
    world.clock.advance(3600)
    while_called = await findings()
    await world.restart()
    await world.receiver.open()  # without callbacks: nobody claims it
    world.clock.advance(3600)

    assert not any("no receiver claims" in each for each in while_called)
    assert any("no receiver claims" in each for each in await findings())
    await world.receiver.close()
