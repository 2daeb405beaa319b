"""The rule by which free slots are shared out, without a database."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.outbox.shares import Head, InFlight, RecentUse, SlotLimits, share_out

NOW = 1_000
ANY = 10**6


def head(
    number: int, owner: str = "alice", origin: str = "one", *, until: int = 0, failures: int = 0
) -> Head:
    """Return a head that has been due since `number`."""
    return Head(f"{owner} {origin} {number}", ("", owner, origin), number, until, failures)


def limits(
    slots: int, per_origin: int = ANY, probation_from: int = ANY, *, reserved: int = 0
) -> SlotLimits:
    return SlotLimits(
        slots=slots, reserved=reserved, per_origin=per_origin, probation_from=probation_from
    )


def owners(chosen: list[Head]) -> list[str]:
    return [each.destination[1] for each in chosen]


def test_owners_take_turns_and_each_ones_oldest_goes_first() -> None:
    heads = [head(n, "alice") for n in range(10)] + [head(n, "bob") for n in range(20, 23)]
    chosen = share_out(heads, InFlight(), limits(6), NOW)
    assert [each.id for each in chosen] == [
        "alice one 0",
        "bob one 20",
        "alice one 1",
        "bob one 21",
        "alice one 2",
        "bob one 22",
    ]


def test_the_owner_that_holds_the_fewest_slots_comes_first() -> None:
    in_flight = InFlight()
    in_flight.add(("", "alice", "slow"), 5)
    heads = [head(n, "alice") for n in range(5)] + [head(n, "bob") for n in range(10, 15)]
    assert owners(share_out(heads, in_flight, limits(4), NOW)) == ["bob"] * 3


def turns(use: RecentUse, *held_by: str) -> str:
    """Return the order in which owners get a slot; `held_by` hold one already."""
    in_flight = InFlight()
    for owner in held_by:
        in_flight.add(("", owner, "one"))
    heads = [head(n, owner) for n, owner in enumerate("abcd")]
    return "".join(owners(share_out(heads, in_flight, limits(16), NOW, used=use.of)))


def test_owners_with_equally_many_slots_are_ordered_by_recent_use() -> None:
    use = RecentUse()
    for owner, seconds in (("a", 1.0), ("b", 0.005), ("c", 0.4), ("c", 0.4)):
        use.note(("", owner), seconds, now=100.0)
    assert turns(use) == "dbca"
    assert turns(use, "d") == "bcad"
    for _ in range(300):
        use.note(("", "b"), 0.005, now=100.0)
    assert turns(use) == "dcab"


def test_recent_use_decays() -> None:
    use = RecentUse()
    for owner, seconds in (("a", 1.0), ("b", 0.1), ("c", 3600.0), ("d", 2.0)):
        use.note(("", owner), seconds, now=100.0)
    assert turns(use) == "bacd"  # an hour counts no more than the half-life
    use.note(("", "b"), 0.3, now=104.0)
    assert turns(use) == "abcd"
    use.note(("", "a"), 0.3, now=106.0)
    assert turns(use) == "bcda"


def test_the_owner_without_a_slot_for_longest_is_forgotten_first() -> None:
    use = RecentUse(most=2)
    for owner in "adab":
        use.note(("", owner), 1.0, now=100.0)
    assert turns(use) == "cdba"


@pytest.mark.parametrize(
    ("slots", "taken"),
    [(1, 1), (2, 2), (3, 3), (4, 3), (8, 6), (16, 12), (256, 192)],
)
def test_one_owner_leaves_a_quarter_of_the_slots(slots: int, taken: int) -> None:
    heads = [head(n) for n in range(1000)]
    assert len(share_out(heads, InFlight(), limits(slots), NOW)) == taken


def test_a_second_greedy_owner_leaves_slots_to_the_third() -> None:
    in_flight = InFlight()
    first = share_out([head(n, "alice") for n in range(500)], in_flight, limits(256), NOW)
    left = 256 - len(first)
    second = share_out([head(n, "bob") for n in range(500)], in_flight, limits(left), NOW)
    left -= len(second)
    third = share_out([head(n, "carol") for n in range(500)], in_flight, limits(left), NOW)
    assert (len(first), len(second), len(third)) == (192, 48, 12)


def test_the_reserved_slots_go_to_owners_that_hold_none_one_each() -> None:
    in_flight = InFlight()
    heads = [head(n, owner, owner) for owner in ("alice", "bob", "carol") for n in range(50)]
    chosen = share_out(heads, in_flight, limits(16, reserved=2), NOW)
    assert Counter(owners(chosen)) == {"alice": 5, "bob": 5, "carol": 4}
    assert share_out(heads, in_flight, limits(2, reserved=2), NOW) == []
    late = [*heads, *(head(n, "dave", "dave") for n in range(90, 95))]
    assert owners(share_out(late, in_flight, limits(2, reserved=2), NOW)) == ["dave"]


def test_slots_of_other_workers_do_not_count_against_an_owner() -> None:
    in_flight = InFlight()
    in_flight.add(("", "alice", "slow"), 1000, is_mine=False)
    assert len(share_out([head(n) for n in range(10)], in_flight, limits(4), NOW)) == 3


def test_the_limit_of_an_origin_counts_all_owners_and_workers() -> None:
    in_flight = InFlight()
    in_flight.add(("", "carol", "one"), 2, is_mine=False)
    heads = [head(n, owner) for owner in ("alice", "bob") for n in range(5)]
    chosen = share_out(heads, in_flight, limits(100, per_origin=4), NOW)
    assert sorted(owners(chosen)) == ["alice", "bob"]


def test_an_owner_whose_first_origin_is_full_gets_slots_for_another() -> None:
    heads = [head(n) for n in range(5)] + [head(9, origin="two")]
    chosen = share_out(heads, InFlight(), limits(100, per_origin=2), NOW)
    assert [each.id for each in chosen] == ["alice one 0", "alice one 1", "alice two 9"]


@pytest.mark.parametrize(("until", "chosen"), [(NOW - 1, 3), (NOW, 3), (NOW + 1, 0)])
def test_a_destination_that_waits_gets_nothing(until: int, chosen: int) -> None:
    heads = [head(n, until=until) for n in range(3)]
    assert len(share_out(heads, InFlight(), limits(100), NOW)) == chosen


@pytest.mark.parametrize(("failures", "chosen"), [(4, 3), (5, 1), (6, 1)])
def test_a_destination_that_failed_too_often_gets_one(failures: int, chosen: int) -> None:
    heads = [head(n, failures=failures) for n in range(3)]
    assert len(share_out(heads, InFlight(), limits(100, probation_from=5), NOW)) == chosen
    probed = InFlight()
    probed.add(("", "alice", "one"), is_mine=False)
    left = share_out(heads, probed, limits(100, probation_from=5), NOW)
    assert len(left) == (0 if failures >= 5 else chosen)


@given(
    heads=st.lists(st.tuples(st.integers(0, 50), st.sampled_from("abcd"), st.sampled_from("xyz"))),
    slots=st.integers(1, 20),
    per_origin=st.integers(1, 5),
)
def test_no_slot_stays_empty_that_an_owner_may_have(
    heads: list[tuple[int, str, str]], slots: int, per_origin: int
) -> None:
    due = [head(*each) for each in dict.fromkeys(heads)]
    chosen = share_out(due, InFlight(), limits(slots, per_origin), NOW)
    assert len(set(chosen)) == len(chosen) <= slots
    at = Counter(each.destination[2] for each in chosen)
    held = Counter(owners(chosen))
    assert all(number <= per_origin for number in at.values())
    for each in set(due) - set(chosen):
        _, owner, origin = each.destination
        is_full = at[origin] == per_origin
        assert is_full or held[owner] >= 3 * (slots - len(chosen))
