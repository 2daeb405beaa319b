"""Forwarding to a Redis stream."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import parse_qs, urlsplit, urlunsplit

from pushkit.errors import ConfigError
from receiver.forwards.forward import ForwardFailedError, encoded, facts_of
from receiver.inbox.model import Notification

SCHEMES = ("redis", "rediss", "unix")

_TIMEOUT = timedelta(seconds=30)


class StreamForward:
    """Adds each notification to a stream: `body`, `idempotency-key`, and what was verified.

    Args:
        url: `redis://host:6379/0?stream=name`, `rediss://`, or `unix:///path?stream=name`;
            `&maxlen=` keeps about so many.
        timeout: For connecting, and for each answer.

    Raises:
        ConfigError: Not such a URL, or the redis package is missing.
    """

    def __init__(self, url: str, *, timeout: timedelta = _TIMEOUT) -> None:
        try:
            from redis.asyncio import Redis
        except ImportError as exc:
            raise ConfigError("forward: redis is missing: pip install 'pushkit[redis]'") from exc
        parts = urlsplit(url)
        query = parse_qs(parts.query, keep_blank_values=True)
        streams, lengths = query.pop("stream", [""]), query.pop("maxlen", ["0"])
        stream, maxlen = streams[0], lengths[0]
        known = parts.scheme in SCHEMES and not query and len(streams) == len(lengths) == 1
        if not (known and stream and maxlen.isdecimal()):
            raise ConfigError("forward: expected redis://host:port/db?stream=name[&maxlen=number]")
        seconds = timeout.total_seconds()
        try:
            self._redis: Redis = Redis.from_url(
                urlunsplit(parts._replace(query="")),
                socket_timeout=seconds,
                socket_connect_timeout=seconds,
            )
        except ValueError as exc:
            raise ConfigError("forward: not a redis URL") from exc
        self._stream = stream
        self._maxlen = int(maxlen) or None
        where = parts.hostname or parts.path
        self.name: str = f"forward:{parts.scheme}://{where}?stream={stream}"

    async def send(self, notification: Notification) -> None:
        """Add one.

        Raises:
            ForwardFailedError: The server did not confirm it.
        """
        from redis.exceptions import RedisError

        fields: dict[str, str | bytes] = {
            "body": notification.body,
            "idempotency-key": encoded(notification.idempotency_key),
            **facts_of(notification),
        }
        try:
            await self._redis.xadd(self._stream, fields, maxlen=self._maxlen)  # type: ignore[arg-type]  # invariant in the library
        except (RedisError, OSError) as exc:
            # Without the library's text, which may name the user and the URL.
            raise ForwardFailedError(f"{self.name}: {type(exc).__name__}") from exc

    async def close(self) -> None:
        """Close its connections."""
        await self._redis.aclose()
