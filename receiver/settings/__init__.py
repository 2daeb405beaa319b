"""The service's configuration: a TOML file, and environment variables that override it.

`RECEIVER_URL`, `RECEIVER_LISTEN`, `RECEIVER_DATABASE` and so on replace the file's values. Every
mistake is reported with its line, what was found, and what was expected.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PrivateAttr

from pushkit.errors import ConfigError, DestinationRefusedError
from pushkit.net.destination import DestinationPolicy
from pushkit.storage.location import is_file
from pushkit.terminal.output import LogFormat
from pushkit.terminal.tables import Location, SettingsTable, TomlFile, name_of, with_options
from pushkit.url import parse_host_and_port
from receiver.callbacks.registry import NO_TIMEOUT
from receiver.inbox.retention import InboxRetention
from receiver.limits import ConnectionLimits, Limits, RateLimit
from receiver.receiver import Receiver
from receiver.senders import TrustedSender
from receiver.settings.tables import (
    AlertSettings,
    CallbackSettings,
    DashboardSettings,
    ForwardSettings,
    HostAndPort,
    HttpUrl,
    MailboxSettings,
    Network,
    NotEmpty,
    Proxy,
    Rate,
    RetentionSettings,
    SenderSettings,
    TlsSettings,
)

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing


@with_options(
    Receiver,
    Limits,
    ConnectionLimits,
    without="limits retry clock on_event head_timeout write_timeout",
    names={"concurrency": "callback_concurrency"},
    types={"url": HttpUrl, "proxy": Proxy, "trusted_proxies": list[Network], RateLimit: Rate},
)
class ReceiverSettings(SettingsTable):
    """The whole file; see `Receiver`, `Limits` and `ConnectionLimits` for most members."""

    senders: Annotated[list[SenderSettings], Field(min_length=1)]
    # A SQLite file, relative to the configuration file, or a PostgreSQL DSN.
    database: NotEmpty = "inbox.db"
    retention: RetentionSettings = RetentionSettings()
    tracing: bool = False  # whether to emit spans (OpenTelemetry)
    alerts: AlertSettings | None = None  # where alerts go
    listen: HostAndPort = "127.0.0.1:9000"  # `host:port` to listen on
    # `host:port` for the operators' `/metrics`, `/healthz` and `/readyz`; none if not set.
    ops_listen: HostAndPort | None = None
    # How `receiver serve` logs, `text` or `json`; `--log-format` overrides it.
    log_format: LogFormat = LogFormat.TEXT
    tls: TlsSettings | None = None  # certificate and key
    dashboard: DashboardSettings | None = None  # the dashboard; none if not set
    callbacks: list[CallbackSettings] = Field([])  # functions that are called with notifications
    forwards: list[ForwardSettings] = Field([])  # where notifications are forwarded to
    mailbox: list[MailboxSettings] = Field([])  # mailboxes that clients fetch from
    _file: TomlFile = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Keep the file that these settings were read from."""
        self._file = context

    @property
    def path(self) -> Path:
        """The file that this was read from."""
        return self.folder / self._file.path.name

    @property
    def folder(self) -> Path:
        """The file's folder: of relative paths, and of the callbacks' modules."""
        return self._file.folder

    @property
    def inbox_location(self) -> str:
        """The location of the inbox: a DSN as it was given, or the absolute path of a file."""
        return str(self.folder / self.database) if is_file(self.database) else self.database

    @property
    def connection_limits(self) -> ConnectionLimits:
        """The limits of connections."""
        timeout = self.request_timeout
        return self.made(ConnectionLimits, head_timeout=timeout, write_timeout=timeout)

    def trusted_senders(self) -> list[TrustedSender]:
        """Read the senders' files; return the senders. Raises ConfigError: one cannot be read."""
        return [sender.build() for sender in self.senders]

    def build(self) -> Receiver:
        """Return the receiver that the file describes. Raises ConfigError: a value is wrong."""
        receiver = self.made(
            Receiver,
            senders=self.trusted_senders(),
            database=self.inbox_location,
            retention=self.retention.made(InboxRetention),
            limits=self.made(Limits),
            tracing=_tracing() if self.tracing else None,
            alerts=self.alerts.build(self.folder) if self.alerts else None,
        )
        for number, callback in enumerate(self.callbacks):
            wanted = callback.wanted(name=callback.call, timeout=callback.timeout)
            with self._placed("callbacks", number, "call"):
                receiver.callbacks.add(callback.load(self.folder), **wanted)
        for number, forward in enumerate(self.forwards):
            # The forward itself has a time-out.
            wanted = forward.wanted(name=forward.name, timeout=NO_TIMEOUT)
            with self._placed("forwards", number, "to" if forward.command is None else "command"):
                to = forward.build(
                    self.folder, allow=self.allow, proxy=self.proxy, ca_file=self.ca_file
                )
                receiver.forward(to, **wanted)
        for number, mailbox in enumerate(self.mailbox):
            with self._placed("mailbox", number, "name"):
                receiver.mailbox(mailbox.build(), **mailbox.wanted(name=None, timeout=None))
        return receiver

    @contextlib.contextmanager
    def _placed(self, *location: int | str) -> Iterator[None]:
        """Add to a `ConfigError` where in the file its member was set."""
        try:
            yield
        except ConfigError as exc:
            says = str(exc).removeprefix("forward: ").removeprefix("command: ")
            raise ConfigError(self._file.placed(location, says)) from exc


