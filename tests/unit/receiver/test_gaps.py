"""What an inbox lacks, on SQLite and PostgreSQL."""

from __future__ import annotations

import pytest

from receiver.admin import InboxAdmin, open_inbox
from receiver.inbox.inspection import InboxGap
from tests.clock import START
from tests.unit.receiver import storing


@pytest.mark.parametrize("config_id", ["c", None])
async def test_gaps_and_the_end_of_each_task_are_listed(
    location: str, config_id: str | None
) -> None:
    database = open_inbox(location)
    await database.open()
    arrived = [("task-1", 1), ("task-1", 5), ("task-1", 3), ("task-2", 3), ("task-3", None)]
    for task_id, seq in arrived:
        await database.write(
            storing.store(task_id, seq, body=b"{}", now=START, config_id=config_id)
        )
    admin, config = InboxAdmin(database), config_id or ""

    found = await admin.gaps("agent")
    task_1 = [InboxGap("task-1", config, 2, 4), InboxGap("task-1", config, 6, None)]
    assert found == [*task_1, InboxGap("task-2", config, 1, 2), InboxGap("task-2", config, 4, None)]
    assert await admin.gaps("agent", task_id="task-1") == task_1

    for seq in (2, 4):
        await database.write(
            storing.store("task-1", seq, body=b"{}", now=START, config_id=config_id)
        )
    assert await admin.gaps("agent", task_id="task-1") == task_1[1:]
    await database.close()
