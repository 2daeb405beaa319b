from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from pushkit.clock import utc_now
from pushkit.storage.paging import in_batches
from pushkit.storage.script import Script
from pushkit.storage.sqlite import SqliteDatabase
from tests.unit.pushkit.storage.things import THINGS, Opens, RefusedError, insert, names


async def test_what_selects_ids_is_closed_when_a_batch_is_refused(
    opens: Opens, tmp_path: Path
) -> None:
    database = await opens(
        SqliteDatabase(tmp_path / "a.db", component="things", migrations=[THINGS], clock=utc_now)
    )
    is_closed = False

    async def chosen() -> AsyncGenerator[Sequence[str]]:
        nonlocal is_closed
        try:
            for name in ("one", "wrong", "never"):
                yield [name]
        finally:
            is_closed = True

    def add(ids: Sequence[str]) -> Script[str]:
        if ids[0] == "wrong":
            raise RefusedError
        return (yield from insert(ids[0]))

    async def change() -> None:
        async with aclosing(in_batches(database, chosen(), add)) as batches:
            async for _ in batches:
                pass

    with pytest.raises(RefusedError):
        await change()

    assert is_closed
    assert await database.read(names()) == ["one"]
