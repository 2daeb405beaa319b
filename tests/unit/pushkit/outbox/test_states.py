"""The table of transitions: nothing else writes the state."""

from __future__ import annotations

import re
from pathlib import Path

import pushkit.outbox.states
from pushkit.outbox.states import SETTLED, Outcome

_WRITES = re.compile(r"UPDATE pushkit_deliveries(?:\"\s*\")?\s+SET[^=]*\bstate =")
_TABLE = Path(pushkit.outbox.states.__file__)


def test_nothing_but_the_table_writes_the_state_of_a_delivery() -> None:
    modules = _TABLE.parent.parent.rglob("*.py")
    assert [each for each in modules if _WRITES.search(each.read_text())] == [_TABLE]


def test_every_outcome_has_a_state() -> None:
    assert set(SETTLED) == set(Outcome)
