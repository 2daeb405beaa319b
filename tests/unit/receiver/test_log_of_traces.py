"""Every line about a notification has the trace that it came in: readable, and as JSON."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tenacity import stop_after_attempt

from pushkit.events import CalledBack, Event, NotificationDead, ReceiverEvent
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.terminal.output import JsonLines
from receiver import Notification
from receiver.testing import Draft
from tests.emitted import emitted
from tests.eventually import eventually
from tests.unit.receiver.drafts import sending

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

TRACE = "0af7651916cd43dd8448eb211c80319c"
ONCE = RetryPolicy(wait=wait_schedule((1,)), stop=stop_after_attempt(1))


def traced(world: World) -> Draft:
    return sending(world.draft(), "traceparent", f"00-{TRACE}-b7ad6b7169203331-01")


def line(caplog: pytest.LogCaptureFixture, beginning: str) -> tuple[str, dict[str, object]]:
    """Return the line that begins so, as people read it and as an object."""
    [record] = [each for each in caplog.records if each.getMessage().startswith(beginning)]
    return record.getMessage(), json.loads(JsonLines().format(record))


async def test_accepted_requests_and_later_refusals_carry_their_trace(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    world = make_world(options={"on_event": events.append})
    with caplog.at_level(logging.INFO, "receiver"):
        await world.receive(traced(world))
        other = traced(world)
        other = replace(other, body=other.body.replace(b"WORKING", b"COMPLETED"))
        assert (await world.receive(other)).code == "id_conflict"
    for beginning in ("accepted", "refused 409 id_conflict"):
        readable, as_json = line(caplog, beginning)
        assert f" trace_id={TRACE}" in readable
        assert (as_json["trace_id"], as_json["delivery_id"]) == (TRACE, "delivery-task-1-1")
    assert {each.trace_id for each in emitted(events, ReceiverEvent)} == {TRACE}


async def test_the_trace_of_an_unknown_sender_is_not_logged(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    draft = replace(traced(world), issuer="https://somebody.example.com")
    await world.receive(draft)
    readable, as_json = line(caplog, "refused 403")
    assert TRACE not in readable + str(as_json)


async def test_a_request_without_a_trace_logs_no_trace(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world()
    with caplog.at_level(logging.INFO, "receiver"):
        await world.receive(world.draft())
    readable, as_json = line(caplog, "accepted")
    assert "trace" not in readable + str(as_json)


async def test_a_callback_that_fails_and_the_dead_letter_in_the_end(
    make_world: WorldFactory, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    world = make_world(options={"on_event": events.append, "retry": ONCE})

    async def broken(_: Notification) -> None:
        raise ValueError("mine")

    world.receiver.callbacks.add(broken)
    async with world.receiver:
        await world.receive(traced(world))
        await eventually(lambda: emitted(events, NotificationDead))
    for beginning, code in (
        ("callback ", "callback_failed"),
        ("notification 1 is a dead letter", "notification_dead"),
    ):
        readable, as_json = line(caplog, beginning)
        assert f" trace_id={TRACE}" in readable
        assert (as_json["code"], as_json["trace_id"], as_json["task"]) == (code, TRACE, "task-1")
    assert {each.trace_id for each in emitted(events, CalledBack)} == {TRACE}
