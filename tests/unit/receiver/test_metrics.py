"""The metrics of a receiver, parsed as Prometheus parses them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tenacity import stop_after_attempt

from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from receiver import Notification, Receiver
from tests.eventually import eventually
from tests.metrics_page import MetricsRead

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory


async def read(receiver: Receiver) -> MetricsRead:
    return MetricsRead.of((await receiver.metrics.page()).body)


async def test_verdicts_are_counted_by_sender_code_and_step(world: World) -> None:
    assert world.receiver.metrics
    await world.receive(world.draft())
    await world.receive(world.draft())
    replayed = world.draft()
    replayed = replace(replayed, body=replayed.body.replace(b"WORKING", b"COMPLETED"))
    await world.receive(replayed)
    stranger = replace(world.draft(), issuer="https://somebody.example.com")
    await world.receive(stranger)
    lost = replace(world.draft(), url="/elsewhere")
    await world.receive(lost)

    found = await read(world.receiver)
    for result in ("accepted", "duplicate"):
        assert found.value("receiver_notifications_total", sender="agent", result=result) == 1
    for sender, code, step in (
        ("agent", "id_conflict", "replay"),
        ("nobody", "unknown_sender", "sender"),
        ("nobody", "not_found", ""),
    ):
        by = {"sender": sender, "code": code, "step": step}
        assert found.value("receiver_refusals_total", **by) == 1
    assert found.value("receiver_keys_missing", sender="agent") == 0
    assert found.value("receiver_database_up") == 1


async def test_callbacks_and_what_was_given_up_are_counted(make_world: WorldFactory) -> None:
    once = RetryPolicy(wait=wait_schedule((1,)), stop=stop_after_attempt(1))
    world = make_world(options={"retry": once})

    async def broken(_: Notification) -> None:
        raise ValueError("mine")

    world.receiver.callbacks.add(broken, name="broken")
    metrics = world.receiver.metrics
    await world.receive(world.draft())

    async def given_up() -> bool:
        found = MetricsRead.of((await metrics.page()).body)
        return found.value("receiver_dead_letters_total", sender="agent") == 1

    await eventually(given_up)
    found = await read(world.receiver)
    failed = found.value("receiver_callback_failures_total", callback="broken", error="ValueError")
    assert failed == 1
    assert found.value("receiver_callback_seconds_count", callback="broken") == 1
    assert found.value("receiver_callbacks_hanging") == 0
    slots = [found.value("receiver_slots", state=state) or 0 for state in ("in_use", "free")]
    assert sum(slots) == 64


async def test_the_inbox_is_read_from_the_database(world: World) -> None:
    async with world.receiver as receiver:
        receiver.wind_down()  # nothing is handed out
        await receiver.receive(world.draft().request())
        world.clock.advance(90)
        found = await read(receiver)
        assert found.value("receiver_inbox", status="received") == 1
        assert found.value("receiver_inbox", status="dead") == 0
        assert found.value("receiver_oldest_unfinished_seconds") == 90
