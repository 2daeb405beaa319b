"""A sender that only stores, and its events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from pushkit import KeyRing, PushSender, SenderOptions
from pushkit.errors import StorageError
from pushkit.events import Event

FULL = 3  # the most unfinished deliveries of one subscription
MAX_CONFIGS = 7  # of one task


@cache
def key_ring() -> KeyRing:
    return KeyRing.create(datetime.now(UTC))


async def away(*_: object, **__: object) -> NoReturn:
    """Stand in for a method of a sender whose outbox is out of reach."""
    raise StorageError("no answer from 10.0.0.7")


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
async def idle(tmp_path: Path, events: list[Event]) -> AsyncIterator[PushSender]:
    """Return a sender that nobody has started."""
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=key_ring(),
        database=tmp_path / "outbox.db",
        options=SenderOptions(max_backlog_per_subscription=FULL, max_configs_per_task=MAX_CONFIGS),
        on_event=events.append,
    )
    yield sender
    await sender.close()


@pytest.fixture
async def push(idle: PushSender) -> PushSender:
    await idle.open()
    return idle
