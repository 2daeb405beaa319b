"""The `[dashboard]` table of the file: a dashboard inside `receiver serve`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from pydantic import BaseModel, ConfigDict

from pushkit.terminal.dashboard_options import DashboardOptions
from receiver.settings.values import HostAndPort

LISTEN: Final = "127.0.0.1:8091"
VARIABLE: Final = "RECEIVER_DASHBOARD_TOKEN"


class DashboardSettings(BaseModel):
    """The `[dashboard]` table; without it `receiver serve` has none. Needs the extra `dashboard`.

    Attributes:
        listen: `host:port` of a listener of its own. Beyond loopback a token is needed.
        hosts: Names that it is served under.
        token_file: A file with the token, mode 0600; or `RECEIVER_DASHBOARD_TOKEN` holds it.
        allow_actions: Whether who has the token may redrive.
        audit_log: A file that a line is added to for every action; else it goes to the log.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    listen: HostAndPort = LISTEN
    hosts: list[str] = []
    token_file: Path | None = None
    allow_actions: bool = False
    audit_log: Path | None = None

    def build(self, folder: Path) -> DashboardOptions:
        """Return these options, relative paths in a folder."""
        return DashboardOptions(
            listen=self.listen,
            variable=VARIABLE,
            hosts=tuple(self.hosts),
            token_file=folder / self.token_file if self.token_file else None,
            allow_actions=self.allow_actions,
            audit_log=folder / self.audit_log if self.audit_log else None,
        )
