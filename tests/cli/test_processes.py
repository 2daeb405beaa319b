"""Several processes of one service: when one that died is started again."""

from __future__ import annotations

from datetime import timedelta

from pushkit.terminal.processes import next_pause

SECOND = timedelta(seconds=1)


def test_one_that_keeps_dying_is_started_again_at_growing_intervals() -> None:
    pauses = [SECOND]
    while len(pauses) < 7:
        pauses.append(next_pause(pauses[-1], SECOND / 2, first=SECOND))

    assert [pause / SECOND for pause in pauses] == [1, 2, 4, 8, 16, 30, 30]


def test_one_that_lived_for_long_is_started_again_soon() -> None:
    assert next_pause(30 * SECOND, 30 * SECOND, first=SECOND) == SECOND
