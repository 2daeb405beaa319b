"""Permits are shared among senders, and the calls that run at once among callbacks."""

from __future__ import annotations

import asyncio

import pytest

from receiver import Notification
from receiver.callbacks.shares import CrowdedError, Slot, new_shares, share_of
from tests.eventually import eventually
from tests.unit.receiver.callbacks.conftest import House, running

# --- of senders ----------------------------------------------------------------------------------


class Hanging:
    """A callback that does not end with what one sender sent."""

    def __init__(self, house: House, sender: str) -> None:
        self.inside: list[str] = []
        self.called: list[str] = []
        self._sender = sender
        house.registry.add(self.call_back, name="hanging")

    async def call_back(self, notification: Notification) -> None:
        task = f"{notification.sender}:{notification.task_id}"
        if notification.sender != self._sender:
            self.called.append(task)
            return
        self.inside.append(task)
        await asyncio.Event().wait()


async def test_the_only_sender_has_all_permits(house: House) -> None:
    hanging = Hanging(house, "slow")
    for number in range(12):
        await house.store(1, f"task-{number}", sender="slow")
    async with running(house.another_dispatcher(8, timeout=None, senders=1)) as dispatcher:
        await eventually(lambda: dispatcher.usage() == (8, 8))

    assert len(hanging.inside) == 8


@pytest.mark.parametrize("permits", [2, 3, 8])
async def test_a_sender_whose_backlog_hangs_does_not_keep_others_from_being_claimed(
    house: House, permits: int
) -> None:
    hanging = Hanging(house, "slow")
    for number in range(6 * permits):
        await house.store(1, f"task-{number}", sender="slow")
    async with running(house.another_dispatcher(permits, timeout=None, senders=2)) as dispatcher:
        await eventually(lambda: len(hanging.inside) == share_of(permits, alone=False))
        for number in range(40):
            await house.store(1, f"task-{number}", sender="quick")
        dispatcher.wake()
        await eventually(lambda: len(hanging.called) == 40)


# --- of callbacks --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "share"), [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (64, 48)], ids=str
)
def test_one_of_several_has_three_quarters_and_leaves_at_least_one(slots: int, share: int) -> None:
    assert share_of(slots, alone=False) == share
    assert share_of(slots, alone=True) == slots


async def test_a_call_has_a_slot_of_each_of_its_shares_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("receiver.callbacks.shares._PATIENCE", 0)
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


async def test_a_released_slot_goes_to_the_call_that_waits_longest() -> None:
    shares, order = new_shares(), list[str]()
    taken = Slot(shares, ("callback", 1))
    assert taken.take_now()

    async def wait(name: str) -> None:
        slot = Slot(shares, ("callback", 1))
        await slot.take()
        order.append(name)
        slot.release()

    waiting = [asyncio.create_task(wait(name)) for name in ("first", "second")]
    await asyncio.sleep(0)
    taken.release()
    await asyncio.gather(*waiting)
    assert order == ["first", "second"]


async def test_a_wait_that_is_cancelled_takes_no_slot() -> None:
    shares = new_shares()
    taken, slot = Slot(shares, ("callback", 1)), Slot(shares, ("callback", 1))
    assert taken.take_now()
    waiting = asyncio.create_task(slot.take())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    taken.release()
    assert Slot(shares, ("callback", 1)).take_now()
