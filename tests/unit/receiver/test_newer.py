"""What is newer than a receiver: unknown kinds, stated versions, the generation of a task."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.a2a import TaskSnapshot, UnknownUpdate, WireVersion
from pushkit.events import Event, GenerationGap
from receiver import (
    InboxFilter,
    Notification,
    UpdateKind,
    inbox_commands,
    verify_notification,
)
from receiver.forwards import _facts_of
from receiver.testing import Draft
from receiver.trust import load_trust
from tests.emitted import emitted
from tests.eventually import eventually
from tests.unit.receiver.conftest import BASE_URL
from tests.unit.receiver.drafts import claiming, sending
from tests.unit.receiver.test_metrics import read

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World

NEWER = {"messageUpdate": {"taskId": "task-1", "message": {"text": "hi"}}}
OF_A_KIND = {"kind": "progress", "taskId": "task-1", "percent": 40}
ALIKE = {"id": "task-1", "status": {"state": "working"}}  # a task of 0.1, or of 0.3


def saying(world: World, number: int, document: object) -> Draft:
    return replace(world.draft(number), body=json.dumps(document).encode())


def changed(generation: object) -> dict[str, Any]:
    status = {"state": "TASK_STATE_WORKING"}
    return {"statusUpdate": {"taskId": "task-1", "status": status, "generation": generation}}


# --- unknown kinds -------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [NEWER, OF_A_KIND], ids=["as in 1.0", "as in 0.3"])
async def test_an_unknown_kind_is_stored_and_called_back(
    world_behind: World, document: dict[str, Any]
) -> None:
    world, called, unknown = world_behind, list[Notification](), list[Notification]()
    statuses: list[Notification] = []
    world.receiver.on_update(called.append)
    world.receiver.on_unknown(name="unknown")(unknown.append)
    world.receiver.on_status(name="statuses")(statuses.append)
    draft = saying(world, 1, document)

    answers = [await world.post(draft) for _ in range(2)]
    await world.until_done(1)

    assert [answer.status for answer in answers] == [202, 200]
    [notification] = called
    assert unknown == called
    assert not statuses
    assert notification.kind is UpdateKind.UNKNOWN
    assert (notification.task_id, notification.body) == ("task-1", draft.body)
    assert isinstance(notification.update, UnknownUpdate)
    assert notification.update.name in document or notification.update.name == document["kind"]


async def test_an_unknown_kind_stands_in_the_queue_of_its_task(world: World) -> None:
    called: list[Notification] = []
    world.receiver.on_update(called.append)
    for number, document in enumerate([changed(None), NEWER, changed(None)], start=1):
        assert (await world.receive(saying(world, number, document))).status == 202
    await world.until_done(3)
    assert [each.seq for each in called] == [1, 2, 3]
    assert {each.task_id for each in called} == {"task-1"}


async def test_wait_does_not_end_by_an_unknown_kind(world: World) -> None:
    await world.start()
    waiting = asyncio.create_task(world.receiver.wait("task-1", timeout=20))
    await world.receive(saying(world, 1, NEWER))
    await world.receive(world.draft(2, state="completed"))
    assert (await waiting).seq == 2
    kinds = [each.kind async for each in world.receiver.updates("task-1")]
    assert kinds == [UpdateKind.UNKNOWN, UpdateKind.STATUS_UPDATE]


async def test_an_unknown_kind_is_read_again_from_the_inbox(world: World) -> None:
    await world.receive(saying(world, 1, NEWER))
    await world.restart()
    [found] = await redriven(world)
    assert found.kind is UpdateKind.UNKNOWN


async def redriven(world: World) -> list[Notification]:
    called: list[Notification] = []
    world.receiver.on_update(called.append)
    await world.start()
    await world.receiver.inbox.redrive(InboxFilter(unmatched=True))
    await eventually(lambda: bool(called))
    return called


@pytest.mark.parametrize(
    "document",
    [{"x": {"id": "task-1"}}, {"progress": 40, "taskId": "task-1"}, [NEWER]],
    ids=["no task id", "no object", "array"],
)
async def test_what_is_not_of_a2as_shape_is_refused_as_before(
    world_behind: World, document: object
) -> None:
    answer = await world_behind.post(saying(world_behind, 1, document))
    assert (answer.status, answer.code) == (422, "unrecognised_body")


async def test_an_unknown_kind_of_another_task_than_the_signed_one_is_refused(
    world: World,
) -> None:
    draft = saying(world, 1, {"messageUpdate": {"taskId": "task-2"}})
    assert (await world.receive(draft)).code == "malformed_request"


def test_verify_notification_accepts_it_too(world: World) -> None:
    request = saying(world, 1, NEWER).request()
    trust = load_trust(BASE_URL, [world.sender])
    found = verify_notification(request, trust, now=world.clock.now)
    assert (found.update.kind, found.task_id) == (UpdateKind.UNKNOWN, "task-1")


# --- the stated version --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "origin", "logged"),
    [
        pytest.param("0.3", WireVersion.V0_3, None, id="preferred to the shape"),
        pytest.param("0.1", WireVersion.V0_1, None, id="as the shape"),
        pytest.param("1.0", WireVersion.V0_1, "'1.0'", id="of another version"),
        pytest.param("1.1\x1b[0m", WireVersion.V0_1, "'1.1\\x1b[0m'", id="of a later one"),
        pytest.param("t" * 43, WireVersion.V0_1, "43 characters", id="a token in its place"),
        pytest.param(None, WireVersion.V0_1, None, id="none"),
    ],
)
async def test_the_stated_version_is_preferred_to_the_shape(
    world: World,
    caplog: pytest.LogCaptureFixture,
    stated: str | None,
    origin: WireVersion,
    logged: str | None,
) -> None:
    called: list[Notification] = []
    world.receiver.on_update(called.append)
    for number in (1, 2):
        draft = sending(saying(world, number, ALIKE), "A2A-Version", *([stated] if stated else []))
        assert (await world.receive(draft)).status == 202
    await world.until_done(2)

    assert [each.update.origin for each in called] == [origin, origin]
    lines = [each.getMessage() for each in caplog.records if "two versions" in each.getMessage()]
    said = (
        f"two versions: sender=agent task=task-1 id=delivery-task-1-1:"
        f" A2A-Version {logged}, and a body of 0.1"
    )
    assert lines == ([said] if logged else [])  # once


async def test_the_version_is_the_same_when_it_is_read_from_the_inbox(world: World) -> None:
    draft = sending(saying(world, 1, ALIKE), "A2A-Version", "0.3")
    await world.receive(draft)
    await world.restart()
    [found] = await redriven(world)
    assert isinstance(found.update, TaskSnapshot)
    assert (found.update.origin, found.update.misstated) == (WireVersion.V0_3, None)


def test_verify_notification_prefers_it_too(world: World) -> None:
    draft = sending(saying(world, 1, ALIKE), "A2A-Version", "0.3")
    trust = load_trust(BASE_URL, [world.sender])
    found = verify_notification(draft.request(), trust, now=world.clock.now)
    assert found.update.origin is WireVersion.V0_3


# --- the generation of a task --------------------------------------------------------------------

GAPS = [
    pytest.param([1, 2, 3], [None] * 3, id="one after another"),
    pytest.param([5, 6], [None] * 2, id="the first one seen"),
    pytest.param([1, 1, 2], [None] * 3, id="two updates of one change"),
    pytest.param([1, 4, 5], [None, 1, None], id="gap"),
    pytest.param([8, 3, 4], [None, 8, None], id="restart"),
    pytest.param([1, None, 2], [None] * 3, id="none stated between"),
    pytest.param([1, 0, 3], [None, None, 1], id="zero is none"),
    pytest.param(["1", "3"], [None, 1], id="as ProtoJSON writes it"),
]


@pytest.mark.parametrize(("generations", "before"), GAPS)
async def test_a_generation_that_does_not_follow_is_reported(
    world_behind: World, generations: list[Any], before: list[int | None]
) -> None:
    world, called, gaps = world_behind, list[Notification](), list[Notification]()
    events: list[Event] = []
    world.receiver.events.add(events.append)
    assert world.receiver.metrics
    world.receiver.on_gap(name="gaps")(gaps.append)
    world.receiver.on_update(called.append)

    for number, generation in enumerate(generations, start=1):
        answer = await world.post(saying(world, number, changed(generation)))
        assert answer.status == 202
    await world.until_done(len(generations))

    assert [each.generation_before for each in called] == before
    assert gaps == [each for each in called if each.generation_before is not None]
    reported = emitted(events, GenerationGap)
    assert [(each.before, each.generation) for each in reported] == [
        (each.generation_before, each.generation) for each in gaps
    ]
    kinds = ["restart" if each.restarts else "gap" for each in reported]
    page = await read(world.receiver)
    for kind in ("gap", "restart"):
        counted = page.value("receiver_generation_gaps_total", sender="agent", kind=kind)
        assert (counted or 0) == kinds.count(kind)


async def test_a_late_update_is_no_restart(world: World) -> None:
    called: list[Notification] = []
    world.receiver.on_update(called.append)
    for number, generation in ((1, 1), (3, 3), (2, 2), (4, 4)):
        await world.receive(saying(world, number, changed(generation)))
    await world.until_done(4)
    assert [each.generation_before for each in called] == [None, 1, None, None]
    assert [each.late for each in called] == [False, False, True, False]


async def test_without_a_seq_a_lower_generation_is_late_and_1_a_restart(world: World) -> None:
    called: list[Notification] = []
    world.receiver.on_update(called.append)
    for number, generation in enumerate((2, 4, 3, 1, 2), start=1):
        draft = claiming(saying(world, number, changed(generation)), seq=None)
        await world.receive(draft)
    await world.until_done(5)
    assert [each.late for each in called] == [False, False, True, False, False]
    assert [each.generation_before for each in called] == [None, 2, None, 4, None]


async def test_a_gap_is_logged_once_an_hour_for_a_sender(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for number, generation in enumerate((1, 3, 5, 2), start=1):
        await world.receive(saying(world, number, changed(generation)))
    lines = [
        each.getMessage()
        for each in caplog.records
        if getattr(each, "code", "") == "generation_gap" and each.levelno == logging.WARNING
    ]
    said = "sender=agent task=task-1 id=delivery-task-1-{}: found generation {}; GetTask returns it"
    assert lines == [
        said.format(2, "3 after 1: changes between them did not arrive"),
        said.format(4, "2 after 5: the agent counts anew"),
    ]


async def test_gaps_are_found_across_a_restart_and_by_seq(world: World) -> None:
    await world.receive(saying(world, 1, changed(1)))
    await world.restart()
    gaps: list[Notification] = []
    world.receiver.on_gap(gaps.append)
    await world.receive(saying(world, 2, changed(3)))
    await world.receive(saying(world, 4, changed(4)))
    await world.receive(saying(world, 5, changed(5)))
    await eventually(lambda: len(gaps) == 2)
    assert [(each.missing, each.generation_before) for each in gaps] == [(0, 1), (1, None)]


async def test_the_inbox_lists_versions_and_gaps(world: World) -> None:
    for number, generation in ((1, 1), (2, 3), (5, 9), (4, 8)):
        await world.receive(saying(world, number, changed(generation)))
    found = await world.receiver.inbox.find(InboxFilter())
    assert {each.version for each in found} == {WireVersion.V1_0}
    assert [each.generation_before for each in found] == [None, 1, 3, None]
    assert [inbox_commands._gap(each) for each in found] == ["-", "generation", "-2", "late"]


async def test_forwards_state_generations(world: World) -> None:
    called: list[Notification] = []
    world.receiver.on_update(called.append)
    for number, generation in ((1, 1), (2, 3)):
        await world.receive(saying(world, number, changed(generation)))
    await world.until_done(2)
    facts = [_facts_of(each) for each in called]
    assert [each["generation"] for each in facts] == ["1", "3"]
    assert [each.get("generation-before") for each in facts] == [None, "1"]
