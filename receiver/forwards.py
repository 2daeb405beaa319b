"""Forwards: callbacks that pass a notification on to something outside of this program.

The target is an HTTP URL of the internal network, a Redis stream, or a command. It gets the body
byte by byte as it was signed, and the facts that were verified. Each forward is a callback: its
state is its own and durable, it is retried with back-off, and becomes a dead letter if it keeps
failing. Delivery is at least once: a receiver that dies before it recorded a success forwards
again, with the same idempotency key.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from pushkit.errors import ConfigError, PushkitError, TransportError
from pushkit.lazy import from_extra
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import ConnectionOptions, Transport
from pushkit.programs import find_program, inherited_variables, run_program
from pushkit.version import __version__
from receiver.inbox.model import Notification

__all__ = ["CommandForward", "Forward", "ForwardFailedError", "HttpForward", "StreamForward"]

STREAM_SCHEMES: Final = ("redis", "rediss", "unix")
FORWARD_TIMEOUT = timedelta(seconds=30)
# Visible ASCII without the percent sign: safe in a header, a variable and a log line.
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


class ForwardFailedError(PushkitError, code="forward_failed"):
    """The target of a forward did not take a notification. It is tried again."""


class Forward(Protocol):
    """Forwards notifications to one target."""

    @property
    def name(self) -> str:
        """Stable across restarts, for the inbox records calls by it. Contains no secret."""
        ...

    async def send(self, notification: Notification) -> None:
        """Forward one; return once the target has taken it.

        Raises:
            ForwardFailedError: It was not taken.
        """
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class HttpForward:
    """Posts each notification to a URL; any 2xx answer has taken it.

    It connects to this URL's host and port only, and follows no redirect.

    Args:
        url: The target. The operator names it: `http` and internal addresses are allowed.
        timeout: For one attempt in total.
        proxy: An egress proxy, `http://[user:password@]host:port`; not for hosts on this machine.
        ca_file: Root certificates in PEM, trusted beside the system's.

    Raises:
        ConfigError: Not a URL, or the proxy or the file of roots cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta = FORWARD_TIMEOUT,
        proxy: str | None = None,
        ca_file: str | Path | None = None,
    ) -> None:
        policy = DestinationPolicy.naming(url)
        # The slots of callbacks limit requests; one that waited for a connection could time out.
        connections = ConnectionOptions(
            max_connections=sys.maxsize,
            max_connections_per_host=sys.maxsize,
            proxy=proxy,
            ca_file=None if ca_file is None else Path(ca_file),
        )
        self._transport = Transport(policy, connections)
        self._destination = policy.check(url)
        self._timeout = timeout
        # Without the query, which may contain a secret.
        path = self._destination.url.target.partition("?")[0]
        self.name: str = f"forward:{self._destination.origin}{path}"

    async def send(self, notification: Notification) -> None:
        """Post one.

        Raises:
            ForwardFailedError: There was no answer, or it was not 2xx.
        """
        headers = [
            ("Content-Type", "application/json"),
            ("User-Agent", f"pushkit-receiver/{__version__}"),
            ("Idempotency-Key", _encoded(notification.idempotency_key)),
            *((f"Receiver-{name.title()}", fact) for name, fact in _facts_of(notification).items()),
        ]
        try:
            answer = await self._transport.post(
                self._destination, headers, notification.body, timeout=self._timeout
            )
        except TransportError as exc:
            raise ForwardFailedError(str(exc)) from exc
        if not 200 <= answer.status < 300:
            raise ForwardFailedError(
                f"{self._destination.origin} answered {answer.status}, expected 2xx"
            )

    async def close(self) -> None:
        """Close its connections."""
        await self._transport.close()


