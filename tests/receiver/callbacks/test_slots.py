"""Slots are shared among senders."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pushkit.errors import StorageError
from receiver.accepting import Acceptance, Candidate
from receiver.callbacks.slots import CrowdedError, SharedSlots, Slot, new_shares
from tests.eventually import eventually

if TYPE_CHECKING:
    from pushkit.storage.script import Script
    from tests.receiver.conftest import World


def test_one_slot_goes_round() -> None:
    slots = SharedSlots(1, lambda: 3)
    served = []
    for _ in range(6):
        [(sender, number)] = slots.divide(["a", "b", "c"], 1, {})
        assert number == 1
        slots.hold([sender])
        slots.release(sender)
        served.append(sender)

    assert served == ["a", "b", "c", "a", "b", "c"]


def test_the_sender_that_holds_less_comes_first() -> None:
    slots = SharedSlots(8, lambda: 2)
    slots.hold(["a", "a", "a"])

    assert dict(slots.divide(["a", "b"], 4, {})) == {"b": 4}
    assert dict(slots.divide(["a", "b"], 4, {"b": 3})) == {"a": 2, "b": 2}


def test_one_of_several_senders_never_has_all_slots() -> None:
    slots = SharedSlots(8, lambda: 2)

    assert dict(slots.divide(["a"], 8, {})) == {"a": 6}
    slots.hold(["a"] * 6)
    assert slots.divide(["a"], 2, {}) == []
    assert slots.full() == {"a"}
    slots.release("a")
    assert slots.full() == set()


def test_the_only_sender_has_all_slots() -> None:
    assert dict(SharedSlots(8, lambda: 1).divide(["a"], 8, {})) == {"a": 8}


async def test_a_free_slot_goes_to_the_sender_that_has_least_and_waited_longest() -> None:
    slots, entered = SharedSlots(2, lambda: 2), []

    async def enter(sender: str) -> None:
        await slots.enter(sender)
        entered.append(sender)

    await slots.enter("a")  # one of several senders never has all slots
    waiting = [asyncio.create_task(enter(sender)) for sender in ("a", "b", "b")]
    await waiting[1]
    slots.leave("b", 0.0)
    await waiting[2]
    slots.leave("a", 0.0)
    await waiting[0]

    assert entered == ["b", "b", "a"]
    assert slots.free_slots == 0


async def test_a_wait_that_is_cancelled_takes_no_slot() -> None:
    slots = SharedSlots(1, lambda: 1)
    await slots.enter("a")
    waiting = [asyncio.create_task(slots.enter("a")) for _ in range(2)]
    await asyncio.sleep(0)

    waiting[0].cancel()
    slots.leave("a", 0.0)
    await waiting[1]

    assert waiting[0].cancelled()
    assert slots.free_slots == 0


async def test_more_is_held_than_there_are_slots_while_callbacks_are_quick() -> None:
    slots = SharedSlots(4, lambda: 1)
    assert slots.free == 4
    for _ in range(64):
        await slots.enter("a")
        slots.leave("a", 0.0)

    assert slots.free == 16


def test_unsettled_notifications_are_bounded() -> None:
    slots = SharedSlots(4, lambda: 1)
    slots.is_open = True
    assert slots.take_for_claim() == 4
    slots.give_back(4)
    assert slots.reserve(["a"]) == [True]

    slots.unsettled = 16

    assert slots.free == 0
    assert slots.reserve(["a"]) == [False]


def test_notifications_that_wait_for_a_claim_precede_those_stored_later() -> None:
    slots = SharedSlots(4, lambda: 1)
    slots.is_open = True
    slots.note_waiting()
    assert slots.reserve(["a"]) == [False]

    slots.give_back(slots.take_for_claim())

    assert slots.reserve(["a"]) == [True]


async def test_a_notification_whose_commit_failed_keeps_no_slot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start()
    slots, held = world.receiver.dispatcher.slots, []
    await eventually(lambda: slots.is_open and not slots.some_wait)
    before, write = slots.free, Acceptance._write_group

    def fail(
        self: Acceptance, candidates: Sequence[Candidate], /, *, wait: bool
    ) -> Script[list[object]]:
        yield from write(self, candidates, wait=wait)
        held.append(before - slots.free)
        raise StorageError("the commit failed")

    monkeypatch.setattr(Acceptance, "_write_group", fail)

    assert (await world.receive(world.draft())).code == "storage"
    assert set(held) == {1}
    assert slots.free == before


# --- shares of callbacks -------------------------------------------------------------------------


async def test_a_call_has_a_slot_of_each_of_its_shares_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("receiver.callbacks.slots._PATIENCE", 0)
    shares = new_shares()
    slow = Slot(shares, ("slow", 1))
    assert slow.take_now()
    both = Slot(shares, ("quick", 1), ("slow", 1))
    assert not both.take_now()
    with pytest.raises(CrowdedError):
        await both.take()
    slow.release()
    await both.take()
    both.release()
    assert Slot(shares, ("quick", 1), ("slow", 1)).take_now()
    both.release()  # does nothing: they are another call's

    for holder in ("quick", "slow"):
        with pytest.raises(CrowdedError):
            await Slot(shares, (holder, 1)).take()