def _tracing() -> Tracing:
    from pushkit.telemetry.tracing import Tracing

    return Tracing()


# --- loading --------------------------------------------------------------------------------------


def load_settings(path: Path) -> ReceiverSettings:
    """Read and check a configuration file.

    Raises:
        ConfigError: `file:line: member: what was expected`, one line per mistake.
    """
    advice = "; name the configuration by --config or RECEIVER_CONFIG"
    file = TomlFile.read(path, variables="RECEIVER_", advice=advice)
    settings = file.to(ReceiverSettings)
    wrong = [*_unknown_senders(settings), *_refused_urls(settings), *_taken_ports(settings)]
    if wrong:
        raise ConfigError("\n".join(file.placed(at, says) for at, says in wrong))
    return settings


def _unknown_senders(settings: ReceiverSettings) -> Iterator[tuple[Location, str]]:
    """Find callbacks, forwards and mailboxes that name an unknown sender: it sends nothing."""
    known = [sender.name for sender in settings.senders]
    for table in ("callbacks", "forwards", "mailbox"):
        for number, entry in enumerate(getattr(settings, table)):
            for name in entry.senders:
                if name not in known:
                    says = f"found {name!r}, expected one of {', '.join(known)}"
                    yield (table, number, "senders"), says


def _refused_urls(settings: ReceiverSettings) -> Iterator[tuple[Location, str]]:
    """Find senders whose keys could not be fetched: their URLs are neither public nor allowed."""
    try:
        policy = DestinationPolicy(settings.allow, loopback=True)
    except ConfigError as exc:
        yield ("allow",), str(exc).removeprefix("allow: ")
        return
    for number, sender in enumerate(settings.senders):
        if sender.jwks_url is not None:
            try:
                policy.check(sender.jwks_url)
            except DestinationRefusedError as exc:
                advice = exc.advice('allow = ["{}"]')
                yield ("senders", number, "jwks_url"), f"{exc}{advice}"


def _taken_ports(settings: ReceiverSettings) -> Iterator[tuple[Location, str]]:
    """Find listeners whose port another listener of this file has."""
    addresses: dict[Location, str | None] = {
        ("listen",): settings.listen,
        ("ops_listen",): settings.ops_listen,
    }
    if settings.dashboard is not None:
        addresses["dashboard", "listen"] = settings.dashboard.listen
    taken: dict[tuple[str, int], Location] = {}
    for location, address in addresses.items():
        host_and_port = parse_host_and_port(address or "")
        if host_and_port is not None and host_and_port[1]:  # port 0 stands for any free port
            other = taken.setdefault(host_and_port, location)
            if other != location:
                yield location, f"found {address}, which {name_of(other)} has: choose another port"
