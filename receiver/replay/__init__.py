"""The memory of accepted ids: in the database of the inbox, or in Redis.

Ids are remembered independently of the inbox and its purges, for longer than a sender retries by
itself (90 h): 96 h by default. The inbox keeps sender and id unique, too: if the memory is lost,
there is no second callback while the notification is in the inbox.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from pushkit.errors import ConfigError, InboundError
from pushkit.lazy import from_extra

if TYPE_CHECKING:
    from receiver.replay.redis import RedisReplay

_REDIS = ("redis://", "rediss://", "unix://")
MEMORY = timedelta(hours=96)


class ConflictError(InboundError, code="id_conflict", status=409):
    """The id was accepted before with another body."""


class BeingStoredError(InboundError, code="being_stored", status=503):
    """A copy with this id is being stored: its result decides about this one."""

    retry_after: timedelta = timedelta(seconds=1)


class Seen(NamedTuple):
    """The id of a notification that arrived, with its sender and body hash."""

    sender: str
    delivery_id: str
    body_sha256: str
    holder: str = ""  # of the reservation in Redis


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
