"""The memory of accepted ids: in the database of the inbox, or in Redis."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pushkit.errors import ConfigError
from pushkit.lazy import from_extra
from receiver.replay.memory import MEMORY

if TYPE_CHECKING:
    from receiver.replay.redis import RedisReplay

_REDIS = ("redis://", "rediss://", "unix://")


def redis_replay(url: str, *, namespace: str, remember_for: timedelta = MEMORY) -> RedisReplay:
    """Return the memory of ids in a Redis, unopened.

    Raises:
        ConfigError: The URL is not of a Redis, or the driver is not installed.
    """
    if not url.startswith(_REDIS):
        raise ConfigError("replay: expected a redis://, rediss:// or unix:// URL")
    with from_extra("redis", "replay: Redis needs its driver"):
        from receiver.replay.redis import RedisReplay
    return RedisReplay(url, namespace=namespace, remember_for=remember_for)
