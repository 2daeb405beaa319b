"""What the services of both packages set in their processes."""

from __future__ import annotations

import gc

from pushkit.terminal.processes import collect_rarely


def test_the_collector_looks_less_often_and_not_at_what_was_loaded() -> None:
    before = gc.get_threshold()
    try:
        collect_rarely()
        assert gc.get_threshold()[0] > before[0]
        assert gc.get_threshold()[1:] == before[1:]
        assert gc.get_freeze_count() > 0
        assert gc.isenabled()
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
