"""The events of a receiver: one for each verdict, and one for each callback."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tenacity import stop_after_attempt

from pushkit.events import (
    CalledBack,
    Event,
    NotificationAccepted,
    NotificationDead,
    NotificationRefused,
    NotificationRepeated,
)
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from receiver import Notification
from tests.emitted import emitted
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import WorldFactory


async def test_events_of_incoming_requests_name_sender_and_delivery(
    make_world: WorldFactory,
) -> None:
    events: list[Event] = []
    world = make_world(options={"on_event": events.append})
    await world.receive(world.draft())
    await world.receive(world.draft())
    other = world.draft()
    other = replace(other, body=other.body.replace(b"WORKING", b"COMPLETED"))
    assert (await world.receive(other)).code == "id_conflict"

    [accepted], [repeated] = (
        emitted(events, NotificationAccepted),
        emitted(events, NotificationRepeated),
    )
    [refused] = emitted(events, NotificationRefused)
    for event in (accepted, repeated, refused):
        assert (event.sender, event.task_id) == ("agent", "task-1")
        assert event.delivery_id == "delivery-task-1-1"
    assert (refused.status, refused.code, refused.peer) == (409, "id_conflict", "192.0.2.1")
    assert (refused.steps[0], refused.steps[-1]) == ("request", "replay")


async def test_the_event_of_an_unproven_sender_names_no_sender(make_world: WorldFactory) -> None:
    events: list[Event] = []
    world = make_world(options={"on_event": events.append})
    draft = replace(world.draft(), issuer="https://somebody.example.com")
    await world.receive(draft)
    [refused] = emitted(events, NotificationRefused)
    assert (refused.sender, refused.delivery_id, refused.code) == (None, None, "unknown_sender")
    assert refused.steps == ("request", "sender")


async def test_each_call_and_the_final_dead_letter_emit_an_event(make_world: WorldFactory) -> None:
    events: list[Event] = []
    once = RetryPolicy(wait=wait_schedule((1,)), stop=stop_after_attempt(1))
    world = make_world(options={"on_event": events.append, "retry": once})

    async def fine(_: Notification) -> None: ...

    async def broken(_: Notification) -> None:
        raise ValueError("mine")

    world.receiver.callbacks.add(fine, name="fine")
    world.receiver.callbacks.add(broken, name="broken")
    await world.receive(world.draft())

    await eventually(lambda: emitted(events, NotificationDead))

    calls = emitted(events, CalledBack)
    assert {(call.callback, call.error) for call in calls} == {
        ("fine", None),
        ("broken", "ValueError"),
    }
    [dead] = emitted(events, NotificationDead)
    assert dead.error == "broken: ValueError"
    assert {each.delivery_id for each in (dead, *calls)} == {"delivery-task-1-1"}
