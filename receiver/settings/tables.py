"""The tables that a file has at most once: TLS, retention, dashboard and alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from pydantic import model_validator

from pushkit.alerts import AlertOptions
from pushkit.programs import find_program
from pushkit.terminal.options import DashboardOptions
from pushkit.terminal.tables import File, SettingsTable, with_options
from receiver.inbox.retention import InboxRetention
from receiver.settings.values import HostAndPort, NotEmpty, Url, read_text

LISTEN: Final = "127.0.0.1:8091"
VARIABLE: Final = "RECEIVER_DASHBOARD_TOKEN"


class TlsSettings(SettingsTable):
    """The `[tls]` table: PEM files, reloaded upon SIGHUP."""

    certificate: File  # the certificate and its intermediates
    key: File  # its private key


@with_options(
    InboxRetention,
    without="sequences",
    names={
        "done": "done_days",
        "dead": "dead_days",
        "ids": "remember_hours",
        "expected": "expected_days",
    },
)
class RetentionSettings(SettingsTable):
    """The `[retention]` table; see `receiver.InboxRetention`."""

    def build(self) -> InboxRetention:
        """Return the retention that a receiver is made with."""
        return self.made(InboxRetention)


@with_options(DashboardOptions, without="variable", types={"hosts": list[NotEmpty]})
class DashboardSettings(SettingsTable):
    """The `[dashboard]` table. Without it, `receiver serve` has no dashboard.

    It needs `pip install '.[dashboard]'`.
    """

    # `host:port` of its own listener. Beyond loopback a token is required.
    listen: HostAndPort = LISTEN
    # A file with the token, mode 0600; `RECEIVER_DASHBOARD_TOKEN` may contain it instead.
    token_file: File | None = None

    def build(self) -> DashboardOptions:
        """Return the options that a dashboard is served with."""
        return self.made(DashboardOptions, variable=VARIABLE)


@with_options(
    AlertOptions,
    without="webhook_token webhook_secret look_every",
    names={"every": "every_minutes"},
    types={"command": list[str], "webhook": Url},
)
class AlertSettings(SettingsTable):
    """The `[alerts]` table; see `pushkit.AlertOptions`."""

    # A file with the secret, `whsec_…`, that signs alerts to the webhook.
    webhook_secret_file: File | None = None

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if not (self.log or self.command or self.webhook):
            raise ValueError("expected log, command or webhook")
        if (self.webhook is None) != (self.webhook_secret_file is None):
            raise ValueError("expected webhook and webhook_secret_file together")
        return self

    def build(self, folder: Path) -> AlertOptions:
        """Return the receiver's alerts. Raises ConfigError: no such program or file."""
        secret, command = None, self.command
        if self.webhook_secret_file is not None:
            setting = "alerts: webhook_secret_file"
            secret = read_text(self.webhook_secret_file, setting=setting).strip()
        if command:
            command = find_program(command, setting="alerts: command", folder=folder)
        return self.made(AlertOptions, command=command, webhook_secret=secret)
