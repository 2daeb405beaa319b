"""Pages of operators find rare rows by an index, as SQLite plans their statements."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

import pytest

from pushkit.outbox.inspection import DELIVERIES, DeliveryFilter
from pushkit.outbox.schema import open_outbox
from pushkit.outbox.states import DeliveryState
from pushkit.storage.database import opened
from pushkit.storage.migrations import Access


@pytest.mark.parametrize(
    ("wanted", "found_by"),
    [
        pytest.param(
            DeliveryFilter(subscription_id="sub_1"), "deliveries_seq (subscription_id=?", id="own"
        ),
        pytest.param(
            DeliveryFilter(task_id="task-1", tenant="", state=DeliveryState.DEAD),
            "deliveries_key (tenant=? AND task_id=?",
            id="task",
        ),
        pytest.param(
            DeliveryFilter(error="gone", owner="alice"),
            "deliveries_error (last_error=? AND id<?",
            id="error",
        ),
        pytest.param(DeliveryFilter(state=DeliveryState.DEAD), "deliveries_dead (id<?", id="dead"),
        pytest.param(DeliveryFilter(state=DeliveryState.PENDING), "deliveries_pending", id="few"),
        pytest.param(DeliveryFilter(owner="alice"), "pushkit_deliveries_1 (id<?", id="others"),
    ],
)
async def test_a_page_of_deliveries_is_found_by_the_index_of_its_filter(
    tmp_path: Path, wanted: DeliveryFilter, found_by: str
) -> None:
    async with opened(open_outbox(tmp_path / "outbox.db"), Access.UPGRADE):
        pass
    connection = sqlite3.connect(tmp_path / "outbox.db")
    before = "9:dlv_9" if wanted.subscription_id or wanted.task_id else "dlv_9"
    script = DELIVERIES.browse(wanted, before=before, limit=5)
    statement, first_steps = next(script), list[str]()
    with contextlib.suppress(StopIteration):
        while True:
            sql = re.sub(r"\$(\d+)", r"?\1", statement.sql)
            plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", statement.parameters)
            first_steps.append(next(step for *_, step in plan if "pushkit" in step))
            statement = script.send([{"found": 3}] if "COUNT" in sql else [])
    connection.close()
    assert len(first_steps) > 1
    assert [step for step in first_steps if found_by not in step] == []
