"""Each check of what comes back after a loss detects a broken promise, by a handwritten history."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.verification.simulation.cases import Case
from tests.verification.simulation.losses import Losses

_ASKED: dict[str, Any] = {"taskId": "task", "id": "sub", "fromSeq": 1}


class LossCase(Case):
    """A receiver with two notifications, whose inbox is set back to before them."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = Losses(
            self.world, {}, {}, self.outbox, self.promises, most=3, hurries=lambda: None
        )
        self.losses.do_backup("recv0")
        self.calls = [self._deliver(seq, name) for seq, name in enumerate(("one", "two"), 1)]
        self.losses.do_lose("recv0", 0.1)
        self.whom = self.losses.whom("recv0", "owner")

    def _deliver(self, seq: int, name: str) -> Any:
        self.store(name, seq=seq, state="delivered", origin="https://recv0.example.com:443")
        self.accept(name, place=seq)
        call = self.call(name)
        call.ended = self.world.loop.time()
        self.inbox.select("UPDATE pushkit_inbox SET state = 'done'")
        return call

    def call(self, name: str) -> Any:
        """Call back both callbacks; return the call of the first one."""
        call = self.call_back(name)
        call.ended = self.world.loop.time()
        self.promises.calls["recv0", "audit", name] = self.promises.calls["recv0", "client", name]
        return call

    def send_again(self, *seqs: int) -> None:
        """Let an agent answer that it sends these again."""
        before = self.losses.kept(self.whom, _ASKED)
        self.losses.sent_again(self.whom, _ASKED, before, {"seqs": [*seqs]})
        self.outbox.select("UPDATE pushkit_deliveries SET redrives = redrives + 1")

    def come_back(self, *names: str) -> None:
        """Let notifications be accepted, and called back, one after another."""
        for place, name in enumerate(names, 1):
            self.accept(name, place=place)
            self.call(name)
            self.inbox.select("UPDATE pushkit_inbox SET state = 'done'")


@pytest.fixture
def case() -> Iterator[LossCase]:
    case = LossCase()
    yield case
    case.close()


def _one_is_missing(case: LossCase) -> None:
    case.send_again(1, 2)
    case.come_back("one")


def _not_called(case: LossCase) -> None:
    case.send_again(1)
    case.accept("one")
    case.inbox.select("UPDATE pushkit_inbox SET state = 'done'")


def _out_of_order(case: LossCase) -> None:
    case.send_again(1, 2)
    case.come_back("two", "one")


def _too_many(case: LossCase) -> None:
    case.send_again(1, 2)
    case.send_again(1, 2)
    case.come_back("one", "two")


def _never_answered(case: LossCase) -> None:
    case.losses._asking = 1


def _called_twice(case: LossCase) -> None:
    case.send_again(1)
    case.come_back("one")
    case.call_back("one")


@pytest.mark.parametrize(
    ("history", "seen"),
    [
        pytest.param(_one_is_missing, "not in the inbox of recv0: two", id="missing"),
        pytest.param(_not_called, "recovered, but not called back: one", id="not called back"),
        pytest.param(_out_of_order, "recovered two before one", id="out of order"),
        pytest.param(_too_many, "4 notifications of owner, expected 3", id="too many in a day"),
        pytest.param(_never_answered, "not answered: 1 clients still ask", id="never answered"),
        pytest.param(_called_twice, "called back twice: one", id="called back twice"),
    ],
)
def test_a_broken_promise_is_seen(
    case: LossCase, history: Callable[[LossCase], None], seen: str
) -> None:
    history(case)
    case.losses.check_end()

    assert any(seen in violation for violation in case.world.violations)


def test_what_was_accepted_before_the_answer_has_no_order(case: LossCase) -> None:
    case.accept("two")
    case.pass_time(1)
    case.send_again(1, 2)
    case.call("two")
    case.accept("one", place=2)
    case.call("one")
    case.inbox.select("UPDATE pushkit_inbox SET state = 'done'")
    case.losses.check_end()
    assert not any("recovered" in violation for violation in case.world.violations)


def test_what_comes_back_in_order_is_right(case: LossCase) -> None:
    case.send_again(1, 2)
    case.come_back("one", "two")
    case.inbox.select("UPDATE pushkit_inbox_queues SET lease_worker = NULL, sending_to = 0")
    case.losses.check_end()
    case.check_end()

    assert case.world.violations == []
    assert [each.is_forgotten for each in case.calls] == [True, True]


def test_what_nobody_asked_for_need_not_come_back(case: LossCase) -> None:
    case.losses.check_end()
    case.check_end()

    assert case.world.violations == []


def test_an_inbox_that_is_lost_again_owes_nothing(case: LossCase) -> None:
    case.send_again(1, 2)
    case.losses.do_lose("recv0", 0.1)
    case.losses.check_end()

    assert case.world.violations == []
