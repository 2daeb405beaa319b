"""Permits: bounded, never lost, shared out fairly by owner and by queue."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.queue.rules import GroupKey
from pushkit.queue.scheduler import Scheduler

PERMITS, PER_ORIGIN = 9, 3


@dataclass(frozen=True)
class Line:
    owner: str
    origin: str
    number: int = 0

    @property
    def group(self) -> GroupKey:
        return ("", self.owner, self.origin)


def drawn(scheduler: Scheduler[Line]) -> list[Line]:
    """Take all permits that can be had."""
    return list(iter(scheduler.next, None))


class Rate:
    """A rate of origins, which the test lets run out and come back."""

    def __init__(self) -> None:
        self.used_up = set[str]()

    def take(self, origin: str) -> float:
        return float(origin in self.used_up)


@given(st.data())
def test_permits_are_bounded_and_come_back_and_every_queue_is_served(data: st.DataObject) -> None:
    rate = Rate()
    scheduler: Scheduler[Line] = Scheduler(PERMITS, per_origin=PER_ORIGIN, take_turn=rate.take)
    waiting, running, numbers = set[Line](), list[Line](), itertools.count()

    def take() -> None:
        for line in drawn(scheduler):
            waiting.remove(line)
            running.append(line)
        assert scheduler.free == PERMITS - len(running) >= 0
        at, of = Counter(each.origin for each in running), Counter(each.owner for each in running)
        assert max(at.values(), default=0) <= PER_ORIGIN
        # Nobody who has none waits for a permit that is free.
        assert not scheduler.free or not [
            each
            for each in waiting
            if not of[each.owner]
            and at[each.origin] < PER_ORIGIN
            and each.origin not in scheduler.waits
        ]

    def give_back(place: int) -> None:
        scheduler.done(running.pop(place), 1.0, float(next(numbers)))

    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["add", "add", "take", "done", "rate", "end"])):
            case "add":
                owner, origin = data.draw(
                    st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz"))
                )
                waiting.add(line := Line(owner, origin, next(numbers)))
                scheduler.add(line)
            case "take":
                take()
            case "done" if running:
                give_back(data.draw(st.integers(0, len(running) - 1)))
            case "rate":
                rate.used_up.add(data.draw(st.sampled_from("xyz")))
            case "end" if rate.used_up:
                rate.used_up.discard(origin := min(rate.used_up))
                scheduler.end_wait(origin)
            case _:
                pass
    rate.used_up.clear()
    for origin in "xyz":
        scheduler.end_wait(origin)
    take()
    while running:
        give_back(0)
        take()
    assert not waiting
    assert not scheduler.has_waiting
    assert scheduler.free == PERMITS


def test_queues_of_an_owner_take_turns_and_origins_too() -> None:
    scheduler: Scheduler[Line] = Scheduler(1, per_origin=1)
    lines = [Line("a", origin, number) for number in range(2) for origin in "xy"]
    served = list[Line]()
    for line in (*lines, *lines):
        scheduler.add(line)
    for moment in range(8):
        [line] = drawn(scheduler)
        served.append(line)
        scheduler.done(line, 1.0, moment)
    assert served[:4] == lines
    assert served[4:] == lines


@pytest.mark.parametrize("others", [1, 50], ids=["one owner", "50 owners"])
def test_an_owner_who_used_little_comes_before_those_with_a_backlog(others: int) -> None:
    scheduler: Scheduler[Line] = Scheduler(8, per_origin=8)
    for number in range(40 * others):
        scheduler.add(Line(f"busy {number % others}", "x", number))
    running = drawn(scheduler)
    for moment in range(2 * others):
        scheduler.done(running.pop(0), 1.0, moment)
        running += drawn(scheduler)
    scheduler.add(fresh := Line("fresh", "x"))
    for moment in range(2 * others, 2 * others + 2):
        scheduler.done(running.pop(0), 1.0, moment)
        running += drawn(scheduler)
    assert fresh in running


@pytest.mark.parametrize("permits", range(2, 65))
def test_one_of_several_owners_never_has_all_permits(permits: int) -> None:
    scheduler: Scheduler[Line] = Scheduler(permits, per_origin=permits)
    for number in range(permits):
        scheduler.add(Line("a", "x", number))
    assert len(drawn(scheduler)) == permits - max(permits // 4, 1)
    scheduler.add(other := Line("b", "x"))
    assert drawn(scheduler) == [other]


@pytest.mark.parametrize("permits", [1, 2, 3, 8])
def test_the_only_owner_has_all_permits(permits: int) -> None:
    is_alone = True
    scheduler: Scheduler[Line] = Scheduler(permits, per_origin=permits, is_alone=lambda: is_alone)
    lines = [Line("a", "x", number) for number in range(2 * permits)]
    for line in lines:
        scheduler.add(line)
    assert drawn(scheduler) == lines[:permits]
    is_alone = False  # another one is trusted from now on
    scheduler.done(lines[0], 1.0, 1.0)
    assert (drawn(scheduler) == []) is (permits > 1)


def test_a_single_permit_goes_round_among_owners() -> None:
    scheduler: Scheduler[Line] = Scheduler(1, per_origin=1)
    for number in range(2):
        for owner in "abc":
            scheduler.add(Line(owner, "x", number))
    served = []
    for moment in range(6):
        [line] = drawn(scheduler)
        served.append(line.owner)
        scheduler.done(line, 1.0, moment)
    assert served == ["a", "b", "c", "a", "b", "c"]


def test_the_owner_that_holds_fewest_permits_comes_first() -> None:
    scheduler: Scheduler[Line] = Scheduler(8, per_origin=8)
    for number in range(3):
        scheduler.add(Line("a", "x", number))
    assert len(drawn(scheduler)) == 3
    for number in range(8):
        scheduler.add(Line("a", "x", 10 + number))
        scheduler.add(Line("b", "x", number))
    assert [line.owner for line in drawn(scheduler)][:3] == ["b", "b", "b"]


def test_a_permit_of_an_origin_goes_to_who_holds_none_before_who_has_his_share() -> None:
    scheduler: Scheduler[Line] = Scheduler(16, per_origin=4)
    first = [Line("b", "z", number) for number in range(4)]
    for line in first:
        scheduler.add(line)
    assert drawn(scheduler) == first
    scheduler.add(Line("a", "z"))
    scheduler.add(Line("c", "z"))
    assert not drawn(scheduler)
    for number in range(12):
        scheduler.add(Line("a", "uvw"[number % 3], number))
    for number in range(4):
        scheduler.add(Line(f"d {number}", "y"))
    drawn(scheduler)
    scheduler.done(first[0], 1.0, 1.0)
    assert [line.owner for line in drawn(scheduler)] == ["c"]


def test_a_turn_ends_only_for_an_owner_that_can_have_the_permit() -> None:
    scheduler: Scheduler[Line] = Scheduler(4, per_origin=1)
    scheduler.add(mine := Line("a", "x"))
    scheduler.add(Line("b", "y"))
    scheduler.add(Line("c", "y"))
    scheduler.add(Line("a", "x", 2))
    assert len(drawn(scheduler)) == 2
    assert not scheduler.comes_before(mine)  # c waits for another origin
    scheduler.add(Line("d", "x"))
    drawn(scheduler)
    assert scheduler.comes_before(mine)


def test_an_endless_backlog_needs_no_more_memory() -> None:
    scheduler: Scheduler[Line] = Scheduler(4, per_origin=2)
    lines = [
        Line(owner, origin, number) for owner in "ab" for origin in "xy" for number in range(3)
    ]
    for line in lines:
        scheduler.add(line)
    running = drawn(scheduler)

    def turns(number: int) -> int:
        for moment in range(number):
            line = running.pop(0)
            scheduler.add(line)
            scheduler.done(line, 0.1, moment)
            running.extend(drawn(scheduler))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = turns(1000)
        assert turns(5000) - before < 20_000
    finally:
        tracemalloc.stop()
