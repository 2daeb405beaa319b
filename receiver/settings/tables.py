"""The tables that a file has at most once: TLS, retention, dashboard and alerts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, model_validator

from pushkit.alerts.alerts import AlertOptions
from pushkit.programs import find_program
from pushkit.terminal.options import DashboardOptions
from pushkit.terminal.toml import File
from receiver.inbox.retention import InboxRetention
from receiver.settings.values import (
    Days,
    HostAndPort,
    NotEmpty,
    NotNegative,
    Positive,
    Url,
    read_text,
)

LISTEN: Final = "127.0.0.1:8091"
VARIABLE: Final = "RECEIVER_DASHBOARD_TOKEN"


class TlsSettings(BaseModel, extra="forbid", hide_input_in_errors=True):
    """The `[tls]` table: PEM files, reloaded upon SIGHUP."""

    certificate: File  # the certificate and its intermediates
    key: File  # its private key


_RETENTION: Final = InboxRetention()


def _days(age: timedelta | None) -> int | None:
    return None if age is None else age.days


class RetentionSettings(BaseModel, extra="forbid", hide_input_in_errors=True):
    """The `[retention]` table; see `receiver.InboxRetention`, which has the same defaults."""

    done_days: Days = _days(_RETENTION.done)
    dead_days: Days = _days(_RETENTION.dead)
    max_done: NotNegative | None = _RETENTION.max_done
    # How long accepted ids are remembered. If this is shorter than the time of the sender's last
    # retry (90 h for pushkit), an update may be called back twice.
    remember_hours: Positive = _RETENTION.ids // timedelta(hours=1)
    expected_days: Days = _days(_RETENTION.expected)

    def build(self) -> InboxRetention:
        """Return the retention that a receiver is made with."""
        return InboxRetention(
            done=timedelta(days=self.done_days) if self.done_days else None,
            dead=timedelta(days=self.dead_days) if self.dead_days else None,
            max_done=self.max_done,
            ids=timedelta(hours=self.remember_hours),
            expected=timedelta(days=self.expected_days) if self.expected_days else None,
        )


class DashboardSettings(BaseModel, extra="forbid", hide_input_in_errors=True):
    """The `[dashboard]` table. Without it, `receiver serve` has no dashboard.

    It needs `pip install '.[dashboard]'`.
    """

    # `host:port` of its own listener. Beyond loopback a token is required.
    listen: HostAndPort = LISTEN
    hosts: list[NotEmpty] = []  # host names that it is served under
    # A file with the token, mode 0600; `RECEIVER_DASHBOARD_TOKEN` may contain it instead.
    token_file: File | None = None
    allow_actions: bool = False  # whether the holder of the token may redrive
    # A file that gets a line for every action; by default the log gets it.
    audit_log: File | None = None

    def build(self, folder: Path) -> DashboardOptions:
        """Return the options, relative paths resolved in a folder."""
        return DashboardOptions(
            listen=self.listen,
            variable=VARIABLE,
            hosts=tuple(self.hosts),
            token_file=folder / self.token_file if self.token_file else None,
            allow_actions=self.allow_actions,
            audit_log=folder / self.audit_log if self.audit_log else None,
        )


class AlertSettings(BaseModel, extra="forbid", hide_input_in_errors=True):
    """The `[alerts]` table; see `pushkit.AlertOptions`."""

    log: bool = False
    command: list[str] = []
    webhook: Url | None = None
    # A file with the secret, `whsec_…`, that signs alerts to the webhook.
    webhook_secret_file: File | None = None
    # The same alert is sent at most once in this time; the next says how many were left out.
    every_minutes: Positive = AlertOptions(log=True).every // timedelta(minutes=1)

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if not (self.log or self.command or self.webhook):
            raise ValueError("expected log, command or webhook")
        if (self.webhook is None) != (self.webhook_secret_file is None):
            raise ValueError("expected webhook and webhook_secret_file together")
        return self

    def build(self, folder: Path) -> AlertOptions:
        """Return the receiver's alerts. Raises ConfigError: no such program or file."""
        secret = None
        if self.webhook_secret_file is not None:
            path = folder / self.webhook_secret_file
            secret = read_text(path, setting="alerts: webhook_secret_file").strip()
        command = self.command
        return AlertOptions(
            log=self.log,
            command=find_program(command, setting="alerts: command", folder=folder)
            if command
            else (),
            webhook=self.webhook,
            webhook_secret=secret,
            every=timedelta(minutes=self.every_minutes),
        )