class StreamForward:
    """Adds each notification to a Redis stream: `body`, `idempotency-key`, and verified facts.

    Args:
        url: `redis://host:6379/0?stream=name`, `rediss://`, or `unix:///path?stream=name`;
            `&maxlen=` trims the stream to about so many entries.
        timeout: For connecting, and for each answer.

    Raises:
        ConfigError: Not such a URL, or the redis package is missing.
    """

    def __init__(self, url: str, *, timeout: timedelta = FORWARD_TIMEOUT) -> None:
        with from_extra("redis", "forward: redis is missing"):
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import ConnectionError as DisconnectedError
            from redis.exceptions import ReadOnlyError
        parts = urlsplit(url)
        query = parse_qs(parts.query, keep_blank_values=True)
        streams, lengths = query.pop("stream", [""]), query.pop("maxlen", ["0"])
        stream, maxlen = streams[0], lengths[0]
        known = parts.scheme in STREAM_SCHEMES and not query and len(streams) == len(lengths) == 1
        if not (known and stream and maxlen.isdecimal()):
            raise ConfigError("forward: expected redis://host:port/db?stream=name[&maxlen=number]")
        seconds = timeout.total_seconds()
        # Before version 6, redis accepts a valid certificate of any other name.
        tls = {"ssl_check_hostname": True} if parts.scheme == "rediss" else {}
        try:
            self._redis: Redis = Redis.from_url(
                urlunsplit(parts._replace(query="")),
                **tls,
                socket_timeout=seconds,
                socket_connect_timeout=seconds,
                # On a new connection: the old one was closed, or leads to a replica.
                retry=Retry(NoBackoff(), 1, (DisconnectedError, ReadOnlyError)),
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
        from redis.exceptions import RedisError, ResponseError

        fields: dict[str, str | bytes] = {
            "body": notification.body,
            "idempotency-key": _encoded(notification.idempotency_key),
            **_facts_of(notification),
        }
        try:
            await self._redis.xadd(self._stream, fields, maxlen=self._maxlen)  # type: ignore[arg-type]  # invariant in the library
        except ResponseError as exc:  # the server's own message
            raise ForwardFailedError(f"{self.name}: {type(exc).__name__}: {exc}") from exc
        except (RedisError, OSError) as exc:
            # Its message may hold the URL. The library raises one type for a wrong password, a
            # wrong name and a refused connection: the cause says more.
            reason = type(exc.__context__ or exc).__name__
            raise ForwardFailedError(f"{self.name}: {reason}") from exc

    async def close(self) -> None:
        """Close its connections."""
        # Those of an event loop that was closed can say nothing any more, and are forgotten.
        with contextlib.suppress(RuntimeError):
            await self._redis.aclose()


class CommandForward:
    """Runs a command for each notification, its body on standard input; status 0 has taken it.

    No shell is involved. The verified facts are environment variables (`NOTIFICATION_TASK_ID` and
    so on); `RECEIVER_*` and `PUSHKIT_*`, which may contain secrets, are removed.

    Args:
        command: The program and its arguments.
        timeout: After this, the command and all that it started are killed.
        folder: The working directory.

    Raises:
        ConfigError: There is no such program.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        timeout: timedelta = FORWARD_TIMEOUT,
        folder: Path | None = None,
    ) -> None:
        self._command = find_program(command, setting="forward: command", folder=folder)
        self._timeout = timeout
        self._folder = folder
        self.name: str = f"forward:{command[0]}"

    async def send(self, notification: Notification) -> None:
        """Run it once.

        Raises:
            ForwardFailedError: It did not start, did not end in time, or ended with another status
                than 0.
        """
        try:
            status = await run_program(
                self._command,
                notification.body,
                within=self._timeout,
                environment=_environment(notification),
                folder=self._folder,
            )
        except TimeoutError as exc:
            seconds = self._timeout.total_seconds()
            raise ForwardFailedError(f"{self.name}: did not end within {seconds:g} s") from exc
        except OSError as exc:
            raise ForwardFailedError(f"{self.name}: {exc.strerror}") from exc
        if status != 0:
            raise ForwardFailedError(f"{self.name}: ended with status {status}, expected 0")

    async def close(self) -> None:
        """Do nothing: no connection is kept."""


def _environment(notification: Notification) -> dict[str, str]:
    facts = {"idempotency-key": _encoded(notification.idempotency_key), **_facts_of(notification)}
    return inherited_variables() | {
        f"NOTIFICATION_{name.replace('-', '_').upper()}": fact for name, fact in facts.items()
    }


def _facts_of(notification: Notification) -> dict[str, str]:
    """Return the verified facts, by names in kebab case; a fact that is None is left out.

    They are percent-encoded except for visible ASCII, so that no sender can forge a header or a
    line.
    """
    facts: dict[str, object | None] = {
        "sender": notification.sender,
        "delivery-id": notification.delivery_id,
        "task-id": notification.task_id,
        "config-id": notification.config_id,
        "kid": notification.kid or None,
        "kind": notification.kind.value,
        "state": notification.state.value if notification.state else None,
        "seq": notification.seq,
        "missing": notification.missing,
        "late": str(notification.late).lower(),
        "generation": notification.generation,
        "generation-before": notification.generation_before,
        "issued-at": _moment(notification.issued_at),
        "received-at": _moment(notification.received_at),
    }
    return {name: _encoded(str(fact)) for name, fact in facts.items() if fact is not None}


def _encoded(text: str) -> str:
    """Return a text in visible ASCII, the rest percent-encoded."""
    return quote(text, safe=_PLAIN, errors="surrogatepass")


def _moment(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
