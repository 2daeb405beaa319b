"""The memory of ids in Redis, for receivers with separate inboxes that share one memory.

The value of a key is `reserved <holder> <digest>` under a lease, then `accepted <digest>` for as
long as ids are remembered. If a process dies in between, the id is free when the lease expires; if
its notification was stored, the inbox recognises the next copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
from collections.abc import Iterator
from datetime import timedelta

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as DisconnectedError
from redis.exceptions import ReadOnlyError, RedisError, ResponseError

from pushkit.errors import ConfigError, StorageError
from pushkit.logs import RepeatedLog
from receiver.replay.memory import MEMORY, BeingStoredError, ConflictError, Seen

_log = logging.getLogger("receiver")

# On a new connection: the old one was closed, or leads to a replica.
ONCE_MORE = Retry(NoBackoff(), 1, (DisconnectedError, ReadOnlyError))
_PREFIX = "pushkit:replay:"
_LEASE = timedelta(seconds=30)
_CONNECTIONS = 16
_TIMEOUT = timedelta(seconds=5)
_MILLISECOND = timedelta(milliseconds=1)
# Only the holder deletes it: after the lease, another process may have reserved the id.
_RELEASE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


class RedisReplay:
    """Keys on a Redis server: `reserve` one, store its notification, then `commit` or `release`.

    Raises:
        ConfigError: The URL is none.
    """

    def __init__(
        self,
        url: str,  # `redis://host:6379/0`, or `rediss://` with TLS, or `unix://`
        *,
        # Separates the ids of receivers on the same server; the same for all processes of one.
        namespace: str,
        remember_for: timedelta = MEMORY,
        # How long a reservation lasts: longer than a transaction of the inbox may take.
        lease: timedelta = _LEASE,
    ) -> None:
        self._namespace = namespace
        self._remember_for = remember_for
        self._lease = lease
        self._faults = RepeatedLog(_log)
        self._url = url
        self._redis = self._connected()
        self._asked: set[asyncio.Future[None]] = set()  # requests without an answer yet

    async def open(self) -> None:
        """Check that the server stores ids: one that is full or a replica answers a ping, too.

        Raises:
            StorageError: It does not.
        """
        with _faults():
            await self._redis.set(f"{_PREFIX}{secrets.token_hex(8)}", "", px=1)

    async def close(self) -> None:
        """Disconnect, once no request waits: an id that it reserves now could not be released."""
        if self._asked:
            await asyncio.wait(self._asked, timeout=_TIMEOUT.total_seconds())
        with contextlib.suppress(RedisError, OSError):
            await self._redis.aclose()
        self._redis = self._connected()  # the next start may be in another event loop

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        answered = asyncio.get_running_loop().create_future()
        self._asked.add(answered)
        try:
            with _faults():
                yield
        finally:
            self._asked.remove(answered)
            answered.set_result(None)

    def _connected(self) -> Redis:
        seconds = _TIMEOUT.total_seconds()
        with contextlib.suppress(ValueError):  # its message quotes the URL
            # A caller that finds every connection in use waits for one, instead of failing.
            return Redis.from_pool(
                BlockingConnectionPool.from_url(
                    self._url,
                    max_connections=_CONNECTIONS,
                    timeout=seconds,
                    socket_timeout=seconds,
                    socket_connect_timeout=seconds,
                    retry=ONCE_MORE,
                )
            )
        raise ConfigError("replay: expected a redis://, rediss:// or unix:// URL")

    async def reserve(self, seen: Seen) -> Seen | None:
        """Reserve an id that is fresh; None for a duplicate.

        Raises:
            ConflictError: It was accepted with another body.
            BeingStoredError: A copy is being stored.
            StorageError: The server is out of reach.
        """
        reserved = seen._replace(holder=secrets.token_hex(8))
        with self._asking():
            fresh = await self._redis.set(
                self._key(seen), _reserved(reserved), nx=True, px=self._lease // _MILLISECOND
            )
            found = None if fresh else await self._redis.get(self._key(seen))
        text = found.decode("ascii", "replace") if isinstance(found, bytes) else found or ""
        # If the connection broke, the command was repeated: it may find its own reservation.
        if fresh or text == _reserved(reserved):
            return reserved
        state, _, digest = text.partition(" ")
        if state != "accepted":
            raise BeingStoredError("a copy with this id is being stored")
        if digest != seen.body_sha256:
            raise ConflictError("this id was accepted before with another body")
        return None

    async def commit(self, reserved: Seen) -> None:
        """Remember an id for good; if that fails, only the inbox remembers it."""
        value = f"accepted {reserved.body_sha256}"
        try:
            with self._asking():
                px = self._remember_for // _MILLISECOND
                await self._redis.set(self._key(reserved), value, px=px)
        except StorageError as exc:
            said = "%s; only the inbox remembers id %a"
            cause = type(exc.__cause__).__name__
            self._faults.log(cause, logging.WARNING, said, exc, reserved.delivery_id[:128])

    async def release(self, reserved: Seen) -> None:
        """Give up a reservation; if that fails, it ends with its lease."""
        with contextlib.suppress(StorageError), self._asking():
            await self._redis.eval(_RELEASE, 1, self._key(reserved), _reserved(reserved))

    def _key(self, seen: Seen) -> str:
        # Hashed, so that the length is bounded and two names cannot be confused.
        parts = (self._namespace, seen.sender, seen.delivery_id)
        digest = hashlib.sha256(
            b"\0".join(hashlib.sha256(p.encode("utf-8", "surrogatepass")).digest() for p in parts)
        )
        return f"{_PREFIX}{digest.hexdigest()}"


def _reserved(seen: Seen) -> str:
    return f"reserved {seen.holder} {seen.body_sha256}"


@contextlib.contextmanager
def _faults() -> Iterator[None]:
    try:
        yield
    except ResponseError as exc:
        raise StorageError(f"Redis refused: {reason_of(exc)}") from exc
    except (RedisError, OSError) as exc:
        raise StorageError(f"Redis is out of reach: {reason_of(exc)}") from exc


def reason_of(exc: RedisError | OSError) -> str:
    """Return what may be logged of a fault: a server's own message; others may hold the URL."""
    if isinstance(exc, ResponseError):
        return f"{type(exc).__name__}: {exc}"
    # The library raises the same type for a wrong password, a wrong name and a refused connection.
    return type(exc.__context__ or exc).__name__
