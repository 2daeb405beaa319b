"""Notifications are accepted and settled in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pushkit.storage.script import DEFERRED, Deferred, Script, Statement
from receiver.inbox.store import GroupItem, together


def accepting(names: Sequence[str], /, *, wait: bool) -> Script[list[str]]:
    yield Statement(f"accept, wait={wait}", tuple(names))
    return [f"{name} accepted" for name in names]


def settling(names: Sequence[str], /, *, wait: bool) -> Script[list[str | Deferred]]:
    yield Statement(f"settle, wait={wait}", tuple(names))
    return [DEFERRED if name == "held" else f"{name} settled" for name in names]


def test_settling_comes_first_in_a_shared_transaction() -> None:
    script = together(
        [
            GroupItem(accepting, "a"),
            GroupItem(settling, "b", is_first=True),
            GroupItem(accepting, "c"),
            GroupItem(settling, "held", is_first=True),
        ],
        wait=False,
    )

    assert next(script) == Statement("settle, wait=False", ("b", "held"))
    assert script.send([]) == Statement("accept, wait=False", ("a", "c"))
    with pytest.raises(StopIteration) as ended:
        script.send([])
    assert ended.value.value == ["a accepted", "b settled", "c accepted", DEFERRED]
