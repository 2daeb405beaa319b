"""`HttpServer`: accepts connections, bounds their number, and ends them gracefully; its TLS.

A connection is counted from the moment that its socket is accepted, and has deadlines. Bytes that
are no HTTP are answered with problem details, like every refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from pushkit.errors import ConfigError
from pushkit.logs import RepeatedLog
from pushkit.peers import rate_key
from pushkit.scheduling.event_loop import cancelled
from receiver.serving.connection import HttpConnection, ServerState

_log = logging.getLogger("receiver")

_TLS_CLOSE_SECONDS = 5.0
_LINES = 100  # of the log, in a minute, about refused connections
_LAST_WORDS = 1.0  # seconds for the sending of the last answers


@dataclass(eq=False)
class HttpServer(ServerState):
    """Makes the protocol of every connection, and drains all of them at the end."""

    tls: ssl.SSLContext | None = None  # None for plain HTTP
    _refused: RepeatedLog = field(
        default_factory=lambda: RepeatedLog(_log, most=_LINES), init=False
    )
    _handshakes: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def protocol_for(self, peer: str) -> asyncio.Protocol | None:
        """Count an accepted connection, and return its protocol; None if it is refused."""
        connection = HttpConnection(self, peer)
        reason = self.connections.add(connection, peer)
        if reason is None:
            return connection if self.tls is None else _Handshake(self, connection, self.tls)
        cause = ("connection", rate_key(peer))
        said = "refused connection peer=%s: %s"
        self._refused.log(cause, logging.WARNING, said, peer, reason)
        return None

    def run_handshake(self, handshake: Coroutine[None, None, None]) -> None:
        """Run a TLS handshake in a task."""
        task = asyncio.create_task(handshake)
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109  # a deadline, not an error
        """Answer the requests in progress, then close every connection; none may be new any more.

        Each answer is the last one of its connection; requests not answered in time are cancelled.
        """
        for connection in self.connections:
            connection.wind_down()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.until_answered()
        broken_off = [each.work for each in self.in_progress if each.work is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self.in_progress else _LAST_WORDS):
                await self.connections.until_none()
        for connection in self.connections:
            connection.abort()
            self.connections.forget(connection)
        for task in [*broken_off, *self._handshakes]:
            await cancelled(task)
        self.deadlines.close()


class _Handshake(asyncio.Protocol):
    """A connection in its TLS handshake, which has a deadline."""

    def __init__(self, server: HttpServer, connection: HttpConnection, tls: ssl.SSLContext) -> None:
        self._server = server
        self._connection = connection
        self._tls = tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        if self._connection.attach(transport):
            self._server.run_handshake(self._shake_hands(transport))

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        connection, encrypted = self._connection, None
        try:
            if not transport.is_closing():  # else the handshake would wait for its deadline
                encrypted = await asyncio.get_running_loop().start_tls(
                    transport,
                    connection,
                    self._tls,
                    server_side=True,
                    ssl_handshake_timeout=self._server.limits.head_timeout.total_seconds(),
                    ssl_shutdown_timeout=_TLS_CLOSE_SECONDS,
                )
        except OSError as exc:  # no TLS, too slow, or gone
            exc.__traceback__ = None  # its frames hold the buffers of the handshake, and it them
        if encrypted is None or encrypted.is_closing():
            transport.abort()
            self._server.connections.forget(connection)
        else:
            connection.connection_made(encrypted)


class TlsFiles:
    """A certificate and its key, which can be reloaded without a restart.

    Args:
        certificate: The file of the certificate and its chain, PEM.
        key: The file of its private key, PEM, without a passphrase.

    Raises:
        ConfigError: A file cannot be read, or the two do not match.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate = certificate
        self._key = key
        self.context: ssl.SSLContext = self._read()

    def reload(self) -> None:
        """Read the files again, for new connections.

        Raises:
            ConfigError: As above; the files loaded before stay in use.
        """
        self._read()  # first into a new context: a failure must not leave one file's half in use
        self._load_into(self.context)

    def _read(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        self._load_into(context)
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_passphrase)
        except ssl.SSLError as exc:
            reason = exc.reason or "not PEM"
            raise ConfigError(f"tls: {self._certificate}, {self._key}: {reason}") from exc
        except (OSError, ValueError) as exc:
            reason = getattr(exc, "strerror", None) or str(exc)
            raise ConfigError(f"tls: {self._certificate}, {self._key}: {reason}") from exc


def _no_passphrase() -> str:
    # Without this, OpenSSL asks at the terminal, and the service hangs.
    raise ValueError("the key is under a passphrase, expected one without")
