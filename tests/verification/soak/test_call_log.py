"""What the log of calls says of broken promises."""

from __future__ import annotations

import pytest

from tests.verification.soak.call_log import CallLog

DONE = ("BEGIN 1 first task 1 a", "END 1 first task 1 a")
ELSE = ("BEGIN 1 second task 1 a", "END 1 second task 1 a")


def read(*lines: str, killed: int | None = None) -> CallLog:
    log = CallLog()
    if killed is not None:
        log.kill(killed)
    for line in lines:
        log.read(line)
    return log


def test_one_call_of_each_callback_keeps_every_promise() -> None:
    log = read("START 1 dispatcher", *DONE, *ELSE)

    assert log.dispatchers == {1: "dispatcher"}
    assert log.missing({"task": 1}) == 0
    assert (log.overtaken, log.overlapping, log.called_again, log.unexplained) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(DONE, id="one-callback-never-called"),
        pytest.param((*DONE, ELSE[0]), id="one-callback-never-ended"),
    ],
)
def test_a_lost_call_is_seen(lines: tuple[str, ...]) -> None:
    assert read(*lines).missing({"task": 1}) == 1


def test_a_call_that_is_made_twice_is_seen() -> None:
    log = read(*DONE, *DONE)

    assert (log.called_again, log.again_after_end, log.unexplained) == (1, 1, 1)


@pytest.mark.parametrize(
    ("held", "unexplained"),
    [
        pytest.param({"a": ()}, 0, id="in-hand"),
        pytest.param({"a": ("first",)}, 1, id="in-hand-of-another-callback"),
        pytest.param({"b": ()}, 1, id="another-in-hand"),
    ],
)
def test_only_what_was_in_hand_at_the_kill_may_be_called_again(
    held: dict[str, tuple[str, ...]], unexplained: int
) -> None:
    log = read(DONE[0])
    log.kill(1)
    log.count_broken_off(1)
    log.excuse(held)
    log.read("BEGIN 2 first task 1 a")

    assert (log.broken_off, log.called_again, log.unexplained) == (1, 1, unexplained)
    assert log.overlapping == 0


@pytest.mark.parametrize("numbers", [(2, 1), (1, 3), (1, 2, 1), (2,)])
def test_an_update_out_of_order_is_seen(numbers: tuple[int, ...]) -> None:
    lines = [f"{what} 1 first task {n} {n}" for n in numbers for what in ("BEGIN", "END")]

    assert read(*lines).overtaken > 0


def test_two_calls_of_a_task_at_once_are_seen() -> None:
    lines = (DONE[0], "BEGIN 2 first task 2 b")

    assert read(*lines).overlapping == 1
    assert read(*lines, killed=1).overlapping == 0


def test_what_a_restored_inbox_does_not_know_has_to_be_called_again() -> None:
    log = read(*DONE, *ELSE, "BEGIN 1 first task 2 b", "END 1 first task 2 b")
    log.lose({("first", "a"), ("second", "a")})

    assert log.missing({"task": 1}) == 0
    assert log.missing({"task": 2}) == 2

    log.read("BEGIN 2 first task 2 b")
    assert (log.unexplained, log.overtaken) == (0, 0)

    log.read("BEGIN 2 first task 1 a")
    assert (log.unexplained, log.overtaken) == (1, 1)


def test_what_was_broken_before_an_inbox_was_lost_is_still_seen() -> None:
    log = read(*DONE, *DONE, "BEGIN 1 first task 3 c")
    log.lose(set())

    assert (log.unexplained, log.overtaken) == (1, 1)


def test_only_late_updates_may_be_overtaken_after_a_loss() -> None:
    log = read(*DONE)
    log.lose(set())
    for number, late in ((4, ""), (1, "late"), (2, "late"), (5, "")):
        log.read(f"BEGIN 2 first task {number} {number} {late}")
    assert (log.late, log.overtaken) == (2, 0)

    log.read("BEGIN 2 first task 3 3")
    assert log.overtaken == 1
