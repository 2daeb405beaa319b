"""Whose turn it is, among senders."""

from __future__ import annotations

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
