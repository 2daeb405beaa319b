"""The table of transitions: nothing else writes the state."""

from __future__ import annotations

import re
from pathlib import Path

import pushkit.outbox.states
from pushkit.outbox.states import (
    CANCELLED,
    CANCELLED_WITH_SUBSCRIPTION,
    CLAIMED,
    LOST,
    REDRIVEN,
    SETTLED,
    SUPERSEDED,
    DeliveryState,
    Outcome,
)
from tests.simulation.promises import TRANSITIONS

_WRITES = re.compile(r"UPDATE pushkit_deliveries(?:\"\s*\")?\s+SET[^=]*\bstate =")
_TABLE = Path(pushkit.outbox.states.__file__)


def test_nothing_but_the_table_writes_the_state_of_a_delivery() -> None:
    modules = _TABLE.parent.parent.rglob("*.py")
    assert [each for each in modules if _WRITES.search(each.read_text())] == [_TABLE]


def test_the_simulation_knows_the_same_transitions() -> None:
    moves = {
        (before.value, move.after.value)
        for move in (CLAIMED, LOST, CANCELLED_WITH_SUBSCRIPTION, CANCELLED, SUPERSEDED, REDRIVEN)
        for before in move.before
    }
    moves |= {(DeliveryState.IN_FLIGHT.value, after.value) for after in SETTLED.values()}
    seen = {
        (before, after)
        for before, after in TRANSITIONS["pushkit_deliveries"]
        if before and after and before != after
    }
    assert moves == seen


def test_every_outcome_has_a_state() -> None:
    assert set(SETTLED) == set(Outcome)
