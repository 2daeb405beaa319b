"""Data parts that name a schema of the sender's card, as a callback gets them."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.errors import ConfigError
from pushkit.schemas import Fit
from receiver import Notification, TrustedSender
from tests.eventually import DEADLINE

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World

EXAMPLE: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "object-schemas-v1.json").read_text("utf-8")
)
TASK = EXAMPLE["task"]


async def called_back(world: World, task: dict[str, Any]) -> Notification:
    """Have a task accepted, and return what the callback got."""
    called: list[Notification] = []

    @world.receiver.on_update()
    async def note(notification: Notification) -> None:
        called.append(notification)

    draft = replace(world.draft(task_id=task["id"]), body=json.dumps(task).encode())
    assert (await world.receive(draft)).status == 202
    waited = await world.receiver.wait(task["id"], timeout=DEADLINE)
    await world.receiver.dispatcher.run_once()
    await world.receiver.close()
    assert [notification.data for notification in called] == [waited.data]
    return waited


async def test_data_that_fits_its_schema_is_said_to(world: World) -> None:
    world.sender = dataclasses.replace(world.sender, card=EXAMPLE["card"])
    notification = await called_back(world, TASK)
    [verdict] = notification.data
    assert (verdict.schema, verdict.fit) == ("fightResponse", Fit.VALID)


async def test_data_that_does_not_fit_is_handed_out_with_its_fault(world: World) -> None:
    world.sender = dataclasses.replace(world.sender, card=EXAMPLE["card"])
    task = json.loads(json.dumps(TASK))
    task["artifacts"][0]["parts"][0]["data"]["probability"] = "often"
    [verdict] = (await called_back(world, task)).data
    assert (verdict.fit, verdict.path) == (Fit.INVALID, "/probability")


async def test_without_a_card_nothing_is_said_of_data(world: World) -> None:
    assert (await called_back(world, TASK)).data == ()


def test_a_card_whose_schemas_are_unclear_is_a_wrong_setting(world: World) -> None:
    card = EXAMPLE["card"] | {"schemas": []}
    with pytest.raises(ConfigError, match="card: schemas: expected an object"):
        dataclasses.replace(world.sender, card=card)


def test_the_card_shows_in_no_repr(world: World) -> None:
    sender: TrustedSender = dataclasses.replace(world.sender, card=EXAMPLE["card"])
    assert "fightResponse" not in repr(sender)
