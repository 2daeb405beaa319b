"""Whose turn it is, among senders."""

from __future__ import annotations

import asyncio

from receiver.callbacks.turns import Turns


def test_one_place_goes_round() -> None:
    turns = Turns(1, lambda: 3)
    served = []
    for _ in range(6):
        [(sender, number)] = turns.divide(["a", "b", "c"], 1, {})
        assert number == 1
        turns.begin([sender])
        turns.end(sender)
        served.append(sender)

    assert served == ["a", "b", "c", "a", "b", "c"]


def test_who_has_less_in_hand_comes_first() -> None:
    turns = Turns(8, lambda: 2)
    turns.begin(["a", "a", "a"])

    assert dict(turns.divide(["a", "b"], 4, {})) == {"b": 4}
    assert dict(turns.divide(["a", "b"], 4, {"b": 3})) == {"a": 2, "b": 2}


def test_one_of_several_senders_never_has_all_places() -> None:
    turns = Turns(8, lambda: 2)

    assert dict(turns.divide(["a"], 8, {})) == {"a": 6}
    turns.begin(["a"] * 6)
    assert turns.divide(["a"], 2, {}) == []
    assert turns.full() == {"a"}
    turns.end("a")
    assert turns.full() == set()


def test_the_only_sender_has_all_places() -> None:
    assert dict(Turns(8, lambda: 1).divide(["a"], 8, {})) == {"a": 8}


async def test_a_place_that_is_left_goes_to_who_has_least_and_waited_longest() -> None:
    turns, entered = Turns(2, lambda: 2), []

    async def enter(sender: str) -> None:
        await turns.enter(sender)
        entered.append(sender)

    await turns.enter("a")  # of several senders nobody has all places
    waiting = [asyncio.create_task(enter(sender)) for sender in ("a", "b", "b")]
    await waiting[1]
    turns.leave("b", 0.0)
    await waiting[2]
    turns.leave("a", 0.0)
    await waiting[0]

    assert entered == ["b", "b", "a"]
    assert turns.free_places == 0


async def test_who_is_cancelled_while_it_waits_takes_no_place() -> None:
    turns = Turns(1, lambda: 1)
    await turns.enter("a")
    waiting = [asyncio.create_task(turns.enter("a")) for _ in range(2)]
    await asyncio.sleep(0)

    waiting[0].cancel()
    turns.leave("a", 0.0)
    await waiting[1]

    assert waiting[0].cancelled()
    assert turns.free_places == 0


async def test_more_is_in_hand_than_there_are_places_where_callbacks_are_quick() -> None:
    turns = Turns(4, lambda: 1)
    assert turns.free == 4
    for _ in range(64):
        await turns.enter("a")
        turns.leave("a", 0.0)

    assert turns.free == 16


def test_what_is_not_settled_is_bounded() -> None:
    turns = Turns(4, lambda: 1)
    turns.is_open = True
    assert turns.take_for_claim() == 4
    turns.give_back(4)
    assert turns.reserve(["a"]) == [True]

    turns.unsettled = 16

    assert turns.free == 0
    assert turns.reserve(["a"]) == [False]


def test_what_waits_for_a_claim_comes_before_what_is_stored_later() -> None:
    turns = Turns(4, lambda: 1)
    turns.is_open = True
    turns.let_wait()
    assert turns.reserve(["a"]) == [False]

    turns.give_back(turns.take_for_claim())

    assert turns.reserve(["a"]) == [True]
