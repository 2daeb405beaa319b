"""Live pages receive an event when their data changes."""

from __future__ import annotations

import asyncio

import pytest

from pushkit.webui import site
from tests.eventually import DEADLINE
from tests.unit.pushkit.dashboard.conftest import Browser


async def test_a_live_page_receives_changes(
    reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_LIVE_INTERVAL", 0.01)
    assert 'data-live="/live"' in await reader.get("/")
    async with asyncio.timeout(DEADLINE), reader.client.get("/live") as answer:
        assert answer.content_type == "text/event-stream"
        assert await answer.content.readline() == b"event: changed\n"


async def test_no_more_than_so_many_pages_are_live(
    reader: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_MAX_LIVE", 1)
    async with reader.client.get("/live") as first:
        assert first.status == 200
        async with reader.client.get("/live") as second:
            assert second.status == 503
