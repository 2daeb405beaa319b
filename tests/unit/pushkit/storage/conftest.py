from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pushkit.storage.migrations import Access
from tests.unit.pushkit.storage.things import D, Opens, Write, each


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where a SQLite file may be."""
    return tmp_path / "things.db"


@pytest.fixture
async def opens() -> AsyncIterator[Opens]:
    """Open a database, and close it after the test."""
    async with contextlib.AsyncExitStack() as closing:

        async def open_until_then(database: D, access: Access = Access.UPGRADE) -> D:
            closing.push_async_callback(database.close)
            await database.open(access)
            return database

        yield open_until_then


@pytest.fixture(
    params=[
        pytest.param(lambda database, script: database.write(script), id="a script of its own"),
        pytest.param(
            lambda database, script: database.write_together(each, script), id="of a group"
        ),
    ]
)
def write(request: pytest.FixtureRequest) -> Write:
    """Write a script of its own; or an item of a group, which SQLite runs in the event loop."""
    way: Write = request.param
    return way
