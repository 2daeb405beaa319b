"""The whole configuration file, and the receiver that it describes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field, PrivateAttr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from pushkit.errors import ConfigError
from pushkit.storage.location import is_file
from pushkit.terminal.log_output import LogFormat
from pushkit.terminal.toml import File, Location
from receiver.callbacks.dispatcher import CALLBACK_CONCURRENCY, CALLBACK_TIMEOUT
from receiver.callbacks.registry import NO_TIMEOUT
from receiver.limits import ConnectionLimits, Limits
from receiver.peers import ForwardedHeader
from receiver.receiver import Receiver
from receiver.runtime import DRAIN
from receiver.senders import TrustedSender
from receiver.settings.handlers import CallbackSettings, ForwardSettings
from receiver.settings.sender import SenderSettings
from receiver.settings.tables import (
    AlertSettings,
    DashboardSettings,
    RetentionSettings,
    TlsSettings,
)
from receiver.settings.values import (
    HostAndPort,
    Network,
    NotEmpty,
    NotNegative,
    Positive,
    PositiveOrNone,
    Proxy,
    Url,
    rate,
    seconds_of,
)

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing


_LIMITS, _CONNECTIONS = Limits(), ConnectionLimits()


class ReceiverSettings(
    BaseSettings, env_prefix="RECEIVER_", extra="forbid", hide_input_in_errors=True
):
    """The whole file; see `Receiver`, `Limits` and `ConnectionLimits` for most members."""

    url: Url
    listen: HostAndPort = "127.0.0.1:9000"  # `host:port` to listen on
    # `host:port` for the operators' `/metrics`, `/healthz` and `/readyz`; none if not set.
    ops_listen: HostAndPort | None = None
    dashboard: DashboardSettings | None = None  # the dashboard; none if not set
    # How `receiver serve` logs, `text` or `json`; `--log-format` overrides it.
    log_format: LogFormat = LogFormat.TEXT
    tracing: bool = False  # whether to emit spans (OpenTelemetry)
    # A SQLite file, relative to the configuration file, or a PostgreSQL DSN.
    database: NotEmpty = "inbox.db"
    retention: RetentionSettings = RetentionSettings()
    allow: list[str] = []  # hosts allowed for development, as `host:port` or `host:*`
    # An egress proxy, `http://[user:password@]host:port`, for JWK Sets, forwards and alerts; hosts
    # in `allow` and on this machine are reached without it. `RECEIVER_PROXY` keeps a password out
    # of the file.
    proxy: Proxy | None = None
    ca_file: File | None = None  # root certificates in PEM, trusted there beside the system's
    max_body_bytes: Positive = _LIMITS.max_body_bytes
    # Requests a second from one address, before the signature is checked; twice that at once.
    peer_rate: Positive = int(_LIMITS.peer_rate.per_second)
    # Notifications a second from one sender, after its signature was checked; twice that at once.
    sender_rate: Positive = int(_LIMITS.sender_rate.per_second)
    max_backlog: Positive = _LIMITS.max_backlog
    max_backlog_per_sender: Positive = _LIMITS.max_backlog_per_sender
    callback_concurrency: Positive = CALLBACK_CONCURRENCY  # how many callbacks may run at once
    # How long one call may take; `"none"` for any time.
    callback_timeout_seconds: PositiveOrNone = seconds_of(CALLBACK_TIMEOUT)
    drain_seconds: NotNegative = seconds_of(DRAIN)
    max_header_bytes: Positive = _LIMITS.max_header_bytes
    # For the head of a request, and for its body.
    request_timeout_seconds: Positive = seconds_of(_LIMITS.request_timeout)
    keep_alive_seconds: Positive = seconds_of(_CONNECTIONS.keep_alive)
    stop_timeout_seconds: Positive = 20  # how long requests in progress may take at shutdown
    # The most connections at once, in each process.
    max_connections: Positive = _CONNECTIONS.max_connections
    max_connections_per_peer: Positive = _CONNECTIONS.max_connections_per_peer
    trusted_proxies: list[Network] = []
    # The header that they write: `X-Forwarded-For` or `Forwarded`.
    forwarded_header: ForwardedHeader = ForwardedHeader.X_FORWARDED_FOR
    validation_echo: bool = False
    tls: TlsSettings | None = None  # certificate and key
    alerts: AlertSettings | None = None  # where alerts go
    senders: Annotated[list[SenderSettings], Field(min_length=1)]
    callbacks: list[CallbackSettings] = []  # functions that are called with notifications
    forwards: list[ForwardSettings] = []  # where notifications are forwarded to
    _path: Path = PrivateAttr(Path("receiver.toml"))
    _place: Callable[[Location], str]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # the library's signature
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Let environment variables override the file."""
        return env_settings, init_settings

    def read_from(self, path: Path, place: Callable[[Location], str]) -> Self:
        """Set the file, whose folder relative paths start at, and what says where a member is."""
        self._path = path.absolute()  # a callback may change the folder of the process
        self._place = place
        return self

    @property
    def path(self) -> Path:
        """The file that this was read from."""
        return self._path

    @property
    def folder(self) -> Path:
        """The file's folder: of relative paths, and of the callbacks' modules."""
        return self._path.parent.resolve()

    @property
    def inbox_location(self) -> str:
        """The location of the inbox: a DSN as it was given, or the absolute path of a file."""
        return str(self.folder / self.database) if is_file(self.database) else self.database

    @property
    def roots(self) -> Path | None:
        """The file of root certificates."""
        return self.folder / self.ca_file if self.ca_file else None

    @property
    def stop_timeout(self) -> timedelta:
        """How long requests in progress may take at shutdown."""
        return timedelta(seconds=self.stop_timeout_seconds)

    @property
    def drain(self) -> timedelta:
        """How long callbacks may take at shutdown."""
        return timedelta(seconds=self.drain_seconds)

    @property
    def connection_limits(self) -> ConnectionLimits:
        """The limits of connections."""
        timeout = timedelta(seconds=self.request_timeout_seconds)
        return ConnectionLimits(
            max_connections=self.max_connections,
            max_connections_per_peer=self.max_connections_per_peer,
            head_timeout=timeout,
            write_timeout=timeout,
            keep_alive=timedelta(seconds=self.keep_alive_seconds),
        )

    def trusted_senders(self) -> list[TrustedSender]:
        """Read the senders' files; return the senders. Raises ConfigError: one cannot be read."""
        return [sender.build(self.folder) for sender in self.senders]

    def build(self) -> Receiver:
        """Return the receiver that the file describes. Raises ConfigError: a value is wrong."""
        limit = self.callback_timeout_seconds
        receiver = Receiver(
            url=self.url,
            senders=self.trusted_senders(),
            database=self.inbox_location,
            retention=self.retention.build(),
            allow=self.allow,
            proxy=self.proxy,
            ca_file=self.roots,
            limits=Limits(
                max_body_bytes=self.max_body_bytes,
                max_header_bytes=self.max_header_bytes,
                request_timeout=timedelta(seconds=self.request_timeout_seconds),
                peer_rate=rate(self.peer_rate),
                sender_rate=rate(self.sender_rate),
                max_backlog=self.max_backlog,
                max_backlog_per_sender=self.max_backlog_per_sender,
            ),
            concurrency=self.callback_concurrency,
            callback_timeout=None if limit == NO_TIMEOUT else timedelta(seconds=limit),
            drain=self.drain,
            trusted_proxies=self.trusted_proxies,
            forwarded_header=self.forwarded_header,
            validation_echo=self.validation_echo,
            tracing=_tracing() if self.tracing else None,
            alerts=self.alerts.build(self.folder) if self.alerts else None,
        )
        for number, callback in enumerate(self.callbacks):
            seconds = callback.timeout_seconds
            timeout = timedelta(seconds=seconds) if isinstance(seconds, int) else seconds
            wanted = callback.wanted(name=callback.call, timeout=timeout)
            with self._placed("callbacks", number, "call"):
                receiver.callbacks.add(callback.load(self.folder), **wanted)
        for number, forward in enumerate(self.forwards):
            # The forward itself has a time-out.
            wanted = forward.wanted(name=forward.name, timeout=NO_TIMEOUT)
            with self._placed("forwards", number, "to" if forward.command is None else "command"):
                to = forward.build(
                    self.folder, allow=self.allow, proxy=self.proxy, ca_file=self.roots
                )
                receiver.forward(to, **wanted)
        return receiver

    @contextlib.contextmanager
    def _placed(self, *location: int | str) -> Iterator[None]:
        """Add to a `ConfigError` where in the file its member was set."""
        try:
            yield
        except ConfigError as exc:
            says = str(exc).removeprefix("forward: ").removeprefix("command: ")
            raise ConfigError(f"{self._place(location)}: {says}") from exc


def _tracing() -> Tracing:
    from pushkit.telemetry.tracing import Tracing

    return Tracing()
