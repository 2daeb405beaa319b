"""The memory of accepted ids: in the database of the inbox, or in Redis."""

from __future__ import annotations

from datetime import timedelta

from pushkit.errors import ConfigError
from pushkit.lazy import from_extra
from receiver.replay.database import DatabaseReplay
from receiver.replay.memory import MEMORY, ReplayMemory

_REDIS = ("redis://", "rediss://", "unix://")


def open_replay(
    location: str | None, *, namespace: str, remember_for: timedelta = MEMORY
) -> ReplayMemory:
    """Return the memory of ids at a location, unopened: a Redis URL, or None for the database.

    Raises:
        ConfigError: The location is another one, or the driver is not installed.
    """
    if location is None:
        return DatabaseReplay(remember_for)
    if not location.startswith(_REDIS):
        raise ConfigError("replay: expected a redis://, rediss:// or unix:// URL")
    with from_extra("redis", "replay: Redis needs its driver"):
        from receiver.replay.redis import RedisReplay
    return RedisReplay(location, namespace=namespace, remember_for=remember_for)
